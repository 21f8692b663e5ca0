# SPDX-License-Identifier: Apache-2.0
"""A parser for store URIs, which may name several hosts.

``urllib.parse.urlsplit`` supports only one host, and some Python versions reject brackets after the first host.
"""

import re
from typing import Final
from urllib.parse import SplitResult

# RFC 3986, appendix B.
PARTS: Final = re.compile(r"(?:([a-z][a-z0-9+.-]*):)?(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?(?:#(.*))?", re.I | re.S)
# Placeholder for secrets in responses, such as the credential and the options of a URI.
HIDDEN: Final = "***"


def split(uri: str) -> SplitResult:
    """Split a URI as ``urllib.parse.urlsplit`` does, but allow several hosts."""
    found = PARTS.fullmatch(uri)
    if found is None:  # each part may be empty, and the path matches all remaining text
        raise AssertionError("The pattern PARTS must match every text.")
    scheme, netloc, path, query, fragment = (part or "" for part in found.groups())
    if any(host.count("[") != host.count("]") for host in netloc.rpartition("@")[2].split(",")):
        raise ValueError("The brackets of a host are not balanced.")
    return SplitResult(scheme.lower(), netloc, path, query, fragment)


def parse_address(parts: SplitResult) -> tuple[str, ...]:
    """Return the parts of a URI that identify its store. Credential and options do not belong to them."""
    return parts.scheme, parts.netloc.rpartition("@")[2].lower(), parts.path.rstrip("/")


def mask_uri(uri: str) -> str:
    """Replace credential and options in a URI with ``HIDDEN``. Raises ``ValueError`` for unbalanced brackets."""
    parts = split(uri)
    _, at, hosts = parts.netloc.rpartition("@")
    hosts = ("//" if "://" in uri else "") + (f"{HIDDEN}@" if at else "") + hosts
    return f"{parts.scheme}:{hosts}{parts.path}" + (f"?{HIDDEN}" if parts.query or parts.fragment else "")
