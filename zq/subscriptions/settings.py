# SPDX-License-Identifier: Apache-2.0
"""Options of the configuration section [notification], and the options for subscriptions in [transport]."""

import ipaddress
import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct
from oslo_config import cfg

from zq.errors import StartRefused
from zq.http.features import Section
from zq.model import store_uri

# Default ports by store URI scheme.
STORE_PORTS: Final = {"redis": 6379, "rediss": 6379, "mongodb": 27017, "mongodb+srv": 27017}
TYPES: Final = ("http", "https", "mailto", "trust+http", "trust+https")
# Default templates of confirmation mails, as a list of name:value members like in Zaqar. Values may contain commas.
SUBSCRIBE_MAIL: Final = (
    "topic:Do you want the messages of a queue?,sender:,body:Somebody asks that messages of the queue {0} of the "
    "project {1} be sent to you. If you want them, follow this link: {2} If not, do nothing."
)
UNSUBSCRIBE_MAIL: Final = (
    "topic:You get no more messages of a queue,sender:,body:Nothing of the queue {0} of the project {1} is sent to "
    "you any more. If you want its messages again, follow this link: {2}"
)
TEMPLATE_MEMBERS: Final = ("topic", "sender", "body")
_MEMBER: Final = re.compile(rf"(?:^|,)\s*({'|'.join(TEMPLATE_MEMBERS)})\s*:")
SUBSCRIPTIONS: Final[list[cfg.Opt]] = [
    cfg.IntOpt(
        "default_subscription_ttl",
        default=3600,
        min=60,
        max=1 << 40,
        help="Default TTL of a subscription in seconds.",
    ),
    cfg.ListOpt("subscriber_types", default=list(TYPES), help="URI schemes that subscribers may have."),
]
NOTIFICATION: Final[list[cfg.Opt]] = [
    cfg.BoolOpt("deliver", default=True, help="Deliver notifications from this server's processes."),
    cfg.BoolOpt(
        "require_confirmation",
        default=True,
        help="Send a subscriber only a confirmation request until it has confirmed. Mail always requires confirmation.",
    ),
    cfg.StrOpt(
        "public_url", default="", help="Public URL of this service for subscribers, such as https://queues.example.org."
    ),
    cfg.ListOpt(
        "allowed_networks",
        default=[],
        sample_default=["10.1.0.0/16"],
        help="Non-public networks in which subscribers are allowed, including this server's own.",
    ),
    cfg.ListOpt("allowed_ports", default=[], help="Allowed subscriber ports below 1024, in addition to 80 and 443."),
    cfg.FloatOpt("rate", default=10.0, min=0, help="Maximum deliveries per second to one subscription. 0: no limit."),
    cfg.IntOpt(
        "keep",
        default=345_600,
        min=60,
        max=1_209_600,
        help="Seconds for which pending and failed deliveries are kept.",
    ),
    cfg.StrOpt(
        "external_confirmation_url",
        default="",
        help="URL of the confirmation page that confirmation mails link to; it receives Signature, Methods, Paths, "
        "Project, Expires, Url and Queue. Empty: mail subscriptions are unavailable.",
    ),
    cfg.StrOpt(
        "subscription_confirmation_email_template",
        default=SUBSCRIBE_MAIL,
        help="Confirmation mail to a new subscriber: topic, sender (empty: the first of mail_senders) and body. In "
        "the body, {0} is the queue, {1} its project and {2} the link.",
    ),
    cfg.StrOpt(
        "unsubscribe_confirmation_email_template",
        default=UNSUBSCRIBE_MAIL,
        help="Mail to a subscriber that has unsubscribed, with the same fields.",
    ),
    cfg.BoolOpt("trust_http", default=False, help="Send trust tokens to trust+http targets, even without TLS."),
    cfg.ListOpt(
        "trust_targets",
        default=[],
        help="URL prefixes that may receive trust tokens, in addition to the services in Keystone's catalogue.",
    ),
    cfg.StrOpt(
        "smtp_mode",
        default="third_part",
        choices=["third_part", "self_local"],
        help="Mail transport: a command (third_part) or an SMTP server (self_local).",
    ),
    cfg.StrOpt(
        "smtp_command",
        default="/usr/sbin/sendmail -t -oi",
        help="For third_part: command that sends a mail from its standard input.",
    ),
    cfg.StrOpt("smtp_host", default="", help="For self_local: host of the SMTP server."),
    cfg.PortOpt("smtp_port", default=465, help="For self_local: port of the SMTP server."),
    cfg.BoolOpt("smtp_tls", default=True, help="For self_local: connect with TLS from the beginning."),
    cfg.StrOpt("smtp_user_name", default="", help="For self_local: user name; empty: no login."),
    cfg.StrOpt("smtp_user_password", default="", secret=True, help="For self_local: password."),
    cfg.ListOpt("mail_senders", default=[], help="Addresses that a subscription may use in options.from."),
]


class DeliverySettings(Struct, frozen=True, kw_only=True):
    """The validated delivery options."""

    deliver: bool
    confirm: bool
    types: tuple[str, ...]
    default_ttl: int
    public_url: str
    confirmation_page: str
    joining: tuple[str, str, str]
    """The topic, sender and body of the mail to a new subscriber."""
    leaving: tuple[str, str, str]
    """The topic, sender and body of the mail to a subscriber that has unsubscribed."""
    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]
    ports: tuple[int, ...]
    rate: float
    keep: int
    trust_http: bool
    trust_targets: tuple[str, ...]
    own: tuple[int, ...]
    """The ports at which this service listens."""
    stores: tuple[tuple[str, int], ...]
    """The hosts and ports of this service's stores."""
    smtp_command: str
    smtp_host: str
    smtp_port: int
    smtp_tls: bool
    smtp_user: str
    smtp_password: str
    mail_senders: tuple[str, ...]


def read_settings(conf: cfg.ConfigOpts) -> DeliverySettings:
    """Read and validate the delivery options. Raises ``StartRefused``."""
    given = conf.notification
    types = tuple(each.lower() for each in conf.transport.subscriber_types)
    if unknown := set(types) - set(TYPES):
        raise StartRefused(f"[transport] subscriber_types may contain {', '.join(TYPES)}, not {min(unknown)!r}.")
    local = given.smtp_mode == "self_local"
    if local and not given.smtp_host:
        raise StartRefused("[notification] smtp_mode = self_local needs smtp_host.")
    return DeliverySettings(
        deliver=given.deliver,
        confirm=given.require_confirmation,
        types=types,
        default_ttl=conf.transport.default_subscription_ttl,
        public_url=given.public_url,
        confirmation_page=given.external_confirmation_url,
        joining=_parse_template("subscription_confirmation_email_template", given, SUBSCRIBE_MAIL),
        leaving=_parse_template("unsubscribe_confirmation_email_template", given, UNSUBSCRIBE_MAIL),
        networks=tuple(map(_parse_network, given.allowed_networks)),
        ports=tuple(map(_parse_port, given.allowed_ports)),
        rate=given.rate,
        keep=given.keep,
        trust_http=given.trust_http,
        trust_targets=tuple(given.trust_targets),
        own=tuple(filter(None, (conf[name].port for name in ("server", "metrics")))),
        stores=tuple(_list_stores(conf)),
        smtp_command=given.smtp_command,
        smtp_host=given.smtp_host if local else "",
        smtp_port=given.smtp_port,
        smtp_tls=given.smtp_tls,
        smtp_user=given.smtp_user_name,
        smtp_password=given.smtp_user_password,
        mail_senders=tuple(given.mail_senders),
    )


def _parse_members(text: str) -> dict[str, str]:
    first, *parts = _MEMBER.split(text)
    return {} if first.strip() else {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}


def _parse_template(option: str, given: Any, default: str) -> tuple[str, str, str]:
    """Parse a mail template into topic, sender and body. Take missing members from ``default``.

    Raises ``StartRefused``.
    """
    if not (values := _parse_members(given[option])):
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


def _list_stores(conf: cfg.ConfigOpts) -> Iterator[tuple[str, int]]:
    """Yield the hosts and ports of the configured store and of all pools that may exist."""
    named = [
        conf.storage.uri,
        *(f"{scheme}://{host}" for host in _list_pool_hosts(conf) for scheme in ("redis", "mongodb")),
    ]
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


def _list_pool_hosts(conf: cfg.ConfigOpts) -> Any:
    return conf["pooling:catalog"].allowed_hosts if conf.pooling else ()


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


SECTION: Final = Section("notification", NOTIFICATION, read_settings, others={"transport": SUBSCRIPTIONS})
