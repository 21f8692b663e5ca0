# SPDX-License-Identifier: Apache-2.0
"""Structured logs on standard error: one line of text or JSON per record, with fields of the request.

Logs never contain bodies or passwords. A field in ``extra`` is logged only if its name is in ``FIELDS``.
"""

import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

# Name of the root of zq's own loggers.
OWN: Final = __name__.partition(".")[0]
# Fields that a log record may have in addition to its message.
FIELDS: Final = (
    *("request_id", "trace_id", "project", "queue", "topic", "method", "path", "route", "status"),
    *("seconds", "store_seconds", "waited_seconds"),
)
# User, password and session token of Amazon in a URI, or in text that quotes a URI. The mechanism properties of MongoDB
# contain the session token.
SECRET: Final = re.compile(
    r"(?<=//)\S*(?=@)|[^\s'\"/]+:(?!//)\S+(?=@)|(?<=password=)[^\s&]+|(?<=authmechanismproperties=)[^\s&]+",
    re.IGNORECASE,
)


class JsonFormatter(logging.Formatter):
    """A formatter that writes one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line = _base(record) | _fields(record)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class TextFormatter(logging.Formatter):
    """A formatter that writes time, level, message and fields (``name=value``) on one escaped line."""

    def format(self, record: logging.LogRecord) -> str:
        base = _base(record)
        fields = "".join(f" {name}={value!r}" for name, value in _fields(record).items())
        line = f"{base['time']} {base['level']} {base['logger']}: {base['message']!s}{fields}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def configure(form: str, level: str) -> None:
    """Send all logs to standard error in the given format, "json" or "text"."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], force=True)
    set_level(level)


def set_level(level: str) -> None:
    """Set the minimum level of zq's loggers."""
    logging.getLogger(OWN).setLevel(level)
    logging.getLogger("__main__").setLevel(level)  # the logger of zq.serving.server when run with python -m
    logging.getLogger().setLevel(max(logging.getLevelName(level), logging.INFO))


def _base(record: logging.LogRecord) -> dict[str, Any]:
    moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    return {"time": moment, "level": record.levelname, "logger": record.name, "message": record.getMessage()}


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: record.__dict__[name] for name in FIELDS if record.__dict__.get(name) not in (None, "")}


def holds_password(uri: str) -> bool:
    """Return whether the authority or the options of a store URI contain a password or a session token."""
    place, _, options = uri.partition("?")
    if place.startswith("rocksdb:"):
        return False
    login = place.rpartition("@")[0].rpartition("//")[2]
    return ":" in login or any(
        "password" in name.lower() or "aws_session_token" in value.lower()
        for name, value in parse_qsl(options.replace(";", "&"))
    )


def without_secrets(text: str) -> str:
    """Mask the users and passwords of URIs in a text."""
    return SECRET.sub("***", text)
