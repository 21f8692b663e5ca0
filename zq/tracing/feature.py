# SPDX-License-Identifier: Apache-2.0
"""The server feature that sends OpenTelemetry spans."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from zq.errors import StartRefused
from zq.events import Events
from zq.http.features import Feature
from zq.tracing.settings import TracingOptions
from zq.tracing.store_calls import StoreCallObserver

if TYPE_CHECKING:
    from zq.tracing.exporting import Recorder


class TracingFeature(Feature):
    """The tracing feature: the middleware that records spans, and the export of the spans.

    Args:
        recorder: The queue of spans to export, or ``None`` if tracing is off.
    """

    def __init__(self, middleware: Sequence[object] = (), recorder: "Recorder | None" = None) -> None:
        self.middleware = middleware
        self._recorder = recorder

    def stop(self) -> None:
        if self._recorder is not None:
            self._recorder.stop()

    def finish(self) -> None:
        if self._recorder is not None:
            self._recorder.finish()


def tracing_observers(options: TracingOptions) -> list[Events]:
    """Create the observers of the store's operations. If tracing is off, there are none."""
    return [StoreCallObserver()] if options.enabled else []


def tracing_feature(options: TracingOptions, events: Events) -> TracingFeature:
    """Create the feature. If tracing is off, the feature has no middleware and does not import OpenTelemetry.

    Raises ``StartRefused`` if OpenTelemetry rejects an environment variable.
    """
    if not options.enabled:
        return TracingFeature()
    try:
        from zq.tracing.exporting import create_recorder  # the SDK has 15 MB and takes 70 ms to import
        from zq.tracing.requests import RequestTracing

        recorder = create_recorder(options.endpoint, events)
    except (ValueError, RuntimeError) as error:
        raise StartRefused(f"OpenTelemetry rejects an environment variable: {str(error).rstrip('.')}.") from error
    return TracingFeature([RequestTracing(options.sample, recorder, options.project)], recorder)
