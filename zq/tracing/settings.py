# SPDX-License-Identifier: Apache-2.0
"""Options of the [tracing] configuration section."""

import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Annotated, Any, Final
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct, structs

from zq.errors import StartRefused
from zq.http.features import Section
from zq.model.options import Flag, Option, Text

# Path of an OTLP/HTTP receiver for spans.
RECEIVER_PATH: Final = "/v1/traces"
# Maximum number of spans that wait for their export.
MAX_QUEUED: Final = 2048
# The packages of the extra.
PACKAGES: Final = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")

# Variable that turns OpenTelemetry off in every program.
DISABLED: Final = "OTEL_SDK_DISABLED"
# Variables with the URL of the receiver: for spans, and for all signals, without a path.
TRACES_ENDPOINT, ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"
DEFAULT_ENDPOINT: Final = "http://localhost:4318"
# Largest value of a variable without a smaller bound.
MAX_VALUE: Final = 2**31 - 1
# Variables with an integer, and its bounds. The SDK raises an error for other values.
INTEGERS: Final[Mapping[str, tuple[int, int]]] = {
    "OTEL_BSP_SCHEDULE_DELAY": (1, 3_600_000),
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": (1, MAX_QUEUED),
    "OTEL_ATTRIBUTE_COUNT_LIMIT": (0, MAX_VALUE),
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": (0, MAX_VALUE),
    "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT": (0, MAX_VALUE),
    "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT": (0, MAX_VALUE),
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": (0, MAX_VALUE),
    "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": (0, MAX_VALUE),
    "OTEL_SPAN_EVENT_COUNT_LIMIT": (0, MAX_VALUE),
    "OTEL_SPAN_LINK_COUNT_LIMIT": (0, MAX_VALUE),
}
# Variables with the seconds after which an export fails.
TIMEOUTS: Final = ("OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT")
# Variables with headers, as in "name=value,name=value".
HEADERS: Final = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")
# A header that the SDK accepts. It logs all others, with their secrets.
HEADER: Final = re.compile(
    r"[\x21\x23-\x27\x2a\x2b\x2d\x2e\x30-\x39\x41-\x5a\x5e-\x7a\x7c\x7e]+[ \t]*="
    r"[ \t]*[\x20\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*"
)


class TracingOptions(Struct, frozen=True):
    """The options of the [tracing] section."""

    enabled: Flag = False
    """Send OpenTelemetry spans of requests. Requires the extra tracing."""
    endpoint: Text = ""
    """URL of the OTLP/HTTP receiver, such as http://localhost:4318. If it has no path, /v1/traces is added. Empty: the
    environment variables OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_EXPORTER_OTLP_TRACES_ENDPOINT decide."""
    sample: Annotated[float, Option(0, 1)] = 0.01
    """Fraction of requests without a traceparent header that have a span. The flag of the header decides for all other
    requests."""
    project: Flag = False
    """Add the project to each span of a request, as the attribute zq.project."""


def _complete(options: TracingOptions, _settings: Any) -> TracingOptions:
    endpoint = _add_path("[tracing] endpoint", options.endpoint) if options.endpoint else ""
    if not options.enabled or os.environ.get(DISABLED, "").strip().lower() == "true":
        return structs.replace(options, enabled=False, endpoint=endpoint)
    if not all(map(_is_installed, PACKAGES)):
        raise StartRefused("[tracing] enabled requires an extra: pip install 'zq-queue[tracing]'.")
    _check_variables(os.environ)
    return structs.replace(options, endpoint=endpoint or _standard_endpoint(os.environ))


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False


def _check_variables(variables: Mapping[str, str]) -> None:
    """Check OpenTelemetry's environment variables. Raises ``StartRefused`` for values that the SDK cannot use."""
    for name, (minimum, maximum) in INTEGERS.items():
        value = variables.get(name, "").strip()
        if value and not (value.isdecimal() and len(value) <= len(str(maximum)) and minimum <= int(value) <= maximum):
            raise StartRefused(f"{name} must be an integer from {minimum} to {maximum}.")
    for name in TIMEOUTS:
        if (value := variables.get(name, "")) and not _is_timeout(value):
            raise StartRefused(f"{name} must be a positive number of seconds up to {MAX_VALUE}.")
    for name in HEADERS:
        headers = map(str.strip, variables.get(name, "").split(","))
        if not all(HEADER.fullmatch(header) for header in headers if header):
            raise StartRefused(f"{name} must have the form name=value,name=value with URL-encoded values.")


def _is_timeout(value: str) -> bool:
    try:
        return 0 < float(value) <= MAX_VALUE
    except ValueError:
        return False


def _standard_endpoint(variables: Mapping[str, str]) -> str:
    """Return the receiver's URL according to OpenTelemetry's environment variables."""
    if endpoint := variables.get(TRACES_ENDPOINT):
        _check_url(TRACES_ENDPOINT, endpoint)
        return endpoint
    endpoint = variables.get(ENDPOINT) or DEFAULT_ENDPOINT
    _check_url(ENDPOINT, endpoint)
    return endpoint.removesuffix("/") + RECEIVER_PATH


def _add_path(name: str, endpoint: str) -> str:
    url = _check_url(name, endpoint)
    return endpoint if url.path.strip("/") else url._replace(path=RECEIVER_PATH).geturl()


def _check_url(name: str, endpoint: str) -> SplitResult:
    """Parse the URL of a receiver. Raises ``StartRefused`` if it is invalid or may contain credentials."""
    try:
        url = urlsplit(endpoint)
        is_valid = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or not endpoint.isprintable() or " " in endpoint:
        raise StartRefused(
            f"{name} must be an http:// or https:// URL with a host and a port from 1 to 65535, such as "
            f"{DEFAULT_ENDPOINT}."
        )
    if "@" in url.netloc or "?" in endpoint or "#" in endpoint:
        raise StartRefused(
            f"{name} must not have a user, a password, a query or a fragment. Set OTEL_EXPORTER_OTLP_HEADERS for "
            "credentials."
        )
    return url


SECTION: Final = Section("tracing", TracingOptions, _complete)
