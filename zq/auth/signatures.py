# SPDX-License-Identifier: Apache-2.0
"""Pre-signed URLs: access to paths of one queue for clients without a credential (contract section 10).

The signed text joins several values with separators. A value that itself contains a separator is rejected, because it
would make the text ambiguous.

Signatures are not stored. The signing key depends on the project's revocation count, which is stored. A revocation
increments the count, which invalidates all earlier signatures on all servers within ``CACHE_TTL`` seconds.
"""

import hmac
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Final

from cachetools import FIFOCache
from msgspec import Struct, structs

from zq.auth.credentials import FailureLimit
from zq.cache import ReadThroughCache
from zq.clock import Clock
from zq.errors import Invalid, InvalidName, MetadataConflict, Unavailable
from zq.model import Seconds, limits
from zq.model.documents import DocumentRef
from zq.model.identity import Identity, SignedUrlOptions
from zq.model.scopes import Verb
from zq.storage.api import DocumentController

# Paths below a queue that may be shared.
PATHS: Final = ("messages", "subscriptions", "claims")
# Scope verbs by method that may be shared.
METHODS: Final = {
    "GET": (Verb.OBSERVE,),
    "HEAD": (Verb.OBSERVE,),
    "POST": (Verb.PRODUCE, Verb.CONSUME),
    "PUT": (Verb.CONSUME,),
    "PATCH": (Verb.CONSUME,),
    "DELETE": (Verb.CONSUME, Verb.MANAGE),
}
# Kind of the documents with projects' revocation counts.
REVOCATIONS_KIND: Final = "share-epoch"
# Seconds for which signatures and revocation counts are cached.
CACHE_TTL: Final = 5.0
# Maximum number of entries in a cache.
CACHE_SIZE: Final = 10_000
# The signed text. The separator is a backslash and an n, as in Zaqar.
SIGNED_TEXT: Final = "\\n".join(["{paths}", "{methods}", "{project}", "{expires}"])
_PATH: Final = re.compile(rf"/v2/queues/({limits.LONG_QUEUE_NAME.pattern})/(?:{'|'.join(PATHS)})", re.ASCII)
# A path that confirms a subscription. It is always signed alone.
_CONFIRM: Final = re.compile(
    rf"/v2/(?:queue|topic)s/{limits.LONG_QUEUE_NAME.pattern}/subscriptions/[0-9a-f]{{32}}/confirm", re.ASCII
)
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?([.,]\d+)?(Z|[+-]\d\d:?\d\d)?", re.ASCII)
# Environment keys of the signed parts.
FIELDS: Final = ("HTTP_URL_SIGNATURE", "HTTP_URL_PATHS", "HTTP_URL_METHODS", "HTTP_URL_EXPIRES")
# Substitute for malformed parts, so that their verification takes equally long.
INVALID_PARTS: Final = ("-", ("/v2/queues/-/messages",), frozenset({"GET"}), 0.0)


def make_scope(queue: str, methods: Iterable[str]) -> str:
    """Return the scope of a signed request, given its queue and methods."""
    verbs = {verb for method in methods for verb in METHODS[method]}
    return f"{'+'.join(sorted(verbs))}:queue/{queue}"


def parse_time(text: str) -> Seconds:
    """Parse a date and time in ISO 8601. The default time zone is UTC.

    Raises ``ValueError`` if the text is invalid, or if the year in UTC is not between 1 and 9999.
    """
    if _MOMENT.fullmatch(text) is None:
        raise ValueError("the text is not a date and time")
    parsed = datetime.fromisoformat(text.replace(",", "."))
    aware = (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).replace(microsecond=0)
    try:
        return aware.astimezone(UTC).timestamp()
    except OverflowError:
        raise ValueError("the year must be 1 to 9999 in UTC") from None


def format_time(expires: Seconds) -> str:
    """Format the expiry time of a pre-signed URL for the text to sign."""
    return datetime.fromtimestamp(expires, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def derive_key(secret: bytes, label: str) -> bytes:
    """Derive a 32-byte key from ``secret`` with HKDF-SHA256 (RFC 5869), without salt.

    ``label`` names the purpose of the key. Different labels give independent keys.
    """
    extracted = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(extracted, label.encode() + b"\x01", "sha256")


def signature(key: bytes, paths: Iterable[str], methods: Iterable[str], project: str, expires: str) -> str:
    """Compute the signature of a pre-signed URL (contract section 10.2), in lower-case hex."""
    text = SIGNED_TEXT.format(
        paths=",".join(sorted(paths)), methods=",".join(sorted(methods)), project=project, expires=expires
    )
    return hmac.digest(key, text.encode(), "sha256").hex()


class CachedSignature(Struct, frozen=True):
    """A valid signature in the cache. ``until`` is the monotonic time at which it must be verified again."""

    identity: Identity
    paths: tuple[str, ...]
    methods: frozenset[str]
    expires: Seconds
    until: float

    def covers(self, method: str, path: str) -> bool:
        """Return whether the signature permits a request with this method and path.

        A signed path also permits the paths below it, except a path that confirms a subscription.
        """
        return (
            method in self.methods
            and any(path == each or path.startswith(f"{each}/") for each in self.paths)
            and (path in self.paths or not path.endswith("/confirm"))
        )


class Signatures:
    """Signer and verifier of pre-signed URLs for all projects."""

    def __init__(
        self,
        options: Callable[[], SignedUrlOptions],
        documents: DocumentController,
        clock: Clock,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.options = options
        self.clock = clock
        self._documents = documents
        self._monotonic = monotonic
        self._failures = FailureLimit(monotonic)
        self._lock = threading.Lock()
        self._shares: FIFOCache[tuple[str, ...], CachedSignature] = FIFOCache(CACHE_SIZE)
        # Revocation count and expiry of the cache entry, by project.
        self._epochs = ReadThroughCache(self._read_epoch, CACHE_SIZE, CACHE_TTL, monotonic)

    def sign(self, project: str, paths: Iterable[str], methods: Iterable[str], expires: Seconds) -> str:
        """Return a signature made with the first configured secret. Raises ``Invalid`` if no secret is configured."""
        secrets = self.options().secrets
        if not secrets:
            raise Invalid("This server cannot sign URLs: [signed_url] secret_key is not set.")
        key = derive_signing_key(secrets[0], project, self._epochs.get(project)[0])
        return signature(key, paths, methods, project, format_time(expires))

    def sign_confirmation(self, project: str, path: str, expires: Seconds) -> str:
        """Return a signature for PUT on a path that confirms a subscription, or "" if no secret is configured."""
        secrets = self.options().secrets
        key = derive_confirmation_key(secrets[0], project, self._epochs.get(project)[0]) if secrets else b""
        return signature(key, [path], ["PUT"], project, format_time(expires)) if secrets else ""

    def authenticate(self, project: str, env: Mapping[str, Any], peer: str) -> Identity | None:
        """Return the identity of a signed request, or ``None`` if the signature does not permit the request.

        Raises ``TooManyRequests`` after too many failures from the address ``peer``, or ``Unavailable`` if the store is
        down.
        """
        if not self.options().secrets:
            return None
        values = (project, *[env.get(name, "") for name in FIELDS])
        share = self._get_cached(values)
        if share is None:
            # A signature that was valid is exempt from the failure limit.
            if values not in self._shares:
                self._failures.check(peer)
            share = self._verify(values)
        if share is None or not self._covers(share, env):
            self._failures.count(peer)
            return None
        return share.identity

    def cached_validity(self, project: str, env: Mapping[str, Any], peer: str) -> bool | None:
        """Return whether the signature is valid according to the cache.

        Return ``None`` if the signature must be verified. This method does not count invalid signatures
        against the failure limit.
        """
        values = (project, *[env.get(name, "") for name in FIELDS])
        share = self._get_cached(values)
        if share is not None:
            return self._covers(share, env)
        limited = values not in self._shares and self._failures.exceeded(peer)
        return None if self.options().secrets and not limited else False

    def look_up(self, project: str, env: Mapping[str, Any], peer: str) -> bool | None:
        try:
            return self._covers(self._verify((project, *[env.get(name, "") for name in FIELDS])), env)
        except Unavailable:
            return None

    def revoke(self, project: str) -> None:
        """Invalidate all existing signatures of the project.

        Raises ``MetadataConflict`` after too many conflicts with concurrent revocations, or ``Unavailable`` if the
        store is down.
        """
        ref = DocumentRef("", REVOCATIONS_KIND, project)
        for _ in range(10):
            now = self.clock.now()
            document = self._documents.get(ref, now)
            epoch = str(int(document.value) + 1 if document else 1).encode()
            if self._documents.put(ref, epoch, now, expected=document.version if document else ""):
                self.forget()
                return
        raise MetadataConflict("The project's signed URLs were revoked concurrently. Try again.")

    def forget(self) -> None:
        """Clear the cache of revocation counts and expire the cached signatures."""
        self._epochs.clear()
        with self._lock:
            for values, share in list(self._shares.items()):
                self._shares[values] = structs.replace(share, until=-math.inf)

    def _get_cached(self, values: tuple[str, ...]) -> CachedSignature | None:
        share: CachedSignature | None = self._shares.get(values)
        return None if share is None or share.until <= self._monotonic() else share

    def _covers(self, share: CachedSignature | None, env: Mapping[str, Any]) -> bool:
        return (
            share is not None
            and share.expires > self.clock.now()
            and share.covers(str(env["REQUEST_METHOD"]), env["PATH_INFO"])
        )

    def _verify(self, values: tuple[str, ...]) -> CachedSignature | None:
        """Verify a signature and cache it. Return ``None`` if the signature is not valid.

        ``values`` contains the project and the values of the headers ``FIELDS``. All failures take equally long, so the
        duration does not reveal the reason.
        """
        project, given, *_ = values
        parts = _read(values)
        named, paths, methods, expires = parts or INVALID_PARTS
        epoch, until = self._epochs.get(named)
        key = derive_confirmation_key if _CONFIRM.fullmatch(paths[0]) else derive_signing_key
        ours = [
            signature(key(secret, named, epoch), paths, methods, named, format_time(expires))
            for secret in self.options().secrets
        ]
        matches = [hmac.compare_digest(each.encode(), given.encode()) for each in ours]
        if parts is None or not any(matches):
            with self._lock:
                self._shares.pop(values, None)
            return None
        _, _, things, queue, *_ = paths[0].split("/")
        name = f"share:{blake2b(given.encode(), digest_size=4).hexdigest()}"
        scope = f"manage:{things[:-1]}/{queue}" if key is derive_confirmation_key else make_scope(queue, methods)
        identity = Identity(project, scopes=(scope,), credential=name, expires=expires)
        share = CachedSignature(identity, paths, methods, expires, until)
        with self._lock:
            self._shares[values] = share
        return share

    def _read_epoch(self, project: str) -> tuple[int, float]:
        until = self._monotonic() + CACHE_TTL
        document = self._documents.get(DocumentRef("", REVOCATIONS_KIND, project), self.clock.now())
        return int(document.value) if document else 0, until


def derive_signing_key(secret: str, project: str, epoch: int) -> bytes:
    """Return the key that signs URLs.

    ``epoch`` is the project's revocation count. Before the first revocation, the key is the secret itself, as in Zaqar.
    """
    return derive_key(secret.encode(), f"share {epoch} {project}") if epoch else secret.encode()


def derive_confirmation_key(secret: str, project: str, epoch: int) -> bytes:
    """Return the key that signs the confirmation URLs of a project's subscriptions."""
    return derive_key(secret.encode(), f"confirm {epoch} {project}")


def _read(values: tuple[str, ...]) -> tuple[str, tuple[str, ...], frozenset[str], Seconds] | None:
    project, _, paths, methods, expires = values
    try:
        limits.project_id(project)
        until = parse_time(expires)
    except (InvalidName, ValueError):
        return None
    if _CONFIRM.fullmatch(paths) and methods == "PUT":
        return project, (paths,), frozenset({"PUT"}), until
    queues = {_PATH.fullmatch(path) for path in paths.split(",")}
    named = {match[1] for match in queues if match}
    if None in queues or len(named) != 1 or not set(methods.split(",")) <= METHODS.keys():
        return None
    return project, tuple(sorted(paths.split(","))), frozenset(methods.split(",")), until
