# SPDX-License-Identifier: Apache-2.0
"""Options about tenants: ``[oslo_policy]``, ``[quota]``, and ``audit`` and ``audit_ttl`` of ``[log]``."""

from typing import Final

from oslo_config import cfg

from zq.model.quotas import Quota

DEFAULTS: Final = Quota()
HELP: Final = {
    "requests": "Requests a second; for two seconds' worth of them at once.",
    "messages": "Messages a second that are posted, staged, published and handed out; as requests.",
    "bytes": "Bytes a second of bodies, both ways; as requests.",
    "stored_bytes": "Bytes that a project's messages take in the store: their bodies, and 256 of each.",
    "stored_messages": "Messages of a project in the store.",
    "metadata_bytes": "Bytes of metadata of a project's queues and topics; 4096 of each are free.",
    "queues": "Queues of a project.",
    "topics": "Topics of a project.",
    "stages": "Stages of a project.",
    "fences": "Fences of a project.",
    "producers": "Producers of a project whose last commit is remembered.",
    "subscriptions": "Subscriptions of a project.",
    "tokens": "Tokens of a project that have not expired.",
    "share": "Percent of threads, max_waiters and max_streams of a process that one project may take at once.",
}
POLICY: Final[list[cfg.Opt]] = [
    cfg.StrOpt(
        "policy_file",
        default="",
        mutable=True,
        help="Which roles each rule asks for, as oslo.policy writes it; needs the extra policy. Empty: as "
        "api-ref/policy.md has it.",
    )
]
AUDIT: Final = cfg.StrOpt(
    "audit",
    default="off",
    help="Where the audit log goes, a JSON object a line: stderr, the path of a file, or off.",
)
AUDIT_TTL: Final = cfg.IntOpt(
    "audit_ttl",
    default=2_592_000,
    min=60,
    max=315_360_000,
    mutable=True,
    help="Seconds for which GET /v2/audit has what was changed.",
)
QUOTA: Final[list[cfg.Opt]] = [
    *[
        cfg.IntOpt(
            name,
            default=getattr(DEFAULTS, name),
            min=0 if name != "share" else 1,
            max=100 if name == "share" else 1 << 53,
            mutable=True,
            help=f"{text}{'' if name == 'share' else ' 0: no bound.'}",
        )
        for name, text in HELP.items()
    ],
    cfg.BoolOpt(
        "headers", default=True, mutable=True, help="Tell callers in RateLimit headers what is left of their rates."
    ),
]


def quota_of(conf: cfg.ConfigOpts) -> Quota:
    """Return the default quota of projects. Without authentication, only shares are limited."""
    given = {name: conf.quota[name] for name in HELP}
    return Quota(**given) if conf.auth_strategy else Quota(**dict.fromkeys(HELP, 0) | {"share": given["share"]})
