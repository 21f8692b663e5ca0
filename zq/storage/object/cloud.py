# SPDX-License-Identifier: Apache-2.0
"""Objects in S3-compatible stores, Google Cloud Storage and Azure, accessed with the package obstore.

If several clients create an object with a conditional write (``If-None-Match: *``, or generation 0), only one client
succeeds. The driver uses conditional writes for leader election. Because some S3-compatible stores let several clients
succeed, the driver tests a new store. With the option ``fencing=look``, an owner checks for a successor before each
acknowledgement. Acknowledged changes are then safe even if the test misses a faulty store.
"""

import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Final, NamedTuple, TypeVar
from urllib.parse import parse_qs
from uuid import uuid4

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore, S3Store

from zq.errors import StartRefused, Unavailable
from zq.model import store_uri
from zq.storage.object.objects import TIMEOUT, Objects, ObjectStoreRejection, Requests

T = TypeVar("T")


class Vendor(NamedTuple):
    """The client and the URI options of one object store vendor."""

    open: Callable[..., AzureStore | GCSStore | S3Store]
    uri_error: str
    options: Mapping[str, str]


VENDORS: Final = {
    "s3": Vendor(
        S3Store,
        "The URI of an S3 store must be s3://bucket/prefix, with ?endpoint= and ?region= if needed, not {!r}.",
        {"endpoint": "endpoint", "region": "region"},
    ),
    "gs": Vendor(
        GCSStore,
        "The URI of a Google Cloud Storage store must be gs://bucket/prefix, with ?endpoint= if needed, not {!r}.",
        {"endpoint": "base_url"},
    ),
    "az": Vendor(
        AzureStore,
        "The URI of an Azure store must be az://container/prefix, with ?account= and ?endpoint= if needed, not {!r}.",
        {"account": "account_name", "endpoint": "endpoint"},
    ),
}
UNUSABLE_ERROR: Final = "The store {!r} cannot be opened with its URI and the environment variables: {}"
# The response status in an error message, if a retry would not help.
REFUSALS: Final = re.compile(r"status(?: code)?:? *(400|401|403|405|413|507)\b")
RETRIES: Final = 2
# Number of concurrent writers in the test of leader election.
RACERS: Final = 16
# Number of objects in this test.
RACES: Final = 20
NO_ELECTIONS: Final = (
    "This object store does not support conditional writes (If-None-Match): several concurrent writers could create "
    "the same object. zq cannot use it, because servers could not agree on an owner."
)
# Buckets (scheme, options, name) that this process has tested.
_tried: Final[set[tuple[str, str, str]]] = set()


class CloudObjects(Objects):
    """The objects below a prefix in a bucket or container.

    Credentials come from the environment variables and files that the vendor's own tools use.
    """

    def __init__(self, uri: str) -> None:
        """Parse the URI. Raises ``StartRefused`` if the URI or an environment variable is invalid."""
        parts = store_uri.split(uri)
        vendor, prefix, given = VENDORS[parts.scheme], parts.path.strip("/"), parse_qs(parts.query)
        endpoint = given.get("endpoint", ["https://"])[-1]
        plain = endpoint.startswith("http://")
        if not parts.netloc or not prefix or given.keys() - vendor.options or not (plain or endpoint[:8] == "https://"):
            raise StartRefused(vendor.uri_error.format(uri))
        limit = timedelta(seconds=TIMEOUT)
        self.requests = Requests()
        self._bucket = parts.scheme, parts.query, parts.netloc
        try:
            self._store = vendor.open(
                parts.netloc,
                prefix=prefix,
                config={vendor.options[name]: values[-1] for name, values in given.items()},
                client_options={"allow_http": plain, "connect_timeout": limit, "read_timeout": limit},
                retry_config={"max_retries": RETRIES, "retry_timeout": limit},
            )
        except BaseError as error:
            reason = str(error).partition("\n")[0].rpartition(" error: ")[2]
            raise StartRefused(UNUSABLE_ERROR.format(uri, reason)) from error

    exclusive = True

    def prepare(self) -> None:
        """Test leader election if the store is new. Raises ``StartRefused`` if the test fails."""
        if not self.has_election(1):
            self.prove_exclusive()

    def prove_exclusive(self) -> None:
        if self._bucket in _tried:
            return
        names = [f"probe/{uuid4().hex}" for _ in range(RACES)]
        with ThreadPoolExecutor(RACERS) as racers:
            for name in names:
                won = sum(racers.map(self.put_new, [name] * RACERS, [b"zq"] * RACERS))
                if won > 1:
                    raise StartRefused(NO_ELECTIONS)
                self.delete(name)
        _tried.add(self._bucket)

    def put(self, name: str, value: bytes) -> bool:
        self._request("PUT", lambda: obstore.put(self._store, name, value))
        return True

    def put_new(self, name: str, value: bytes) -> bool:
        try:
            self._request("PUT", lambda: obstore.put(self._store, name, value, mode="create", use_multipart=False))
        except (AlreadyExistsError, PreconditionError):
            return False
        return True

    def get(self, name: str) -> bytes | None:
        try:
            return self._request("GET", lambda: bytes(obstore.get(self._store, name).bytes()))
        except FileNotFoundError:
            return None

    def exists(self, name: str) -> bool:
        try:
            self._request("HEAD", lambda: obstore.head(self._store, name))
        except FileNotFoundError:
            return False
        return True

    def delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._request("DELETE", lambda: obstore.delete(self._store, name))

    def elect(self, number: int) -> bool:
        return self.put_new(f"epoch/{number}", b"zq")

    def has_election(self, number: int) -> bool:
        return self.exists(f"epoch/{number}")

    def close(self) -> None:
        """Do nothing, because obstore keeps its connections until the process exits."""

    def _request(self, verb: str, act: Callable[[], T]) -> T:
        """Run a request, and convert obstore's errors to ``Unavailable`` or ``ObjectStoreRejection``."""
        code = "none"
        try:
            answer = act()
            code = "200"
        except (AlreadyExistsError, PreconditionError):
            code = "412"
            raise
        except FileNotFoundError as error:
            code = "404"
            if verb != "PUT":
                raise
            raise ObjectStoreRejection("The bucket or container of the store's URI does not exist.") from error
        except (PermissionDeniedError, UnauthenticatedError) as error:
            code = "403"
            raise ObjectStoreRejection(
                "The object store denied the request: the credentials are invalid or lack a permission."
            ) from error
        except (BaseError, OSError) as error:
            found = REFUSALS.search(str(error))
            if found is None:
                raise Unavailable from error
            code = found[1]
            raise ObjectStoreRejection(f"The object store responded with status {code}.") from error
        finally:
            self.requests.count(verb, code)
        return answer
