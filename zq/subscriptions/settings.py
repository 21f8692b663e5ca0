# SPDX-License-Identifier: Apache-2.0
"""Options of the [notification] configuration section, and the options for subscriptions in [transport]."""

import ipaddress
import re
from collections.abc import Iterator
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from msgspec import Struct, structs

from zq.errors import StartRefused
from zq.http.features import Section
from zq.model import store_uri
from zq.model.options import Flag, Option, Port, Text, Texts

# Default ports by store URI scheme.
STORE_PORTS: Final = {"redis": 6379, "rediss": 6379, "mongodb": 27017, "mongodb+srv": 27017}
TYPES: Final = ("http", "https", "mailto", "trust+http", "trust+https")
# Default templates of confirmation mails, as a list of name:value members like in Zaqar. Values may contain commas.
SUBSCRIBE_MAIL: Final = (
    "topic:Confirm your subscription,sender:,body:Someone has subscribed this address to the queue {0} of the project "
    "{1}. To receive its messages, open this link: {2} Otherwise, ignore this mail."
)
UNSUBSCRIBE_MAIL: Final = (
    "topic:Subscription cancelled,sender:,body:You no longer receive messages of the queue {0} of the project {1}. To "
    "receive them again, open this link: {2}"
)
TEMPLATE_MEMBERS: Final = ("topic", "sender", "body")
_MEMBER: Final = re.compile(rf"(?:^|,)\s*({'|'.join(TEMPLATE_MEMBERS)})\s*:")


class NotificationOptions(Struct, frozen=True, kw_only=True):
    """The options of the [notification] section, with the options of subscriptions in [transport]."""

    deliver: Flag = True
    """Deliver notifications from this server's processes."""
    require_confirmation: Flag = True
    """Send a subscriber only a confirmation request until it has confirmed. Mail always requires confirmation."""
    public_url: Text = ""
    """Public URL of this service for subscribers, such as https://queues.example.org."""
    allowed_networks: Annotated[tuple[str, ...], Option(sample=("10.1.0.0/16",))] = ()
    """Non-public networks in which subscribers are allowed, including this server's own."""
    allowed_ports: Texts = ()
    """Allowed subscriber ports below 1024, in addition to 80 and 443."""
    rate: Annotated[float, Option(0)] = 10.0
    """Maximum deliveries per second to one subscription. 0: no limit."""
    keep: Annotated[int, Option(60, 1_209_600)] = 345_600
    """Seconds for which pending and failed deliveries are kept."""
    external_confirmation_url: Text = ""
    """URL of the confirmation page that confirmation mails link to; it receives Signature, Methods, Paths, Project,
    Expires, Url and Queue. Empty: mail subscriptions are unavailable."""
    subscription_confirmation_email_template: Text = SUBSCRIBE_MAIL
    """Confirmation mail to a new subscriber: topic, sender (empty: the first of mail_senders) and body. In the body,
    {0} is the queue, {1} its project and {2} the link."""
    unsubscribe_confirmation_email_template: Text = UNSUBSCRIBE_MAIL
    """Mail to a subscriber that has unsubscribed, with the same fields."""
    trust_http: Flag = False
    """Send trust tokens to trust+http targets, even without TLS."""
    trust_targets: Texts = ()
    """URL prefixes that may receive trust tokens, in addition to the services in Keystone's catalogue."""
    smtp_mode: Annotated[str, Option(choices=("third_part", "self_local"))] = "third_part"
    """Mail transport: a command (third_part) or an SMTP server (self_local)."""
    smtp_command: Text = "/usr/sbin/sendmail -t -oi"
    """For third_part: command that sends a mail from its standard input."""
    smtp_host: Text = ""
    """For self_local: host of the SMTP server."""
    smtp_port: Port = 465
    """For self_local: port of the SMTP server."""
    smtp_tls: Flag = True
    """For self_local: connect with TLS from the beginning."""
    smtp_user_name: Text = ""
    """For self_local: user name; empty: no login."""
    smtp_user_password: Annotated[str, Option(secret=True)] = ""
    """For self_local: password."""
    mail_senders: Texts = ()
    """Addresses that a subscription may use in options.from."""
    default_subscription_ttl: Annotated[int, Option(60, 1 << 40, section="transport")] = 3600
    """Default TTL of a subscription in seconds."""
    subscriber_types: Annotated[tuple[str, ...], Option(section="transport")] = TYPES
    """URI schemes that subscribers may have."""
    joining: tuple[str, ...] = ()
    """The topic, sender and body of the mail to a new subscriber."""
    leaving: tuple[str, ...] = ()
    """The topic, sender and body of the mail to a subscriber that has unsubscribed."""
    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()
    """The allowed networks, parsed."""
    ports: tuple[int, ...] = ()
    """The allowed ports, parsed."""
    own: tuple[int, ...] = ()
    """The ports at which this service listens."""
    stores: tuple[tuple[str, int], ...] = ()
    """The hosts and ports of this service's stores."""


def _complete(options: NotificationOptions, settings: Any) -> NotificationOptions:
    types = tuple(each.lower() for each in options.subscriber_types)
    if unknown := set(types) - set(TYPES):
        raise StartRefused(f"[transport] subscriber_types may contain {', '.join(TYPES)}, not {min(unknown)!r}.")
    local = options.smtp_mode == "self_local"
    if local and not options.smtp_host:
        raise StartRefused("[notification] smtp_mode = self_local needs smtp_host.")
    return structs.replace(
        options,
        subscriber_types=types,
        joining=_parse_template("subscription_confirmation_email_template", options, SUBSCRIBE_MAIL),
        leaving=_parse_template("unsubscribe_confirmation_email_template", options, UNSUBSCRIBE_MAIL),
        networks=tuple(map(_parse_network, options.allowed_networks)),
        ports=tuple(map(_parse_port, options.allowed_ports)),
        own=tuple(filter(None, (settings.server.port, settings.metrics.port))),
        stores=tuple(_list_stores(settings)),
        smtp_host=options.smtp_host if local else "",
    )


def _parse_members(text: str) -> dict[str, str]:
    first, *parts = _MEMBER.split(text)
    return {} if first.strip() else {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}


def _parse_template(option: str, options: NotificationOptions, default: str) -> tuple[str, str, str]:
    if not (values := _parse_members(getattr(options, option))):
        raise StartRefused(
            f"[notification] {option} must have the form topic:A subject,sender:a@example.org,body:A text."
        )
    topic, sender, body = ({**_parse_members(default), **values}[name] for name in TEMPLATE_MEMBERS)
    try:
        body.format("", "", "")
    except (AttributeError, LookupError, ValueError):
        raise StartRefused(
            f"[notification] {option} must have a body without braces except in {{0}}, {{1}} and {{2}}."
        ) from None
    if not (topic + sender).isprintable():
        raise StartRefused(f"[notification] {option} must have no line breaks in topic and sender.")
    return topic, sender, body


def _list_stores(settings: Any) -> Iterator[tuple[str, int]]:
    """Yield the host and port of each server that stores data."""
    pools = settings.pooling.hosts if settings.pooling else ()
    named = [settings.storage.uri, *(f"{scheme}://{host}" for host in pools for scheme in ("redis", "mongodb"))]
    for uri in named:
        default = STORE_PORTS.get(uri.partition(":")[0])
        for host in store_uri.split(uri).netloc.rpartition("@")[2].split(",") if default else ():
            try:
                parts = urlsplit(f"//{host}")
                name, port = parts.hostname, parts.port
            except ValueError:
                continue  # the driver will reject the URI
            if name:
                yield name, port or default or 0


def _parse_network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        raise StartRefused(
            f"[notification] allowed_networks must contain networks such as 10.1.0.0/16, not {text!r}."
        ) from None


def _parse_port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        raise StartRefused(f"[notification] allowed_ports must contain ports from 1 to 65535, not {text!r}.")
    return int(text)


SECTION: Final = Section("notification", NotificationOptions, _complete)
