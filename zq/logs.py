# SPDX-License-Identifier: Apache-2.0
"""Structured logs on standard error: a line of text or a JSON object each, with what a request was about.

Bodies never get here, and no passwords: ``without_secrets`` takes them out of URIs, for the command line too. What
``extra`` may carry is listed in ``FIELDS``; anything else of a log record is dropped.
"""

import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

# The logger above all of zq's own.
OWN: Final = __name__.partition(".")[0]
# What a log record may carry besides its sentence.
FIELDS: Final = ("request_id", "project", "queue", "topic", "method", "path", "status", "seconds")
# In a URI, or in what quotes one: who connects, and with which password.
SECRET: Final = re.compile(r"(?<=//)\S*(?=@)|[^\s'\"/]+:(?!//)\S+(?=@)|(?<=password=)[^\s&]+", re.IGNORECASE)


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = _base(record) | _fields(record)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class TextFormatter(logging.Formatter):
    """The moment, the level, the sentence and then the fields as ``name=value``; line breaks are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        base = _base(record)
        fields = "".join(f" {name}={value!r}" for name, value in _fields(record).items())
        line = f"{base['time']} {base['level']} {base['logger']}: {base['message']!s}{fields}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def configure(form: str, level: str) -> None:
    """Send all logs to standard error in the given format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], force=True)
    set_level(level)


def set_level(level: str) -> None:
    """The least level logged; of what others than zq log at least INFO, since drivers log bodies below it."""
    logging.getLogger(OWN).setLevel(level)
    logging.getLogger("__main__").setLevel(level)  # zq.serving.server, as python -m runs it
    logging.getLogger().setLevel(max(logging.getLevelName(level), logging.INFO))


def _base(record: logging.LogRecord) -> dict[str, Any]:
    moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    return {"time": moment, "level": record.levelname, "logger": record.name, "message": record.getMessage()}


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: record.__dict__[name] for name in FIELDS if record.__dict__.get(name) not in (None, "")}


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
