# SPDX-License-Identifier: Apache-2.0
"""The server feature for queue and server statistics."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from zq.clock import Clock
from zq.core.queues import Queues
from zq.core.quotas import Quotas
from zq.core.topics import Topics
from zq.events import Observers
from zq.figures import openapi
from zq.figures.counting import Counts
from zq.figures.exchange import ProcessInfo
from zq.figures.reports import Figures
from zq.figures.resources import ProjectFigures, QueueFigures, QueuePoints, ServerCollection
from zq.http.features import Feature, Json
from zq.model.limits import Limits
from zq.storage.api import Storage

if TYPE_CHECKING:
    from zq.http.application import App


class FiguresFeature(Feature):
    """The statistics feature: a sampling thread, and routes such as ``/v2/figures`` and ``/v2/servers``."""

    tags: Mapping[str, str] = {"figures": "Depths and rates of queues, current and past, for people and dashboards."}
    open_paths: Collection[str] = (openapi.SERVERS,)

    def __init__(self, figures: Figures | None) -> None:
        self._figures = figures

    def operations(self, _limits: Limits) -> Mapping[str, Mapping[str, Json]]:
        return {"figures": openapi.figures()}

    def schemas(self, _limits: Limits) -> Mapping[str, Json]:
        return openapi.schemas()

    def add_routes(self, app: "App") -> None:
        app.add_route("/v2/figures", ProjectFigures(self._figures))
        app.add_route("/v2/figures/queues", QueueFigures(self._figures))
        app.add_route("/v2/queues/{queue}/figures", QueuePoints(self._figures))
        app.add_route("/v2/servers", ServerCollection(self._figures))

    def start(self) -> None:
        if self._figures is not None:
            self._figures.sampler.start()

    def stop(self) -> None:
        if self._figures is not None:
            self._figures.sampler.stop()


def figures_feature(
    enabled: bool,
    observers: Observers,
    about: ProcessInfo,
    storage: Storage,
    clock: Clock,
    queues: Queues,
    topics: Topics,
    quotas: Quotas | None,
) -> FiguresFeature:
    """Create the statistics feature. If it is enabled, also add an observer that counts messages and requests."""
    if not enabled:
        return FiguresFeature(None)
    counts = Counts()
    observers.add(counts)
    return FiguresFeature(Figures(storage, clock, queues, topics, quotas, counts, about))
