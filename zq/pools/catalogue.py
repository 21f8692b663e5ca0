# SPDX-License-Identifier: Apache-2.0
"""Operations on pools and flavors: list, get, create, update and delete (contract sections 11, 12)."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import SplitResult

import msgspec
from jsonschema import Draft4Validator
from msgspec import Struct, structs

from zq import wire
from zq.clock import Clock
from zq.errors import (
    FlavorNotFound,
    FlavorRefused,
    FlavorUpdateRefused,
    Invalid,
    InvalidBody,
    PoolConflict,
    PoolInUse,
    PoolNotFound,
    PoolRefused,
    StartRefused,
    Unavailable,
)
from zq.model import Page, store_uri
from zq.model.documents import Document, DocumentRef
from zq.model.limits import DEFAULT_PAGE, Limits, check_range
from zq.model.pools import (
    BOUND,
    FLAVOR,
    MAX_TEXT,
    MAX_WEIGHT,
    POOL,
    Pool,
    each,
    flavor_ref,
    index_prefix,
    pool_ref,
    read_pool,
)
from zq.model.store_uri import HIDDEN, parse_address
from zq.storage.api import DocumentController

# The capabilities of a durable and of a volatile store, as named by Zaqar and in the order of the contract.
DURABLE_CAPABILITIES: Final = ("FIFO", "CLAIMS", "DURABILITY", "AOD", "HIGH_THROUGHPUT")
VOLATILE_CAPABILITIES: Final = ("FIFO", "CLAIMS", "AOD", "HIGH_THROUGHPUT")
# The URI schemes of embedded stores, which have no host.
EMBEDDED: Final = ("memory", "rocksdb")
# Options that a pool URI may have, by scheme. A pool administrator need not be a server administrator, so no option may
# refer to a file on the server, to a host outside the URI, or to credentials of the server.
_MONGODB: Final = frozenset(
    {
        *("appname", "authmechanism", "authsource", "compressors", "connecttimeoutms", "directconnection"),
        *("heartbeatfrequencyms", "journal", "loadbalanced", "localthresholdms", "maxconnecting", "maxidletimems"),
        *("maxpoolsize", "minpoolsize", "readconcernlevel", "readpreference", "replicaset", "retryreads"),
        *("retrywrites", "serverselectiontimeoutms", "sockettimeoutms", "ssl", "timeoutms", "tls"),
        *("tlsallowinvalidcertificates", "tlsallowinvalidhostnames", "tlsinsecure", "w", "waitqueuetimeoutms"),
        *("wtimeoutms", "zlibcompressionlevel"),
    }
)
_REDIS: Final = frozenset({"cluster", "db", "master", "sentinel_password", "sentinel_username"})
_BY_SCHEME: Final[Mapping[str, frozenset[str]]] = {
    "mongodb": _MONGODB,
    "mongodb+srv": _MONGODB | {"srvmaxhosts", "srvservicename"},
    "redis": _REDIS,
    "rediss": _REDIS | {"ssl_cert_reqs", "ssl_check_hostname"},
    "s3": frozenset({"region"}),
    "swift": frozenset({"auth"}),
}
_SEPARATORS: Final = re.compile("[&;]")

_FIELDS: Final[dict[str, Any]] = {
    "uri": {"type": "string", "minLength": 1, "maxLength": MAX_TEXT},
    "weight": {"type": "integer", "minimum": 0, "maximum": MAX_WEIGHT},
    "flavor": {"type": "string", "maxLength": MAX_TEXT},
    "options": {"type": "object"},
}
NEW_POOL: Final[dict[str, Any]] = {
    "type": "object",
    "properties": _FIELDS,
    "required": ["uri", "weight"],
    "additionalProperties": False,
}
POOL_CHANGE: Final[dict[str, Any]] = {"type": "object", "properties": _FIELDS}
_LIST: Final[dict[str, Any]] = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 1000}
NEW_FLAVOR: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"pool_list": _LIST, "capabilities": {"type": "object"}},
    "required": ["pool_list"],
    "additionalProperties": False,
}
FLAVOR_CHANGE: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"pool_list": _LIST},
    "required": ["pool_list"],
}
# Ends of error messages, by the JSON Schema keyword that a value violates. All minimums are 1.
SIZES: Final = {
    "minLength": "must not be empty",
    "maxLength": "must be at most {} characters",
    "minItems": "must not be empty",
    "maxItems": "must have at most {} items",
}
_new_pool, _pool_change = Draft4Validator(NEW_POOL), Draft4Validator(POOL_CHANGE)
_new_flavor, _flavor_change = Draft4Validator(NEW_FLAVOR), Draft4Validator(FLAVOR_CHANGE)


class Flavor(Struct, frozen=True):
    """A flavor with the names and common capabilities of its pools."""

    name: str
    pools: list[str]
    capabilities: list[str]


class Pools:
    """The pools of a deployment and the flavors of its projects.

    Args:
        probe: Opens and closes the store at a URI. Raises ``StartRefused`` or ``Unavailable`` if the store cannot be
            opened.
        allowed: Returns the allowed hosts of pool URIs, with or without port, and the allowed schemes of embedded
            stores.
        own: The URI of the server's own store, which contains the definitions of the pools.
    """

    def __init__(
        self,
        documents: DocumentController,
        clock: Clock,
        limits: Limits,
        probe: Callable[[str], None],
        allowed: Callable[[], Sequence[str]],
        own: str = "memory:",
    ) -> None:
        self._documents = documents
        self._clock = clock
        self._limits = limits
        self._probe = probe
        self._allowed = allowed
        self._own = own

    def list(self, marker: str, limit: int | None) -> Page[tuple[str, Pool]]:
        """Return a page of pools after ``marker``, sorted by name. Raises ``Invalid`` for a bad ``limit``."""
        size = DEFAULT_PAGE if limit is None else check_range("limit", limit, 1, self._limits.max_pools_per_page)
        page = self._documents.list("", POOL, "", marker, size, self._clock.now())
        return Page([(document.ref.name, read_pool(document)) for document in page.items], page.next)

    def get(self, name: str) -> Pool:
        """Return the pool. Raises ``PoolNotFound`` if it does not exist."""
        return read_pool(self._stored(name))

    def has_queues(self, name: str) -> bool:
        """Return whether the pool has queues, or had queues a few minutes ago, so that it cannot be deleted."""
        return bool(self._documents.list("", BOUND, index_prefix(name), "", 1, self._clock.now()).items)

    def put(self, name: str, raw: bytes) -> None:
        """Create or replace the pool ``name`` from a JSON body.

        Raises:
            InvalidBody: The body is malformed.
            PoolRefused: The store at the URI cannot be used, or is not allowed.
            PoolConflict: Another pool has the same store, or the pool has queues and its store would change.
        """
        check_name("pool", name)
        given = decode_body(raw, _new_pool)
        pool = Pool(given["uri"], given["weight"], given.get("flavor") or None, given.get("options", {}))
        while True:
            stored = self._find(name)
            self._check(name, pool, None if stored is None else read_pool(stored))
            expected = "" if stored is None else stored.version
            if self._put(pool_ref(name), pool, expected):
                if stored is not None:
                    self._restore_moved(stored, pool)
                return

    def patch(self, name: str, raw: bytes) -> Pool:
        """Update the given fields of a pool and return it. Raises ``PoolNotFound``, and the same errors as ``put``."""
        given = decode_body(raw, _pool_change)
        changes = {field: value for field, value in given.items() if field in _FIELDS}
        if not changes:
            raise InvalidBody(f"The body must contain at least one of {', '.join(_FIELDS)}.")
        if "flavor" in changes:
            changes["flavor"] = changes["flavor"] or None
        while True:
            stored = self._stored(name)
            before = read_pool(stored)
            pool = structs.replace(before, **changes)
            self._check(name, pool, before)
            if self._put(stored.ref, pool, stored.version):
                self._restore_moved(stored, pool)
                return pool

    def delete(self, name: str) -> None:
        """Delete the pool, if it exists.

        Raises ``PoolInUse`` if the pool has queues, or if the pool is the only one of a flavor.
        """
        stored = self._find(name)
        if stored is None:
            return
        flavor = read_pool(stored).flavor
        if flavor is not None and self._of(flavor) == [name]:
            raise PoolInUse(f"The pool {name} cannot be deleted, because it is the only pool of the flavor {flavor}.")
        self._reject_queues(name)
        now = self._clock.now()
        if self._documents.delete(stored.ref, now, expected=stored.version) and self.has_queues(name):
            self._documents.put(stored.ref, stored.value, now, expected="")
            self._reject_queues(name)

    def list_flavors(self, project: str, marker: str, limit: int | None) -> Page[Flavor]:
        """Return a page of the project's flavors after ``marker``, sorted by name.

        Raises ``Invalid`` for a bad ``limit``.
        """
        size = DEFAULT_PAGE if limit is None else check_range("limit", limit, 1, self._limits.max_flavors_per_page)
        page = self._documents.list(project, FLAVOR, "", marker, size, self._clock.now())
        known = self._all()
        return Page([_make_flavor(document.ref.name, known) for document in page.items], page.next)

    def get_flavor(self, project: str, name: str) -> Flavor:
        """Return the flavor. Raises ``FlavorNotFound`` if it does not exist."""
        if self._documents.get(flavor_ref(project, name), self._clock.now()) is None:
            raise FlavorNotFound(f"There is no flavor {name[:MAX_TEXT]} in the project.")
        return _make_flavor(name, self._all())

    def put_flavor(self, project: str, name: str, raw: bytes) -> None:
        """Add pools to a flavor. Create the flavor if it is missing. Raises ``InvalidBody`` and ``FlavorRefused``."""
        check_name("flavor", name)
        names = decode_body(raw, _new_flavor)["pool_list"]
        self._check_pools([*self._of(name), *names], f"Flavor {name} could not be created, error:", FlavorRefused)
        self._documents.put(flavor_ref(project, name), b"", self._clock.now())
        self._tag(names, name)

    def patch_flavor(self, project: str, name: str, raw: bytes) -> Flavor:
        """Replace the flavor's pools. Raises ``InvalidBody``, ``FlavorNotFound`` and ``FlavorUpdateRefused``."""
        names = decode_body(raw, _flavor_change)["pool_list"]
        before = self.get_flavor(project, name)
        self._check_pools(names, f"Flavor {name} could not be updated, error:", FlavorUpdateRefused)
        self._tag(names, name)
        self._untag([pool for pool in before.pools if pool not in names], name)
        return self.get_flavor(project, name)

    def delete_flavor(self, project: str, name: str) -> None:
        """Delete the flavor, if it exists, and remove it from its pools."""
        if self._documents.delete(flavor_ref(project, name), self._clock.now()):
            self._untag(self._of(name), name)

    def _check(self, name: str, pool: Pool, before: Pool | None) -> None:
        """Check whether the pool may be stored. Raises the same errors as ``put``.

        ``before`` is the stored pool with this name, or None if the pool is new.
        """
        address = parse_address(_split_uri(pool.uri))
        moves = before is None or parse_address(_split_uri(before.uri)) != address
        if before is None or before.uri != pool.uri:
            self._check_uri(pool.uri)
        if moves:
            self._reject_address(name, address)
        others = [other for named, other in self._all().items() if named != name]
        if pool.flavor is not None:
            alike = [other for other in (before, *others) if other is not None and other.flavor == pool.flavor]
            if alike and list_capabilities(alike[0].uri) != list_capabilities(pool.uri):
                raise PoolRefused(f"The pools of the flavor {pool.flavor} have different capabilities than this store.")
        if moves and before is not None:
            self._reject_move(name)
        if before is None or before.uri != pool.uri:
            self._try(pool.uri, embedded_is_open=not moves)

    def _check_uri(self, uri: str) -> None:
        parts = _split_uri(uri)
        if HIDDEN in uri:
            raise PoolRefused(f"uri must not contain {HIDDEN}, the placeholder for hidden parts.")
        if not parts.scheme or ("://" not in uri and parts.scheme not in EMBEDDED):
            raise PoolRefused("uri must begin with the scheme of a store, such as redis://host/0.")
        _check_options(parts)
        allowed = self._allowed()
        if parts.scheme in EMBEDDED:
            if f"{parts.scheme}:" not in allowed:
                raise PoolRefused(
                    f"uri is not allowed: [pooling:catalog] allowed_hosts does not contain '{parts.scheme}:'."
                )
            return
        for host in parts.netloc.rpartition("@")[2].lower().split(","):
            if host not in allowed and _without_port(host) not in allowed:
                raise PoolRefused(
                    f"uri is not allowed: [pooling:catalog] allowed_hosts does not contain {host[:MAX_TEXT]!r}."
                )

    def _reject_address(self, name: str, address: tuple[str, ...]) -> None:
        for other, pool in self._all().items():
            if other != name and parse_address(_split_uri(pool.uri)) == address:
                raise PoolConflict(f"The pool {other} already has this uri.")
        if address == parse_address(_split_uri(self._own)) and address[0] != "memory":
            raise PoolConflict(
                "The catalogue's store has this uri. To use it as a pool, set [pooling:catalog] enable_virtual_pool."
            )

    def _reject_move(self, name: str) -> None:
        if self.has_queues(name):
            raise PoolConflict(
                f"The uri of the pool {name} must not refer to another store, because the pool has queues."
            )

    def _restore_moved(self, former: Document, pool: Pool) -> None:
        """Undo a change of the pool's store if queues were created in the pool at the same time.

        ``former`` is the pool before the change. Raises ``PoolConflict`` if there are such queues.
        """
        name = former.ref.name
        if parse_address(_split_uri(read_pool(former).uri)) == parse_address(_split_uri(pool.uri)):
            return
        if self.has_queues(name):
            stored = self._find(name)
            if stored is not None and read_pool(stored).uri == pool.uri:
                self._documents.put(former.ref, former.value, self._clock.now(), expected=stored.version)
            self._reject_move(name)

    def _reject_queues(self, name: str) -> None:
        if self.has_queues(name):
            raise PoolInUse(
                f"The pool {name} has queues, or had queues a few minutes ago. Delete the queues, and try again after "
                "a few minutes."
            )

    def _try(self, uri: str, embedded_is_open: bool) -> None:
        if embedded_is_open and _split_uri(uri).scheme in EMBEDDED:
            return
        try:
            self._probe(uri)
        except (StartRefused, Unavailable) as failure:
            raise PoolRefused("The store at uri cannot be used or does not respond.") from failure

    def _check_pools(self, names: Sequence[str], prefix: str, refusal: type[Invalid]) -> None:
        known = self._all()
        for name in names:
            if name not in known:
                raise refusal(f"{prefix}Pool {name[:MAX_TEXT]} does not exist")
            if list_capabilities(known[name].uri) != list_capabilities(known[names[0]].uri):
                raise refusal(f"{prefix}Pools {names[0]} and {name} have different capabilities")

    def _tag(self, names: Sequence[str], flavor: str) -> None:
        for name in names:
            self._change_flavor(name, lambda _: flavor)

    def _untag(self, names: Sequence[str], flavor: str) -> None:
        for name in names:
            self._change_flavor(name, lambda own: None if own == flavor else own)

    def _change_flavor(self, name: str, change: Callable[[str | None], str | None]) -> None:
        while (stored := self._find(name)) is not None:
            pool = read_pool(stored)
            if self._put(stored.ref, structs.replace(pool, flavor=change(pool.flavor)), stored.version):
                return

    def _of(self, flavor: str) -> Sequence[str]:
        return [name for name, pool in self._all().items() if pool.flavor == flavor]

    def _all(self) -> dict[str, Pool]:
        found = each(self._documents, POOL, self._clock.now())
        return {document.ref.name: read_pool(document) for document in found}

    def _find(self, name: str) -> Document | None:
        return self._documents.get(pool_ref(name), self._clock.now())

    def _stored(self, name: str) -> Document:
        if (stored := self._find(name)) is None:
            raise PoolNotFound(f"There is no pool {name[:MAX_TEXT]}.")
        return stored

    def _put(self, ref: DocumentRef, pool: Pool, expected: str) -> bool:
        return self._documents.put(ref, msgspec.json.encode(pool), self._clock.now(), expected=expected)


def list_capabilities(uri: str) -> list[str]:
    """Return the capabilities of the store at the URI. They depend only on the URI's scheme."""
    scheme = uri.partition(":")[0]
    return list(VOLATILE_CAPABILITIES if scheme.startswith(("redis", "memory")) else DURABLE_CAPABILITIES)


def check_name(kind: str, name: str) -> str:
    """Return ``name`` if it is a valid name for a pool or flavor, else raise ``Invalid``."""
    if not 1 <= len(name) <= MAX_TEXT or not name.isprintable() or "{" in name or "}" in name:
        raise Invalid(f"The name of a {kind} must be 1 to {MAX_TEXT} printable characters, without braces.")
    return name


def _make_flavor(name: str, pools: Mapping[str, Pool]) -> Flavor:
    own = {pool: value for pool, value in pools.items() if value.flavor == name}
    return Flavor(name, list(own), next((list_capabilities(pool.uri) for pool in own.values()), []))


def decode_body(raw: bytes, validator: Draft4Validator) -> dict[str, Any]:
    if not raw:
        raise InvalidBody("The body is missing.")
    given = wire.json_object(raw)
    for error in sorted(validator.iter_errors(given), key=lambda error: list(map(str, error.path))):
        field = ".".join(map(str, error.path)) or "The body"
        if error.validator in SIZES:
            raise InvalidBody(f"{field} {SIZES[error.validator].format(error.validator_value)}.")
        raise InvalidBody(f"{field}: {error.message[:200]}.")
    return given


def _split_uri(uri: str) -> SplitResult:
    try:
        return store_uri.split(uri)
    except ValueError:
        raise PoolRefused("uri is not a valid URI.") from None


def _check_options(parts: SplitResult) -> None:
    """Raise ``PoolRefused`` if the URI has a fragment or a forbidden option.

    An option with percent-encoded characters in its name is also forbidden.
    """
    if parts.fragment:
        raise PoolRefused("uri must not contain #: options follow a question mark.")
    known = _BY_SCHEME.get(parts.scheme, frozenset())
    for option in filter(None, _SEPARATORS.split(parts.query)):
        name = option.partition("=")[0]
        if name.lower() not in known:
            allowed = f"use only {', '.join(sorted(known))}" if known else "remove it"
            raise PoolRefused(f"The uri of a {parts.scheme}: pool must not have the option {name[:64]!r}: {allowed}.")


def _without_port(host: str) -> str:
    front, colon, port = host.rpartition(":")
    return front if colon and port.isdigit() else host
