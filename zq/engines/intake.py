# SPDX-License-Identifier: Apache-2.0
"""A request as Granian hands it over (an ASGI scope and pieces of a body): as an environment of WSGI (PEP 3333) for
the one application, with a body that is whole, within a bound and a deadline.
"""

import io
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from zq.engines.process import Gone, Process
from zq.http import heads

# Headers whose keys in the environment have no ``HTTP_``.
PLAIN: Final = {"content-type": "CONTENT_TYPE", "content-length": "CONTENT_LENGTH"}
# Headers of the connection, not of the request. ``Transfer-Encoding`` stays, for it announces a body that may be empty.
HOP_BY_HOP: Final = frozenset({"connection", "keep-alive", "te", "trailer", "upgrade"})
# Bytes of a target, or of a header's value.
MAX_LINE: Final = 8190
# Names of headers that are remembered, and how long each may be.
MOST_NAMES: Final = 1024
LONGEST_NAME: Final = 64
# The key of the environment that says: a body may come whose length is not announced.
UNANNOUNCED: Final = "zq.unannounced"
# What the environment of every request holds.
CONSTANT: Final[dict[str, Any]] = {
    # Never what a client or a proxy says: neither may choose a prefix of the path.
    "SCRIPT_NAME": "",
    "wsgi.version": (1, 0),
    "wsgi.errors": sys.stderr,
    "wsgi.multithread": True,
    "wsgi.multiprocess": False,
    "wsgi.run_once": False,
    # The body is whole, whatever announced it.
    "wsgi.input_terminated": True,
}
# Bytes a second at which a body extends its deadline.
BODY_RATE: Final = 10_000
Receive = Callable[[], Any]

# The keys of names that came in heads without fault, none of them with an underscore; see ``_key``.
_keys: dict[bytes, str] = {}


def environment(scope: dict[str, Any]) -> dict[str, Any]:
    """The environment but for the body: see ``with_body``."""
    raw: bytes = scope["raw_path"]
    query = scope["query_string"].decode("latin-1")
    path = raw.decode("latin-1")
    version = scope["http_version"]
    environ = CONSTANT.copy()
    environ["REQUEST_METHOD"] = scope["method"]
    environ["PATH_INFO"] = unquote_to_bytes(raw).decode("latin-1") if b"%" in raw else path
    environ["QUERY_STRING"] = query
    environ["RAW_URI"] = f"{path}?{query}" if query else path
    environ["SERVER_PROTOCOL"] = f"HTTP/{version}" if "." in version else f"HTTP/{version}.0"
    environ["SERVER_NAME"], environ["SERVER_PORT"] = scope["server"]
    environ["REMOTE_ADDR"], environ["REMOTE_PORT"] = scope["client"]
    environ["wsgi.url_scheme"] = scope["scheme"]
    usual = len(raw) + len(query) < MAX_LINE and b"%" not in raw and not raw.startswith(b"//")
    if not (usual and _add_usual(environ, scope["headers"])):
        _add_headers(environ, scope["headers"])
    if "CONTENT_LENGTH" not in environ and (version == "2" or "HTTP_TRANSFER_ENCODING" in environ):
        environ[UNANNOUNCED] = True
    return environ


def with_body(environ: dict[str, Any], body: bytes) -> None:
    """Add a body that came; its length counts, also where none was announced."""
    environ["wsgi.input"] = io.BytesIO(body)
    if body:
        environ["CONTENT_LENGTH"] = str(len(body))


def announced(environ: dict[str, Any]) -> int | None:
    """Bytes that the body is announced to have; None if it is not. More digits than a length has are as many."""
    length = environ.get("CONTENT_LENGTH", "")
    return int(length.lstrip("0")[:20] or "0") if length.isdecimal() else None


def _add_usual(environ: dict[str, Any], headers: list[tuple[bytes, bytes]]) -> bool:
    """Add the headers of a head that nothing can be wrong with, as nearly all are: known names, each of them once, and
    a host. False, and nothing added, for any other."""
    found: dict[str, str] = {}
    for name, value in headers:
        key = _keys.get(name)
        if key is None or key in found or len(value) > MAX_LINE:
            return False
        if key:
            found[key] = value.decode("latin-1")
    if not found.get("HTTP_HOST"):
        return False
    environ.update(found)
    return True


def _add_headers(environ: dict[str, Any], headers: list[tuple[bytes, bytes]]) -> None:
    """Values as Latin-1, those of a repeated name joined; a head that could mean two things is marked."""
    plain = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    for name, value in plain:
        key = _key(name)
        if key in environ:
            value = f"{environ[key]},{value}"
        if key:
            environ[key] = value
    if not environ.get("HTTP_HOST"):
        environ.pop("HTTP_HOST", None)  # Granian puts an empty one where there is none
    refusal = heads.refusal(plain, environ["RAW_URI"]) or _refusal(environ, plain)
    if refusal is not None:
        environ[heads.REFUSED] = refusal
    else:
        _remember([name for name, _ in headers])


def _remember(names: list[bytes]) -> None:
    """Have ``_add_usual`` know these; whoever sends many others makes it forget them."""
    if len(_keys) > MOST_NAMES:
        _keys.clear()
    for name in names:
        if b"_" not in name and len(name) <= LONGEST_NAME:
            _keys[name] = _key(name.decode("latin-1"))


def _refusal(environ: dict[str, Any], headers: list[tuple[str, str]]) -> str | None:
    """What Granian lets pass and other servers do not."""
    if len(environ["RAW_URI"]) > MAX_LINE or any(len(value) > MAX_LINE for _, value in headers):
        return f"A line of the head must be at most {MAX_LINE} bytes."
    if "HTTP_HOST" not in environ and environ["SERVER_PROTOCOL"] == "HTTP/1.1":
        return "The header Host is missing."
    if sum(name == "host" for name, _ in headers) > 1:
        return "The header host must be given once."
    return None


@lru_cache(maxsize=1024)
def _key(name: str) -> str:
    """The name of a header in an environment; "" for those that do not get there.

    WSGI cannot distinguish an underscore from a hyphen, so names with one are dropped, as gunicorn does.
    """
    if "_" in name or name in HOP_BY_HOP:
        return ""
    return PLAIN.get(name) or "HTTP_" + name.upper().replace("-", "_")


def announces(environ: dict[str, Any]) -> bool:
    """Whether a body comes, or is to come."""
    return UNANNOUNCED in environ or ("CONTENT_LENGTH" in environ and announced(environ) != 0)


async def read(process: Process, environ: dict[str, Any], receive: Receive) -> tuple[bytes, bool]:
    """The body, and whether something of it may be left unread: one larger than any that is allowed is not read.

    What is read is counted by the process. Raises ``TimeoutError``, and ``Gone`` for a body that ends early.
    """
    size = announced(environ)
    if size == 0 or not ("CONTENT_LENGTH" in environ or environ.pop(UNANNOUNCED, False)):
        return b"", False
    if size is not None and size > process.limits.max_body:
        return b"", True  # the application refuses it by its announced size
    return await _read(process, size, receive)


async def _read(process: Process, length: int | None, receive: Receive) -> tuple[bytes, bool]:
    """Read as much as was announced, for Granian reports its end only when it is asked once more."""
    pieces, size, limits, begun = [], 0, process.limits, time.monotonic()
    more = True
    try:
        while more and size <= limits.max_body:
            event = await process.deadlines.bound(receive(), begun + limits.body + size / BODY_RATE)
            if event["type"] != "http.request":
                raise Gone
            pieces.append(event.get("body", b""))
            size += len(pieces[-1])
            process.took(len(pieces[-1]))
            more = event.get("more_body", False) and size != length
    except BaseException:
        process.took(-size)
        raise
    return pieces[0] if len(pieces) == 1 else b"".join(pieces), more
