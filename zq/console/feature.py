# SPDX-License-Identifier: Apache-2.0
"""The server feature for the web console."""

from typing import Any

import falcon

from zq.console.page import ConsoleDocument, ConsoleRedirect, StaticFiles, read_tree
from zq.console.settings import ConsoleOptions
from zq.http.features import Feature, Page


class ConsoleFeature(Feature):
    """The routes of the web console below ``/console/``, if enabled."""

    public_prefixes = ("/console",)

    def __init__(self, options: ConsoleOptions) -> None:
        self._options = options
        self._tree = read_tree() if options.enabled else None
        self.page = Page("console/", self._tree.version) if self._tree else None

    def add_routes(self, app: "falcon.App[Any, Any]") -> None:
        if self._tree is not None:
            app.add_route("/console", ConsoleRedirect())
            app.add_route("/console/", ConsoleDocument(self._tree, self._options.read_only, self._options.grafana_url))
            app.add_route("/console/{tree}/{file:path}", StaticFiles(self._tree))
