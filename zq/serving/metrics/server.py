# SPDX-License-Identifier: Apache-2.0
"""A collector that reads the state of the server process and the use of quotas on each scrape."""

import os
import resource
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from zq.clock import Clock
from zq.core.usage_quotas import LargestUse
from zq.model import Seconds
from zq.serving.metrics.definitions import PREFIX, SERVER

# The directory with an entry per open file of this process.
OPEN_FILES: Final = "/proc/self/fd"


class ServerCollector(Collector):
    """A collector for prometheus-client that reads the state of this process on each scrape.

    Args:
        certificate_expires: Returns the time at which the TLS certificate expires, or ``None`` if it is unknown.
        largest_uses: Returns, for each quota, the largest use by a project; ``None`` = there are no quotas.
        names_projects: Returns whether the metrics may contain the names of projects.
    """

    def __init__(
        self,
        clock: Clock,
        is_leaving: Callable[[], bool],
        certificate_expires: Callable[[], Seconds | None],
        largest_uses: Callable[[], Mapping[str, LargestUse]] | None,
        names_projects: Callable[[], bool],
    ) -> None:
        self._clock = clock
        self._is_leaving = is_leaving
        self._certificate_expires = certificate_expires
        self._largest_uses = largest_uses
        self._names_projects = names_projects

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield _gauge("draining", int(self._is_leaving()))
        yield _gauge("open_files_ratio", read_open_files_ratio())
        expires = self._certificate_expires()
        yield _gauge("certificate_expires_seconds", None if expires is None else expires - self._clock.now())
        family = _gauge("quota_used_ratio", None)
        for name, use in ({} if self._largest_uses is None else self._largest_uses()).items():
            family.add_metric((name, use.project if self._names_projects() else ""), use.ratio)
        yield family


def read_open_files_ratio() -> float | None:
    """Return the number of open files of this process, divided by the maximum number.

    If the system does not report the number of open files, return ``None``.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        return len(os.listdir(OPEN_FILES)) / limit if limit > 0 else 0.0
    except OSError:
        return None


def _gauge(name: str, value: float | None) -> GaugeMetricFamily:
    definition = SERVER[name]
    return GaugeMetricFamily(PREFIX + name, definition.help, value=value, labels=definition.labels or None)
