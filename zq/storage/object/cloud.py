# SPDX-License-Identifier: Apache-2.0
"""Objects in S3 and what speaks its protocol, over obstore.

S3 takes the first of several writers of a name where it is asked to (``If-None-Match: *``): that is how it elects. Not
everything that speaks its protocol does, so a store that begins there tries it out first. No try proves it; that an
owner looks for its fence before it acknowledges is what keeps what was acknowledged.
"""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Final, TypeVar
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
from obstore.store import S3Store

from zq.errors import StartRefused, Unavailable
from zq.model import store_uri
from zq.storage.object.objects import TIMEOUT, Objects, ObjectStoreRefuses, Requests

T = TypeVar("T")
SHAPE: Final = "An S3 store is s3://bucket/prefix, with ?endpoint= and ?region= where they are needed; it is {!r}."
# Statuses that asking again does not change, in the text of an error.
REFUSALS: Final = re.compile(r"status(?: code)?:? *(400|401|403|405|413|507)\b")
RETRIES: Final = 2
# How many race for how many names before a first start.
RACERS: Final = 16
RACES: Final = 20
NO_ELECTIONS: Final = (
    "This object store told several writers of one name that they were the first: it does not heed If-None-Match, so "
    "servers cannot agree on an owner there."
)
# Endpoints and buckets that elect, as this process has found.
_tried: Final[set[tuple[str, str]]] = set()


class CloudObjects(Objects):
    """The objects of one bucket below a prefix. Credentials are those of the environment, as for AWS's own tools."""

    def __init__(self, uri: str) -> None:
        """Raises ``StartRefused`` for a URI that names no bucket and prefix."""
        parts = store_uri.split(uri)
        prefix, options = parts.path.strip("/"), parse_qs(parts.query)
        if not parts.netloc or not prefix or options.keys() - {"endpoint", "region"}:
            raise StartRefused(SHAPE.format(uri))
        config = {name: values[-1] for name, values in options.items()}
        limit = timedelta(seconds=TIMEOUT)
        self.requests = Requests()
        self._bucket = config.get("endpoint", ""), parts.netloc
        plain = config.get("endpoint", "").startswith("http://")
        try:
            self._store = S3Store(
                parts.netloc,
                prefix=prefix,
                config=config,  # type: ignore[arg-type]  # the names above
                client_options={"allow_http": plain, "connect_timeout": limit, "read_timeout": limit},
                retry_config={"max_retries": RETRIES, "retry_timeout": limit},
            )
        except BaseError as error:
            raise StartRefused(SHAPE.format(uri)) from error

    def prepare(self) -> None:
        """Before a first start, try whether the object store elects. Raises ``StartRefused`` if it does not."""
        if self._bucket in _tried or self.elected(1):
            return
        names = [f"probe/{uuid4().hex}" for _ in range(RACES)]
        with ThreadPoolExecutor(RACERS) as racers:
            for name in names:
                won = sum(racers.map(self._put_new, [name] * RACERS))
                if won > 1:
                    raise StartRefused(NO_ELECTIONS)
                self.delete(name)
        _tried.add(self._bucket)

    def put(self, name: str, value: bytes) -> bool:
        self._ask("PUT", lambda: obstore.put(self._store, name, value))
        return True

    def get(self, name: str) -> bytes | None:
        try:
            return self._ask("GET", lambda: bytes(obstore.get(self._store, name).bytes()))
        except FileNotFoundError:
            return None

    def exists(self, name: str) -> bool:
        try:
            self._ask("HEAD", lambda: obstore.head(self._store, name))
        except FileNotFoundError:
            return False
        return True

    def delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._ask("DELETE", lambda: obstore.delete(self._store, name))

    def elect(self, number: int) -> bool:
        return self._put_new(f"epoch/{number}")

    def elected(self, number: int) -> bool:
        return self.exists(f"epoch/{number}")

    def close(self) -> None:
        """Connections go with the process."""

    def _put_new(self, name: str) -> bool:
        try:
            self._ask("PUT", lambda: obstore.put(self._store, name, b"zq", mode="create", use_multipart=False))
        except (AlreadyExistsError, PreconditionError):
            return False
        return True

    def _ask(self, verb: str, act: Callable[[], T]) -> T:
        """One request, counted as one also where the binding repeats it. Its errors become this program's, the cause
        kept, but those that are answers."""
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
            raise ObjectStoreRefuses("There is no such bucket in the object store.") from error
        except (PermissionDeniedError, UnauthenticatedError) as error:
            code = "403"
            raise ObjectStoreRefuses("The object store does not allow this to these credentials.") from error
        except (BaseError, OSError) as error:
            found = REFUSALS.search(str(error))
            if found is None:
                raise Unavailable from error
            code = found[1]
            raise ObjectStoreRefuses(f"The object store answers with status {code}.") from error
        finally:
            self.requests.count(verb, code)
        return answer
