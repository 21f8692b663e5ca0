# SPDX-License-Identifier: Apache-2.0
"""HTTP resource for the audit trail, which the console shows."""

import falcon

from zq.core.trail import Trail
from zq.http import query
from zq.http.context import Request
from zq.model.identity import ADMIN
from zq.wire import encoding


class AuditCollection:
    """``/v2/audit``: audit entries of the caller's project, newest first. An administrator sees all projects."""

    policy = {"GET": "audit:get_all"}

    def __init__(self, trail: Trail) -> None:
        self._trail = trail

    def on_get(self, req: Request, resp: falcon.Response) -> None:
        limit, since = query.integer(req, "limit"), query.text(req, "since")
        project = "" if ADMIN in req.context.identity.roles else req.context.project
        page = self._trail.list(project, query.text(req, "marker"), limit, since)
        link = query.next_page_query(page.next, limit=limit, since=since)
        resp.data = encoding.page("entries", page.items, "/v2/audit", link)
