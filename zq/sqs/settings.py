# SPDX-License-Identifier: Apache-2.0
"""Options of the configuration section [sqs]."""

from typing import Any, Final

from msgspec import Struct
from oslo_config import cfg

from zq.errors import InvalidName, StartRefused
from zq.http.features import Listener, Section
from zq.limits import project_id
from zq.sqs.limits import MAX_BODY


class SqsOptions(Struct, frozen=True, kw_only=True):
    """The validated options of the section [sqs]."""

    enabled: bool = False
    auth: str = "sigv4"
    """The authentication strategy: ``sigv4`` or ``none``."""
    region: str = "us-east-1"
    """The region of requests that do not specify one."""
    public_url: str = ""
    """The scheme and host of queue URLs; "" = those of the request."""
    project: str = "000000000000"
    """The project of an unauthenticated request, unless its access key id is an account id."""
    auth_none_anywhere: bool = False
    purge_interval: int = 60
    """The minimum time between two purges of a queue in seconds; 0 = no limit."""
    name_rest: int = 0
    """The time in seconds for which the name of a deleted queue stays reserved; 0 = not reserved."""
    kms: str = "ignore"
    """The handling of KMS keys: ``ignore`` stores the attribute without encryption, ``refuse`` rejects it."""
    key_file: str = ""
    """The path of the master key file; "" = access key secrets can only be stored unencrypted."""


SQS: Final[list[cfg.Opt]] = [
    cfg.BoolOpt("enabled", default=False, help="Serve the Amazon SQS protocol on the main port, next to zq's own API."),
    cfg.StrOpt(
        "auth",
        default="sigv4",
        choices=["sigv4", "none"],
        help="Authentication of SQS requests. sigv4: signatures. none: no authentication, for local use only.",
    ),
    cfg.StrOpt(
        "region",
        default="us-east-1",
        regex=r"^[a-z0-9-]{1,64}$",
        help="Region in ARNs if a request names none.",
    ),
    cfg.StrOpt(
        "public_url",
        default="",
        sample_default="https://sqs.example.org",
        regex=r"^(https?://[^/\s]+)?$",
        help="Scheme and host of queue URLs behind a proxy that changes them. Empty: those of the request.",
    ),
    cfg.StrOpt(
        "project",
        default="000000000000",
        help="With auth = none: project of callers whose access key id is not a twelve-digit account.",
    ),
    cfg.BoolOpt(
        "auth_none_anywhere",
        default=False,
        help="Allow auth = none although other machines can reach the server. Each start logs a warning.",
    ),
    cfg.IntOpt(
        "purge_interval",
        default=60,
        min=0,
        max=86400,
        help="Minimum seconds between two purges of a queue through SQS; 0: no limit.",
    ),
    cfg.IntOpt(
        "name_rest",
        default=0,
        min=0,
        max=86400,
        help="Seconds for which the name of a queue that was deleted through SQS stays reserved; 0: not reserved. "
        "AWS: 60.",
    ),
    cfg.StrOpt(
        "kms",
        default="ignore",
        choices=["ignore", "refuse"],
        help="Handling of KMS keys in queue attributes. ignore: store the attribute without encryption. refuse: "
        "reject the request.",
    ),
    cfg.StrOpt(
        "key_file",
        default="",
        help="A file (mode 0600 or 0640) with keys that encrypt the secrets of access keys, in the format of "
        "[transport] message_encryption_key_file: the first key encrypts, all keys decrypt. Empty: only unencrypted "
        "access keys can be created.",
    ),
]


def _read(conf: Any) -> SqsOptions:
    """Validate the options and return them. Raises ``StartRefused`` for an invalid project."""
    options = SqsOptions(**{option.dest: conf.sqs[option.dest] for option in SQS})
    try:
        project_id(options.project)
    except InvalidName as error:
        raise StartRefused(f"[sqs] project is invalid: {error}") from error
    return options


def _line(options: SqsOptions, url: str) -> str:
    return f"SQS: {options.public_url or url}." if options.enabled else ""


def _check_exposure(options: SqsOptions, listener: Listener) -> list[str]:
    """Return warnings for the operator: one if authentication is disabled, and none if it is enabled.

    Raises ``StartRefused`` if authentication is disabled, other machines can reach the server, and
    ``auth_none_anywhere`` is not set.
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
