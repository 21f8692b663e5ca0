# SPDX-License-Identifier: Apache-2.0
"""The section [sqs] of the configuration."""

from typing import Any, Final

from msgspec import Struct
from oslo_config import cfg

from zq.errors import InvalidName, StartRefused
from zq.http.features import Listener, Section
from zq.limits import project_id
from zq.sqs.limits import MAX_BODY


class SqsOptions(Struct, frozen=True, kw_only=True):
    """The validated options of the section."""

    enabled: bool = False
    auth: str = "sigv4"
    """The authentication of requests: ``sigv4`` or ``none``."""
    region: str = "us-east-1"
    """The region of requests that name no region."""
    public_url: str = ""
    """The scheme and host of queue URLs; "" = the scheme and host of each request."""
    project: str = "000000000000"
    """The project of requests that are not authenticated and name no account."""
    auth_none_anywhere: bool = False
    purge_interval: int = 60
    """The minimum seconds between two purges of a queue; 0 = no minimum."""
    name_rest: int = 0
    """The seconds after a queue's deletion during which no queue of the same name can be created; 0 = none."""
    kms: str = "ignore"
    """The handling of KMS keys: ``ignore`` stores them without encrypting, ``refuse`` refuses them."""
    key_file: str = ""
    """The file of the master keys that seal secrets of access keys; "" = secrets can be stored in plain text only."""


SQS: Final[list[cfg.Opt]] = [
    cfg.BoolOpt("enabled", default=False, help="Serve the protocol of Amazon SQS on the main port, beside zq's own."),
    cfg.StrOpt(
        "auth",
        default="sigv4",
        choices=["sigv4", "none"],
        help="How callers of SQS prove who they are. sigv4: by a signature. none: not at all, for local use.",
    ),
    cfg.StrOpt(
        "region",
        default="us-east-1",
        regex=r"^[a-z0-9-]{1,64}$",
        help="The region of ARNs, for requests that name none.",
    ),
    cfg.StrOpt(
        "public_url",
        default="",
        sample_default="https://sqs.example.org",
        regex=r"^(https?://[^/\s]+)?$",
        help="Scheme and host of queue URLs, where a proxy changes them. Empty: those by which a request came.",
    ),
    cfg.StrOpt(
        "project",
        default="000000000000",
        help="With auth = none: the project of callers whose access key id is not an account of twelve digits.",
    ),
    cfg.BoolOpt(
        "auth_none_anywhere",
        default=False,
        help="Start with auth = none though other machines can reach this server. Each start warns of it.",
    ),
    cfg.IntOpt(
        "purge_interval",
        default=60,
        min=0,
        max=86400,
        help="Seconds that have to pass between two purges of a queue by SQS; 0: none.",
    ),
    cfg.IntOpt(
        "name_rest",
        default=0,
        min=0,
        max=86400,
        help="Seconds that have to pass after SQS has deleted a queue before it creates another one of that name; "
        "0: none. AWS: 60.",
    ),
    cfg.StrOpt(
        "kms",
        default="ignore",
        choices=["ignore", "refuse"],
        help="What becomes of KMS keys that queues are given. ignore: they are shown, and nothing is encrypted. "
        "refuse: they are refused.",
    ),
    cfg.StrOpt(
        "key_file",
        default="",
        help="A file of mode 0600 or 0640 with the keys that seal secrets of access keys in the store, as that of "
        "[transport] message_encryption_key_file: the first one seals, all open. Empty: access keys can be made plain "
        "only.",
    ),
]


def _read(conf: Any) -> SqsOptions:
    """Validate the options and return them. Raises ``StartRefused`` for an invalid project."""
    options = SqsOptions(**{option.dest: conf.sqs[option.dest] for option in SQS})
    try:
        project_id(options.project)
    except InvalidName as error:
        raise StartRefused(f"[sqs] project cannot be used: {error}") from error
    return options


def _line(options: SqsOptions, url: str) -> str:
    return f"SQS: {options.public_url or url}." if options.enabled else ""


def _check_exposure(options: SqsOptions, listener: Listener) -> list[str]:
    """Return a warning if requests are not authenticated.

    Raises ``StartRefused`` if other machines could send unauthenticated requests and ``auth_none_anywhere`` is false.
    """
    if not options.enabled or options.auth != "none":
        return []
    if not (listener.is_loopback or options.auth_none_anywhere):
        raise StartRefused(
            f"[sqs] auth is none, so --bind {listener.host} would let everyone who reaches this machine read and "
            "delete all messages by SQS. Bind to 127.0.0.1, or accept it with [sqs] auth_none_anywhere = true."
        )
    return [
        f"[sqs] auth is none: everyone who reaches {listener.host}:{listener.port} can read and delete all messages "
        "by SQS, as any account."
    ]


SECTION: Final = Section(
    "sqs",
    SQS,
    _read,
    line=_line,
    check_exposure=_check_exposure,
    max_body=lambda options: MAX_BODY if options.enabled else 0,
)
