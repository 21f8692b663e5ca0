# SPDX-License-Identifier: Apache-2.0
"""Syntax checks of subscriber URIs and options (contract section 9.2)."""

import re
from email.errors import MessageError
from email.headerregistry import Address
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from zq import wire
from zq.core.metadata import check_retry_policy
from zq.errors import Invalid
from zq.model.limits import check_nesting
from zq.model.store_uri import HIDDEN
from zq.wire.subscriptions import MAX_URI

TYPES: Final = ("http", "https", "mailto", "trust+http", "trust+https")
# Prefix of subscribers that receive a Keystone token with each delivery.
TRUST: Final = "trust+"
# Maximum size of the options as JSON, in bytes.
MAX_OPTIONS: Final = 16384
# Maximum size of ``post_headers`` as JSON in bytes, and maximum number of headers.
MAX_HEADER_BYTES: Final = 4096
MAX_HEADERS: Final = 20
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_UNPRINTABLE_CHARACTER: Final = re.compile(r"[\x00-\x20\x7f]")
_RESERVED_HEADERS: Final = frozenset(
    [
        "host",
        "connection",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "expect",
        "x-auth-token",
    ]
)
_RESERVED_PREFIXES: Final = ("content-", "webhook-", "proxy-", "zq-")


def check_subscriber(uri: object, types: tuple[str, ...] = TYPES) -> str:
    """Return the subscriber's URI. Raises ``Invalid`` if it is malformed or its scheme is not in ``types``."""
    if uri is None:
        raise Invalid("Missing parameter subscriber: it must be a URI.")
    if not isinstance(uri, str) or not uri:
        raise Invalid("subscriber must be a URI.")
    if len(uri) > MAX_URI:
        raise Invalid(f"subscriber must have at most {MAX_URI} characters, not {len(uri)}.")
    scheme = uri.partition(":")[0].lower()
    if ":" not in uri or scheme not in types:
        raise Invalid(f"The scheme of subscriber must be supported in the list {', '.join(types)}.")
    if _UNPRINTABLE_CHARACTER.search(uri):
        raise Invalid("subscriber must not contain spaces or control characters.")
    if scheme == "mailto":
        parse_mailto(uri)
    else:
        _check_url(uri.removeprefix(TRUST))
    return uri


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError:
        raise Invalid("subscriber is not a valid URL.") from None
    if not host or not url.partition(":")[2].startswith("//"):
        raise Invalid("subscriber must contain a host.")
    if "@" in parts.netloc or "\\" in url:
        raise Invalid("subscriber must not contain a user, a password or a backslash.")


def parse_mailto(uri: str) -> tuple[str, str]:
    """Return the mail address and the subject of a ``mailto`` URI. Raises ``Invalid`` if the URI is malformed."""
    path, _, query = uri.partition(":")[2].partition("?")
    to = unquote(path)
    try:
        address = Address(addr_spec=to)
    except (ValueError, IndexError, MessageError):
        raise Invalid("subscriber must contain exactly one email address.") from None
    if not address.username or not address.domain or "," in to or not to.isprintable():
        raise Invalid("subscriber must contain exactly one email address.")
    given = {name.lower(): values[0] for name, values in parse_qs(query, max_num_fields=20).items()}
    return to, _printable("the subject of subscriber", given.get("subject", ""))


def check_options(options: object) -> dict[str, Any]:
    """Return the options, or {} if they are None. Raises ``Invalid`` if an option is not valid."""
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise Invalid("options must be a dict (a JSON object).")
    check_nesting("options", options)
    if len(size := wire.encode(options)) > MAX_OPTIONS:
        raise Invalid(f"options must have at most {MAX_OPTIONS} bytes, not {len(size)}.")
    check_retry_policy(options.get("_retry_policy"), "options._retry_policy")
    _check_headers(options.get("post_headers"))
    if not isinstance(options.get("post_data", ""), str):
        raise Invalid("options.post_data must be a string.")
    if options.get("trust_id", HIDDEN) != HIDDEN:
        # The service user is the trustee of all trusts, so a caller could use the roles of another project.
        raise Invalid("options must not contain trust_id: the server creates the trust.")
    for name in ("from", "subject"):
        _printable(f"options.{name}", options.get(name, ""))
    return options


def _check_headers(headers: object) -> None:
    if headers is None:
        return
    if not isinstance(headers, dict):
        raise Invalid("options.post_headers must be an object.")
    if len(headers) > MAX_HEADERS or len(wire.encode(headers)) > MAX_HEADER_BYTES:
        raise Invalid(f"options.post_headers must have at most {MAX_HEADERS} headers and {MAX_HEADER_BYTES} bytes.")
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name):
            raise Invalid(f"options.post_headers must have HTTP header names; {name[:64]!r} is not one.")
        if name.lower() in _RESERVED_HEADERS or name.lower().startswith(_RESERVED_PREFIXES):
            raise Invalid(f"options.post_headers must not contain {name}: the server sets or forbids it.")
        _printable(f"options.post_headers.{name}", value)


def _printable(field: str, value: object) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise Invalid(f"{field} must be a string without control characters.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Invalid(f"{field} must be text.") from None
    return value


def with_trust(options: dict[str, Any], trust: str) -> dict[str, Any]:
    """Return a copy of the options with the trust id ``trust``, or without a trust id if ``trust`` is ""."""
    given = {name: value for name, value in options.items() if name != "trust_id"}
    return given | ({"trust_id": trust} if trust else {})


def drop_masked_headers(options: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the options for a new subscriber. The copy has no headers whose values are masked."""
    result = {name: value for name, value in options.items() if name != "post_headers"}
    if isinstance(headers := options.get("post_headers"), dict):
        given = {name: value for name, value in headers.items() if value != HIDDEN}
        return result | ({"post_headers": given} if given else {})
    return result


def restore_masked_headers(options: dict[str, Any], former: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of ``options`` in which each masked header value is replaced by its value in ``former``."""
    result = dict(options)
    if isinstance(headers := options.get("post_headers"), dict):
        kept = former.get("post_headers") or {}
        result["post_headers"] = {
            name: kept.get(name, value) if value == HIDDEN else value for name, value in headers.items()
        }
    return result
