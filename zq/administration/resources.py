# SPDX-License-Identifier: Apache-2.0
"""HTTP resources ``/v2/admin/project…`` and ``/v2/admin/rekey`` (tenancy contract, section 5)."""

from typing import Any, Final

import falcon
import msgspec
from msgspec import UNSET, UnsetType, structs

from zq import wire
from zq.core.data_keys import DataKeys
from zq.core.quotas import Quotas
from zq.core.removal import Removal
from zq.errors import InvalidBody, InvalidParameter
from zq.http import query
from zq.http.context import Request
from zq.http.quota import require_quotas, usage
from zq.http.tenant import Audience
from zq.model.limits import project_id
from zq.model.quotas import Project, State, validate_limits
from zq.wire import encoding
from zq.wire.quotas import ProjectReport


class ProjectChange(msgspec.Struct):
    """The request body of a project update. A missing field leaves the setting unchanged."""

    limits: dict[str, Any] | UnsetType = UNSET
    state: State | UnsetType = UNSET


_decoder: Final = msgspec.json.Decoder(ProjectChange)


class _Projects:
    def __init__(self, quotas: Quotas | None) -> None:
        self._optional_quotas = quotas

    @property
    def _quotas(self) -> Quotas:
        return require_quotas(self._optional_quotas)

    def _report(self, project: str, stored: Project) -> ProjectReport:
        used = structs.asdict(usage(self._quotas, project))
        return ProjectReport(project, stored.limits, stored.state, stored.deleting, **used)


class ProjectCollection(_Projects):
    """``/v2/admin/projects``: list the projects that have settings or have created an object, such as a queue."""

    audience = Audience.OPERATOR
    policy = {"GET": "admin:projects"}

    def on_get(self, req: Request, resp: falcon.Response) -> None:
        limit = query.integer(req, "limit")
        page = self._quotas.list(query.text(req, "marker"), limit)
        items = [self._report(*each) for each in page.items]
        link = query.next_page_query(page.next, limit=limit)
        resp.data = encoding.page("projects", items, "/v2/admin/projects", link)


class ProjectItem(_Projects):
    """``/v2/admin/project?project=<id>``: get, update or delete a project."""

    audience = Audience.OPERATOR
    policy = {"GET": "admin:project", "PUT": "admin:project_update", "DELETE": "admin:project_delete"}

    def __init__(self, quotas: Quotas | None, removal: Removal) -> None:
        super().__init__(quotas)
        self._removal = removal

    def on_get(self, req: Request, resp: falcon.Response) -> None:
        project = _project_parameter(req)
        self._show(resp, project, self._quotas.read(project))

    def on_put(self, req: Request, resp: falcon.Response) -> None:
        project, change = _project_parameter(req), wire.decode(_decoder, query.body(req, required=True))
        if change.limits is UNSET and change.state is UNSET:
            raise InvalidBody("The body must contain limits or state.")
        limits = None if change.limits is UNSET else validate_limits(change.limits)
        stored = self._quotas.write(project, lambda old: _apply(old, limits, change.state))
        self._show(resp, project, stored)

    def on_delete(self, req: Request, resp: falcon.Response) -> None:
        """Start deleting the project's data in the background."""
        project = _project_parameter(req)
        self._removal.begin(self._quotas, project)
        self._show(resp, project, self._quotas.read(project))
        resp.status = falcon.HTTP_202

    def _show(self, resp: falcon.Response, project: str, stored: Project) -> None:
        resp.data = wire.encode(self._report(project, stored))


class RekeyResource:
    """``/v2/admin/rekey``: re-encrypt all data keys with the first master key of the configuration."""

    audience = Audience.OPERATOR
    policy = {"POST": "admin:rekey"}

    def __init__(self, keys: DataKeys) -> None:
        self._keys = keys

    def on_post(self, _req: Request, resp: falcon.Response) -> None:
        resp.data = wire.encode(self._keys.rekey())


def _project_parameter(req: Request) -> str:
    given = req.params.get("project")
    if not given:
        raise InvalidParameter("project is missing.")
    return project_id(given if isinstance(given, str) else ",".join(given))


def _apply(old: Project, limits: dict[str, int] | None, state: State | UnsetType) -> Project:
    return structs.replace(
        old, limits=old.limits if limits is None else limits, state=old.state if state is UNSET else state
    )
