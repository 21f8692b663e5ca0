# SPDX-License-Identifier: Apache-2.0
"""Translation of an ASGI scope into a WSGI environment (PEP 3333), and checks of the request's head.

This module checks raw headers, before WSGI merges their names. It stores an error sentence in the environment, with
which ``zq.http.admission`` refuses the request.
"""

import io
import sys
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from zq.http import heads

# Headers whose keys in the environment have no ``HTTP_``.
PLAIN: Final = {"content-type": "CONTENT_TYPE", "content-length": "CONTENT_LENGTH"}
# Hop-by-hop headers. ``Transfer-Encoding`` is not among them, because it announces a body, which may be empty.
HOP_BY_HOP: Final = frozenset({"connection", "keep-alive", "te", "trailer", "upgrade"})
# The largest size in bytes of a request target or a header's value.
MAX_LINE: Final = 8190
# The largest number and length of cached header names.
MAX_NAMES: Final = 1024
MAX_NAME_LENGTH: Final = 64
# Constant entries of every environment.
CONSTANT: Final[dict[str, Any]] = {
    # Always empty: neither a client nor a proxy may set a path prefix.
    "SCRIPT_NAME": "",
    "wsgi.version": (1, 0),
    "wsgi.errors": sys.stderr,
    "wsgi.multithread": True,
    "wsgi.multiprocess": False,
    "wsgi.run_once": False,
    # The body has been read completely.
    "wsgi.input_terminated": True,
}

# The keys of header names from well-formed heads, none with an underscore; see ``_key``.
_keys: dict[bytes, str] = {}


def environment(scope: dict[str, Any]) -> dict[str, Any]:
    """Return the environment of a request without its body; see ``add_body``."""
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
    return environ


def add_body(environ: dict[str, Any], body: bytes) -> None:
    """Add the body and its length, even if the head did not announce a length."""
    environ["wsgi.input"] = io.BytesIO(body)
    if body:
        environ["CONTENT_LENGTH"] = str(len(body))


def announced_size(environ: dict[str, Any]) -> int | None:
    """Return the announced size of the body: 0 without a body, ``None`` if the size is not announced.

    A number with more than 20 digits is cut to 20 digits, which exceed every limit.
    """
    length = environ.get("CONTENT_LENGTH")
    if length is None:
        return None if "HTTP_TRANSFER_ENCODING" in environ else 0
    return int(length.lstrip("0")[:20] or "0") if length.isdecimal() else None


def _add_usual(environ: dict[str, Any], headers: list[tuple[bytes, bytes]]) -> bool:
    """Add the headers if they are certainly well formed: known names without repetitions, and a host.

    Otherwise return False, and add nothing.
    """
    found: dict[str, str] = {}
    for name, value in headers:
        key = _keys.get(name)
        if key is None or key in found or len(value) > MAX_LINE:
            return False
        if key:
            found[key] = value.decode("latin-1")
    if not found.get("HTTP_HOST") or "HTTP_TRANSFER_ENCODING" in found:
        return False
    environ.update(found)
    return True


def _add_headers(environ: dict[str, Any], headers: list[tuple[bytes, bytes]]) -> None:
    """Add the headers as Latin-1, with the values of repeated names joined; mark an ambiguous head."""
    plain = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    for name, value in plain:
        key = _key(name)
        if key in environ:
            value = f"{environ[key]},{value}"
        if key:
            environ[key] = value
    if not environ.get("HTTP_HOST"):
        environ.pop("HTTP_HOST", None)  # Granian sets an empty one if the header is missing
    refusal = heads.refusal(plain, environ["RAW_URI"]) or _refusal(environ, plain)
    if refusal is not None:
        environ[heads.REFUSED] = refusal
    else:
        _remember([name for name, _ in headers])


def _remember(names: list[bytes]) -> None:
    """Cache header names for ``_add_usual``. If there are more than ``MAX_NAMES``, clear the cache."""
    if len(_keys) > MAX_NAMES:
        _keys.clear()
    for name in names:
        if b"_" not in name and len(name) <= MAX_NAME_LENGTH:
            _keys[name] = _key(name.decode("latin-1"))


def _refusal(environ: dict[str, Any], headers: list[tuple[str, str]]) -> str | None:
    """Return the error of a malformed head that Granian accepts, or None."""
    if len(environ["RAW_URI"]) > MAX_LINE or any(len(value) > MAX_LINE for _, value in headers):
        return f"A line of the head must be at most {MAX_LINE} bytes."
    if "HTTP_HOST" not in environ and environ["SERVER_PROTOCOL"] == "HTTP/1.1":
        return "The header Host is missing."
    coding = environ.get("HTTP_TRANSFER_ENCODING")
    if coding is not None and (coding.lower() != "chunked" or "CONTENT_LENGTH" in environ):
        return "The header Transfer-Encoding must be chunked, and without a Content-Length."
    return None


@lru_cache(maxsize=1024)
def _key(name: str) -> str:
    """Return the environment key of a header, or "" for a header that is dropped.

    WSGI cannot distinguish an underscore from a hyphen, so names with an underscore are dropped.
    """
    if "_" in name or name in HOP_BY_HOP:
        return ""
    return PLAIN.get(name) or "HTTP_" + name.upper().replace("-", "_")
