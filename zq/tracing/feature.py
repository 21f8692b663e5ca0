# SPDX-License-Identifier: Apache-2.0
"""The server feature that sends OpenTelemetry spans."""

from collections.abc import Callable, Sequence

from zq.events import Events
from zq.http.features import Feature
from zq.tracing.settings import TracingOptions


class TracingFeature(Feature):
    """The tracing feature: the middleware that records spans, and the export of the spans.

    Args:
        stop: Called to send the last spans when the server stops.
    """

    def __init__(self, middleware: Sequence[object] = (), stop: Callable[[], object] = bool) -> None:
        self.middleware = middleware
        self._stop = stop

    def stop(self) -> None:
        self._stop()


def tracing_feature(options: TracingOptions, events: Events) -> TracingFeature:
    """Create the feature. If tracing is off, the feature has no middleware and does not import OpenTelemetry."""
    if not options.enabled:
        return TracingFeature()
    from zq.tracing.exporting import create_recorder  # the SDK has 15 MB and takes 70 ms to import
    from zq.tracing.requests import RequestTracing

    recorder = create_recorder(options.endpoint, events)
    return TracingFeature([RequestTracing(options.sample, recorder)], recorder.stop)
