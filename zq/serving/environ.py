# SPDX-License-Identifier: Apache-2.0
"""Translation of an ASGI scope to a WSGI environment (PEP 3333), with checks of the request line and headers.

The checks use the raw headers, because WSGI merges header names. If a check fails, the error sentence is stored in the
environment, and ``zq.http.admission`` rejects the request.
"""

import io
import sys
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from zq.http import heads

# Environment keys of headers without the prefix ``HTTP_``.
PLAIN: Final = {"content-type": "CONTENT_TYPE", "content-length": "CONTENT_LENGTH"}
# Hop-by-hop headers, which are dropped. ``Transfer-Encoding`` is kept, because it indicates a body.
HOP_BY_HOP: Final = frozenset({"connection", "keep-alive", "te", "trailer", "upgrade"})
# Maximum size in bytes of a request target or a header value.
MAX_LINE: Final = 8190
# Maximum number and maximum length of cached header names.
MAX_NAMES: Final = 1024
MAX_NAME_LENGTH: Final = 64
# Entries of every environment.
CONSTANT: Final[dict[str, Any]] = {
    # Neither a client nor a proxy may set a path prefix.
    "SCRIPT_NAME": "",
    "wsgi.version": (1, 0),
    "wsgi.errors": sys.stderr,
    "wsgi.multithread": True,
    "wsgi.multiprocess": False,
    "wsgi.run_once": False,
    # The edge has read the complete body.
    "wsgi.input_terminated": True,
}

# Environment keys by header name, for names from valid heads; see ``_key``. Names with an underscore are not cached.
_keys: dict[bytes, str] = {}


def environment(scope: dict[str, Any]) -> dict[str, Any]:
    """Build the WSGI environment of a request. ``add_body`` adds the body."""
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
    """Add the body and its actual length to the environment."""
    environ["wsgi.input"] = io.BytesIO(body)
    if body:
        environ["CONTENT_LENGTH"] = str(len(body))


def announced_size(environ: dict[str, Any]) -> int | None:
    """Return the size of the body in bytes according to ``Content-Length``.

    If the request has no body, return 0. If the size of the body is unknown, return ``None``.
    """
    length = environ.get("CONTENT_LENGTH")
    if length is None:
        return None if "HTTP_TRANSFER_ENCODING" in environ else 0
    # A number of 20 digits exceeds every limit. ``int`` rejects numbers with very many digits.
    return int(length.lstrip("0")[:20] or "0") if length.isdecimal() else None


def _add_usual(environ: dict[str, Any], headers: list[tuple[bytes, bytes]]) -> bool:
    """Add the headers to ``environ`` without checks if every header is already known to be valid (fast path).

    Return whether the headers were added. If not, ``environ`` is unchanged, and the caller must call ``_add_headers``,
    which checks each header.
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
    """Add all headers, with repeated headers joined by commas. If a header is not valid, store the error."""
    plain = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    for name, value in plain:
        key = _key(name)
        if key in environ:
            value = f"{environ[key]},{value}"
        if key:
            environ[key] = value
    if not environ.get("HTTP_HOST"):
        environ.pop("HTTP_HOST", None)  # Granian sets an empty one if the header is missing
    refusal = heads.find_head_error(plain, environ["RAW_URI"]) or _refusal(environ, plain)
    if refusal is not None:
        environ[heads.ERROR_KEY] = refusal
    else:
        _remember([name for name, _ in headers])


def _remember(names: list[bytes]) -> None:
    if len(_keys) > MAX_NAMES:
        _keys.clear()
    for name in names:
        if b"_" not in name and len(name) <= MAX_NAME_LENGTH:
            _keys[name] = _key(name.decode("latin-1"))


def _refusal(environ: dict[str, Any], headers: list[tuple[str, str]]) -> str | None:
    """Check line lengths, ``Host`` and ``Transfer-Encoding``, because Granian does not check them.

    Return the error, or ``None`` if the request is valid.
    """
    if len(environ["RAW_URI"]) > MAX_LINE or any(len(value) > MAX_LINE for _, value in headers):
        return f"Each line of the request head must be at most {MAX_LINE} bytes."
    if "HTTP_HOST" not in environ and environ["SERVER_PROTOCOL"] == "HTTP/1.1":
        return "The Host header is missing."
    coding = environ.get("HTTP_TRANSFER_ENCODING")
    if coding is not None and (coding.lower() != "chunked" or "CONTENT_LENGTH" in environ):
        return "The Transfer-Encoding header must be chunked, without a Content-Length header."
    return None


@lru_cache(maxsize=1024)
def _key(name: str) -> str:
    """Return the environment key of a header, or "" if the application must not receive the header.

    Headers for a single connection are omitted. Names with an underscore are also omitted, because WSGI uses one key
    for names with an underscore and names with a hyphen.
    """
    if "_" in name or name in HOP_BY_HOP:
        return ""
    return PLAIN.get(name) or "HTTP_" + name.upper().replace("-", "_")
