# SPDX-License-Identifier: Apache-2.0
"""Tenant options: ``[oslo_policy]``, ``[quota]``, and the audit options of ``[log]``."""

from typing import Final

from oslo_config import cfg

from zq.model.quotas import Quota

DEFAULTS: Final = Quota()
HELP: Final = {
    "requests": "Requests per second; up to two seconds' worth in one burst.",
    "messages": "Messages per second that are posted, staged, published or delivered, with the same burst.",
    "bytes": "Body bytes per second in requests and responses, with the same burst.",
    "stored_bytes": "Bytes of a project's messages in the store: their bodies and 256 bytes per message.",
    "stored_messages": "Messages of a project in the store.",
    "metadata_bytes": "Metadata bytes of a project's queues and topics; the first 4096 bytes of each are free.",
    "queues": "Queues of a project.",
    "topics": "Topics of a project.",
    "stages": "Stages of a project.",
    "fences": "Fences of a project.",
    "producers": "Producers of a project whose last commit is stored.",
    "subscriptions": "Subscriptions of a project.",
    "tokens": "Unexpired tokens of a project.",
    "share": "Percentage of threads, max_waiters and max_streams per process that one project may use.",
}
POLICY: Final[list[cfg.Opt]] = [
    cfg.StrOpt(
        "policy_file",
        default="",
        mutable=True,
        help="Policy file in oslo.policy format, which maps rules to roles; needs the extra policy. Empty: the rules "
        "in api-ref/policy.md.",
    )
]
AUDIT: Final = cfg.StrOpt(
    "audit",
    default="off",
    help="Destination of the audit log (one JSON object per line): stderr, a file path, or off.",
)
AUDIT_TTL: Final = cfg.IntOpt(
    "audit_ttl",
    default=2_592_000,
    min=60,
    max=315_360_000,
    mutable=True,
    help="Seconds for which audit entries are available at GET /v2/audit.",
)
QUOTA: Final[list[cfg.Opt]] = [
    *[
        cfg.IntOpt(
            name,
            default=getattr(DEFAULTS, name),
            min=0 if name != "share" else 1,
            max=100 if name == "share" else 1 << 53,
            mutable=True,
            help=f"{text}{'' if name == 'share' else ' 0: no limit.'}",
        )
        for name, text in HELP.items()
    ],
    cfg.BoolOpt("headers", default=True, mutable=True, help="Return the remaining rates in RateLimit headers."),
]


def quota_of(conf: cfg.ConfigOpts) -> Quota:
    """Return the default project quota. Without authentication only ``share`` is limited."""
    given = {name: conf.quota[name] for name in HELP}
    return Quota(**given) if conf.auth_strategy else Quota(**dict.fromkeys(HELP, 0) | {"share": given["share"]})
