# SPDX-License-Identifier: Apache-2.0
"""Options of the configuration section [tracing]."""

from importlib.util import find_spec
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from msgspec import Struct, structs

from zq.errors import StartRefused
from zq.http.features import Section
from zq.model.options import Flag, Option, Text

# Path of an OTLP/HTTP receiver for spans.
RECEIVER_PATH: Final = "/v1/traces"
# The packages of the extra.
PACKAGES: Final = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


class TracingOptions(Struct, frozen=True):
    """The options of the section [tracing]."""

    enabled: Flag = False
    """Send OpenTelemetry spans of requests. Requires the extra tracing."""
    endpoint: Text = ""
    """URL of the OTLP/HTTP receiver, such as http://localhost:4318. If it has no path, /v1/traces is added. Empty: the
    environment variables OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_EXPORTER_OTLP_TRACES_ENDPOINT decide."""
    sample: Annotated[float, Option(0, 1)] = 0.01
    """Fraction of requests without a traceparent header that have a span. The flag of the header decides for all other
    requests."""


def _complete(options: TracingOptions, _settings: Any) -> TracingOptions:
    if options.enabled and not all(map(_is_installed, PACKAGES)):
        raise StartRefused("[tracing] enabled requires an extra: pip install 'zq-queue[tracing]'.")
    return structs.replace(options, endpoint=_complete_url(options.endpoint))


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False


def _complete_url(endpoint: str) -> str:
    try:
        url = urlsplit(endpoint)
        is_valid = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        is_valid = False
    if not endpoint:
        return ""
    if not is_valid or not endpoint.isprintable() or " " in endpoint:
        raise StartRefused(
            "[tracing] endpoint must be an http:// or https:// URL with a host and a port from 1 to 65535, such as "
            "http://localhost:4318."
        )
    if "@" in url.netloc:
        raise StartRefused(
            "[tracing] endpoint must not have a user and a password. Set OTEL_EXPORTER_OTLP_HEADERS for credentials."
        )
    return endpoint if url.path.strip("/") else url._replace(path=RECEIVER_PATH).geturl()


SECTION: Final = Section("tracing", TracingOptions, _complete)
