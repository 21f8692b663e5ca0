# SPDX-License-Identifier: Apache-2.0
"""HTTP resources for the console's HTML document and static files.

File paths contain a version, so browsers can cache them forever. URLs are relative, so the console works behind a proxy
that adds a path prefix. There is no build step; the server removes comments and indentation from JavaScript.
"""

import base64
import gzip
import html
import json
import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

import falcon

from zq.http.context import Request
from zq.http.tenant import Audience

ROOT: Final = Path(__file__).parent / "static"
# File name of the HTML document.
DOCUMENT: Final = "index.html"
# Media types by file extension. Files with other extensions are not served.
MEDIA: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Path prefix of third-party files, which are served unchanged.
VENDOR_FOLDER: Final = "vendor/"
# Comments that fill entire lines, and indentation.
OMITTED: Final = re.compile(rb"^[ ]*(?://[^\n]*|/\*\*(?:[^*]|\*(?!/))*\*/)$|^[ ]+", re.MULTILINE)
# Number of hexadecimal digits of a version.
DIGITS: Final = 12
# Security headers of the document, in addition to the content security policy.
HEADERS: Final = {
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
# Content security policy. ``{hash}`` is that of the import map, the only inline script: it cannot be an external file.
POLICY: Final = (
    "default-src 'none'; script-src 'self' 'sha256-{hash}'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
# Import map: paths of third-party modules by import name.
IMPORTS: Final = {
    "preact": "vendor/preact.mjs",
    "preact/hooks": "vendor/hooks.mjs",
    "htm": "vendor/htm.mjs",
}
# The header Cache-Control of a file at the path of its version. Browsers cache the file for a year.
FOREVER: Final = "public, max-age=31536000, immutable"


class File(NamedTuple):
    """A static file. ``packed`` is the content compressed with gzip."""

    media: str
    raw: bytes
    packed: bytes


class Tree(NamedTuple):
    """The console's document and static files. The version is a hash of their contents."""

    version: str
    document: str
    files: Mapping[str, File]


def read_tree(root: Path = ROOT) -> Tree:
    """Read and compress the console's files."""
    paths = sorted(path for path in root.rglob("*") if path.suffix in MEDIA or path.name == DOCUMENT)
    contents = {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}
    digest = sha256()
    for name, raw in contents.items():
        digest.update(b"%s\0%d\0%s" % (name.encode(), len(raw), raw))
    document = contents.pop(DOCUMENT).decode()
    files = {name: _file(name, raw) for name, raw in contents.items()}
    return Tree(digest.hexdigest()[:DIGITS], document, files)


def _file(name: str, raw: bytes) -> File:
    if name.endswith(".js") and not name.startswith(VENDOR_FOLDER):
        raw = OMITTED.sub(lambda omitted: b"\n" * omitted[0].count(b"\n"), raw)
    return File(MEDIA[Path(name).suffix], raw, gzip.compress(raw, 9, mtime=0))


class _Static:
    audience = Audience.PROBE
    open = True


class ConsoleRedirect(_Static):
    """``/console``: a relative redirect, which works behind a proxy that adds a path prefix."""

    def on_get(self, _req: Request, resp: falcon.Response) -> None:
        resp.status = falcon.HTTP_308
        resp.location = "console/"

    on_head = on_get


class ConsoleDocument(_Static):
    """``/console/``: the HTML document."""

    def __init__(self, tree: Tree, read_only: bool, grafana: str) -> None:
        imports = json.dumps({"imports": {name: f"./{tree.version}/{path}" for name, path in IMPORTS.items()}})
        scripts = [name for name in tree.files if name.endswith((".js", ".mjs"))]
        modules = [name for name in scripts if f'src="{{{{tree}}}}/{name}"' not in tree.document]
        preloads = [f'<link rel="modulepreload" href="{tree.version}/{name}">' for name in modules]
        text = tree.document
        for mark, value in (
            ("{{imports}}", imports),
            ("{{modules}}", "\n".join(preloads)),
            ("{{tree}}", tree.version),
            ("{{read_only}}", "yes" if read_only else "no"),
            ("{{grafana}}", html.escape(grafana)),
        ):
            text = text.replace(mark, value)
        self._raw = text.encode()
        self._packed = gzip.compress(self._raw, 9, mtime=0)
        self._etag = f'"{sha256(self._raw).hexdigest()[:16]}"'
        allowed = base64.b64encode(sha256(imports.encode()).digest()).decode()
        self._headers = HEADERS | {"Content-Security-Policy": POLICY.format(hash=allowed)}

    def on_get(self, req: Request, resp: falcon.Response) -> None:
        resp.set_headers(self._headers | {"Cache-Control": "no-cache", "ETag": self._etag})
        _send(req, resp, falcon.MEDIA_HTML, self._raw, self._packed, self._etag)

    on_head = on_get


class StaticFiles(_Static):
    """``/console/{tree}/…``: a static file. The response is the current file, even if ``tree`` is another version."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def on_get(self, req: Request, resp: falcon.Response, tree: str, file: str) -> None:
        found = self._tree.files.get(file)
        if found is None:
            raise falcon.HTTPNotFound(description="The console has no such file.")
        resp.set_header("Cache-Control", FOREVER if tree == self._tree.version else "no-store")
        resp.set_header("Cross-Origin-Resource-Policy", "same-origin")
        etag = f'"{self._tree.version}"'
        if tree == self._tree.version:
            resp.set_header("ETag", etag)
        _send(req, resp, found.media, found.raw, found.packed, etag)

    on_head = on_get


def _send(req: Request, resp: falcon.Response, media: str, raw: bytes, packed: bytes, etag: str) -> None:
    resp.set_header("Vary", "Accept-Encoding")
    if etag in (req.get_header("If-None-Match") or ""):
        resp.status = falcon.HTTP_304
        return
    resp.content_type = media
    if "gzip" in (req.get_header("Accept-Encoding") or ""):
        resp.set_header("Content-Encoding", "gzip")
        raw = packed
    resp.data = raw
