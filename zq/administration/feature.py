# SPDX-License-Identifier: Apache-2.0
"""The server feature for project administration."""

from collections.abc import Mapping
from typing import Any

import falcon

from zq.administration import openapi
from zq.administration.resources import ProjectCollection, ProjectItem, RekeyResource
from zq.core.data_keys import DataKeys
from zq.core.quotas import Quotas
from zq.core.removal import Removal
from zq.http.features import Feature, Json
from zq.model.limits import Limits


class AdministrationFeature(Feature):
    """The routes for project administration and rekeying."""

    def __init__(self, quotas: Quotas | None, removal: Removal, keys: DataKeys) -> None:
        """Create the feature. ``quotas`` is None if authentication is off."""
        self._quotas = quotas
        self._removal = removal
        self._keys = keys

    def operations(self, limits: Limits) -> Mapping[str, Mapping[str, Json]]:
        return {"administration": openapi.operations()}

    def schemas(self, limits: Limits) -> Mapping[str, Json]:
        return openapi.schemas()

    def add_routes(self, app: "falcon.App[Any, Any]") -> None:
        app.add_route("/v2/admin/projects", ProjectCollection(self._quotas))
        app.add_route("/v2/admin/project", ProjectItem(self._quotas, self._removal))
        app.add_route("/v2/admin/rekey", RekeyResource(self._keys))
