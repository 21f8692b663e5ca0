# SPDX-License-Identifier: Apache-2.0
"""HTTP resource for project quotas (tenancy contract, section 5)."""

from typing import Final

import falcon
from msgspec import structs

from zq import wire
from zq.core.quotas import Quotas
from zq.errors import NotBuilt
from zq.http.context import Request
from zq.wire.quotas import QuotaReport, UsageReport

NO_QUOTAS: Final = "This server does not authenticate callers (auth_strategy is empty), so it has no quotas."


def require_quotas(quotas: Quotas | None) -> Quotas:
    """Return ``quotas``. Raises ``NotBuilt`` if ``quotas`` is ``None``, as on a server without authentication."""
    if quotas is None:
        raise NotBuilt(NO_QUOTAS)
    return quotas


def usage(quotas: Quotas, project: str) -> UsageReport:
    """Return the resources that a project uses, such as stored messages and bytes."""
    used = dict(quotas.used(project))
    exact, age = dict.fromkeys(used, True), 0
    stored = quotas.stored(project)
    if stored is not None:
        used |= {"stored_messages": stored.messages, "stored_bytes": stored.bytes}
        exact |= dict.fromkeys(("stored_messages", "stored_bytes"), stored.exact)
        age = stored.age
    return UsageReport(used=used, exact=exact, age=age)


class QuotaDocument:
    """``/v2/quota``: the quotas and usage of the caller's project."""

    policy = {"GET": "quota:get"}

    def __init__(self, quotas: Quotas | None) -> None:
        self._quotas = quotas

    def on_get(self, req: Request, resp: falcon.Response) -> None:
        quotas, project = require_quotas(self._quotas), req.context.project
        allotment = quotas.allotment(project)
        limits, used = structs.asdict(allotment.quota), structs.asdict(usage(quotas, project))
        resp.data = wire.encode(QuotaReport(limits, allotment.state, **used))
