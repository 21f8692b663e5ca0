# SPDX-License-Identifier: Apache-2.0
"""A parser for store URIs, which may name several hosts.

``urllib.parse.urlsplit`` supports only one host. MongoDB URIs may contain brackets after the first host
(``mongodb://a,[::1]:27018``), and some Python versions reject such brackets.
"""

import re
from typing import Final
from urllib.parse import SplitResult

# RFC 3986, appendix B.
PARTS: Final = re.compile(r"(?:([a-z][a-z0-9+.-]*):)?(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?(?:#(.*))?", re.I | re.S)


def split(uri: str) -> SplitResult:
    """Split a URI like ``urlsplit``. Raises ``ValueError`` for unbalanced brackets."""
    found = PARTS.fullmatch(uri)
    if found is None:  # each part may be empty, and the path matches all remaining text
        raise AssertionError("every text has these parts")
    scheme, netloc, path, query, fragment = (part or "" for part in found.groups())
    if any(host.count("[") != host.count("]") for host in netloc.rpartition("@")[2].split(",")):
        raise ValueError("The brackets of a host are not balanced.")
    return SplitResult(scheme.lower(), netloc, path, query, fragment)
