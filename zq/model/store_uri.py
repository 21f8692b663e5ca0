# SPDX-License-Identifier: Apache-2.0
"""The parts of a store's URI, which may name several hosts.

``urllib.parse.urlsplit`` reads URLs, which have one: newer Pythons, and older ones that distributions mend, refuse
brackets behind the first host, as MongoDB's URIs have them (``mongodb://a,[::1]:27018``).
"""

import re
from typing import Final
from urllib.parse import SplitResult

# RFC 3986, appendix B.
PARTS: Final = re.compile(r"(?:([a-z][a-z0-9+.-]*):)?(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?(?:#(.*))?", re.I | re.S)


def split(uri: str) -> SplitResult:
    """The parts, as ``urlsplit`` gives them. Raises ``ValueError`` for brackets that do not pair."""
    found = PARTS.fullmatch(uri)
    if found is None:  # each part may be empty, and the path holds what none of them is
        raise AssertionError("every text has these parts")
    scheme, netloc, path, query, fragment = (part or "" for part in found.groups())
    if any(host.count("[") != host.count("]") for host in netloc.rpartition("@")[2].split(",")):
        raise ValueError("The brackets of a host do not pair.")
    return SplitResult(scheme.lower(), netloc, path, query, fragment)
