# SPDX-License-Identifier: Apache-2.0
"""Passwords in URIs: whether there is one, and texts without them. For the server and the command line."""

import re
from typing import Final
from urllib.parse import parse_qsl

SECRET: Final = re.compile(r"(?<=//)\S*(?=@)|[^\s'\"/]+:(?!//)\S+(?=@)|(?<=password=)[^\s&]+", re.IGNORECASE)
"""In a URI, or in what quotes one: who connects, and with which password."""


def holds_password(uri: str) -> bool:
    """Whether a store's URI holds a password, at its host or among its options."""
    place, _, options = uri.partition("?")
    if place.startswith("rocksdb:"):
        return False
    login = place.rpartition("@")[0].rpartition("//")[2]
    return ":" in login or any("password" in name.lower() for name, _ in parse_qsl(options))


def without_secrets(text: str) -> str:
    """A text for people, in which users and passwords of URIs are stars."""
    return SECRET.sub("***", text)
