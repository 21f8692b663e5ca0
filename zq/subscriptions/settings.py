# SPDX-License-Identifier: Apache-2.0
"""The section [notification] of the configuration, and the options of subscriptions in [transport]."""

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

# The default port of each scheme of store URIs.
STORE_PORTS: Final = {"redis": 6379, "rediss": 6379, "mongodb": 27017, "mongodb+srv": 27017}
TYPES: Final = ("http", "https", "mailto", "trust+http", "trust+https")
# The default mail templates of requests for confirmation, as Zaqar writes dictionaries. Texts may contain commas.
JOINING: Final = (
    "topic:Do you want the messages of a queue?,sender:,body:Somebody asks that messages of the queue {0} of the "
    "project {1} be sent to you. If you want them, follow this link: {2} If not, do nothing."
)
LEAVING: Final = (
    "topic:You get no more messages of a queue,sender:,body:Nothing of the queue {0} of the project {1} is sent to "
    "you any more. If you want its messages again, follow this link: {2}"
)
MEMBERS: Final = ("topic", "sender", "body")
_MEMBER: Final = re.compile(rf"(?:^|,)\s*({'|'.join(MEMBERS)})\s*:")
SUBSCRIPTIONS: Final[list[cfg.Opt]] = [
    cfg.IntOpt(
        "default_subscription_ttl",
        default=3600,
        min=60,
        max=1 << 40,
        help="Seconds that a subscription lasts which does not say so.",
    ),
    cfg.ListOpt("subscriber_types", default=list(TYPES), help="Schemes of the URIs that may be subscribed."),
]
NOTIFICATION: Final[list[cfg.Opt]] = [
    cfg.BoolOpt("deliver", default=True, help="Deliver to subscribers from this server's processes."),
    cfg.BoolOpt(
        "require_confirmation",
        default=True,
        help="Send nothing to a subscriber that has not agreed, but the question whether it does. Mail is never sent "
        "to one.",
    ),
    cfg.StrOpt("public_url", default="", help="Where subscribers reach this service, as https://queues.example.org."),
    cfg.ListOpt(
        "allowed_networks",
        default=[],
        sample_default=["10.1.0.0/16"],
        help="Networks that subscribers may be in though they are not public, or are this server's own.",
    ),
    cfg.ListOpt("allowed_ports", default=[], help="Ports of subscribers below 1024, besides 80 and 443."),
    cfg.FloatOpt("rate", default=10.0, min=0, help="Deliveries a second to one subscription. 0: no bound."),
    cfg.IntOpt(
        "keep",
        default=345_600,
        min=60,
        max=1_209_600,
        help="Seconds for which what is to be delivered is kept, and what could not be.",
    ),
    cfg.StrOpt(
        "external_confirmation_url",
        default="",
        help="The page to which a mail leads that asks for confirmation; it gets Signature, Methods, Paths, Project, "
        "Expires, Url and Queue. Empty: nobody is asked by mail, so that no mail is sent at all.",
    ),
    cfg.StrOpt(
        "subscription_confirmation_email_template",
        default=JOINING,
        help="The mail that asks a new subscriber: topic, sender (empty: the first of mail_senders) and body, in which "
        "{0} is the queue, {1} its project and {2} the link.",
    ),
    cfg.StrOpt(
        "unsubscribe_confirmation_email_template",
        default=LEAVING,
        help="The mail to a subscriber that has left; the same members.",
    ),
    cfg.BoolOpt("trust_http", default=False, help="Send tokens of trusts to targets of trust+http, without TLS, too."),
    cfg.ListOpt(
        "trust_targets",
        default=[],
        help="Beginnings of URLs to which tokens of trusts are sent besides the services of Keystone's catalogue.",
    ),
    cfg.StrOpt("smtp_mode", default="third_part", choices=["third_part", "self_local"], help="By what mail is sent."),
    cfg.StrOpt("smtp_command", default="/usr/sbin/sendmail -t -oi", help="For third_part: what takes a mail."),
    cfg.StrOpt("smtp_host", default="", help="For self_local: the server."),
    cfg.PortOpt("smtp_port", default=465, help="Its port."),
    cfg.BoolOpt("smtp_tls", default=True, help="Whether it speaks TLS from the beginning."),
    cfg.StrOpt("smtp_user_name", default="", help="For the server's login; empty: none."),
    cfg.StrOpt("smtp_user_password", default="", secret=True, help="Its password."),
    cfg.ListOpt("mail_senders", default=[], help="Addresses that options.from of a subscription may name."),
]


class DeliverySettings(Struct, frozen=True, kw_only=True):
    """The validated options of deliveries."""

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


def delivery_settings(conf: cfg.ConfigOpts) -> DeliverySettings:
    """Validate the options of a configuration and return them. Raises ``StartRefused``."""
    given = conf.notification
    types = tuple(each.lower() for each in conf.transport.subscriber_types)
    if unknown := set(types) - set(TYPES):
        raise StartRefused(f"[transport] subscriber_types may hold {', '.join(TYPES)}; it holds {min(unknown)!r}.")
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
        joining=_template("subscription_confirmation_email_template", given, JOINING),
        leaving=_template("unsubscribe_confirmation_email_template", given, LEAVING),
        networks=tuple(map(_network, given.allowed_networks)),
        ports=tuple(map(_port, given.allowed_ports)),
        rate=given.rate,
        keep=given.keep,
        trust_http=given.trust_http,
        trust_targets=tuple(given.trust_targets),
        own=tuple(filter(None, (conf[name].port for name in ("server", "metrics")))),
        stores=tuple(_stores(conf)),
        smtp_command=given.smtp_command,
        smtp_host=given.smtp_host if local else "",
        smtp_port=given.smtp_port,
        smtp_tls=given.smtp_tls,
        smtp_user=given.smtp_user_name,
        smtp_password=given.smtp_user_password,
        mail_senders=tuple(given.mail_senders),
    )


def _members(text: str) -> dict[str, str]:
    first, *parts = _MEMBER.split(text)
    return {} if first.strip() else {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}


def _template(option: str, given: Any, default: str) -> tuple[str, str, str]:
    """Return the topic, sender and body of a template, with missing members from ``default``.

    Raises ``StartRefused``.
    """
    if not (values := _members(given[option])):
        raise StartRefused(f"[notification] {option} must be as topic:A subject,sender:a@example.org,body:A text.")
    topic, sender, body = ({**_members(default), **values}[name] for name in MEMBERS)
    try:
        body.format("", "", "")
    except (AttributeError, LookupError, ValueError):
        raise StartRefused(
            f"[notification] {option} must have a body with {{0}}, {{1}} and {{2}} alone in braces."
        ) from None
    if not (topic + sender).isprintable():
        raise StartRefused(f"[notification] {option} must have its topic and its sender in one line.")
    return topic, sender, body


def _stores(conf: cfg.ConfigOpts) -> Iterator[tuple[str, int]]:
    """Yield the hosts and ports of the store and of the hosts that pools may have."""
    named = [conf.storage.uri, *(f"{scheme}://{host}" for host in _pools(conf) for scheme in ("redis", "mongodb"))]
    for uri in named:
        default = STORE_PORTS.get(uri.partition(":")[0])
        for host in store_uri.split(uri).netloc.rpartition("@")[2].split(",") if default else ():
            try:
                parts = urlsplit(f"//{host}")
                name, port = parts.hostname, parts.port
            except ValueError:
                continue  # the driver refuses the URI
            if name:
                yield name, port or default or 0


def _pools(conf: cfg.ConfigOpts) -> Any:
    return conf["pooling:catalog"].allowed_hosts if conf.pooling else ()


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        raise StartRefused(
            f"[notification] allowed_networks must hold networks as 10.1.0.0/16; {text!r} is none."
        ) from None


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        raise StartRefused(f"[notification] allowed_ports must hold ports; {text!r} is none.")
    return int(text)


SECTION: Final = Section("notification", NOTIFICATION, delivery_settings, others={"transport": SUBSCRIPTIONS})
