# SPDX-License-Identifier: Apache-2.0
"""Passwords in URIs: whether there is one, and texts without them."""

import re
from typing import Final
from urllib.parse import parse_qsl, urlsplit

SECRET: Final = re.compile(r"(?<=//)\S*(?=@)|(?<=password=)[^\s&]+", re.IGNORECASE)
"""In a URI, or in what quotes one: who connects, and with which password."""


def holds_password(uri: str) -> bool:
    """Whether a store's URI holds a password, at its host or among its options."""
    try:
        parts = urlsplit(uri)
    except ValueError:  # no URI: whatever stands before an @
        return "@" in uri
    login = parts.netloc.rpartition("@")[0]
    return ":" in login or any("password" in name.lower() for name, _ in parse_qsl(parts.query))


def without_secrets(text: str) -> str:
    """A text for people, in which users and passwords of URIs are stars."""
    return SECRET.sub("***", text)
