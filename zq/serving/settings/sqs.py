# SPDX-License-Identifier: Apache-2.0
"""The section [sqs]: whether and how the protocol of Amazon SQS is served."""

from typing import Any, Final

from oslo_config import cfg

from zq.errors import InvalidName, StartRefused
from zq.limits import project_id
from zq.model.sqs import SqsOptions

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


def sqs_options(conf: Any) -> SqsOptions:
    """What the options say. Raises ``StartRefused``."""
    options = SqsOptions(**{option.dest: conf.sqs[option.dest] for option in SQS})
    try:
        project_id(options.project)
    except InvalidName as error:
        raise StartRefused(f"[sqs] project cannot be used: {error}") from error
    return options
