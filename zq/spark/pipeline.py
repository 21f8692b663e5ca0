# SPDX-License-Identifier: Apache-2.0
"""Pipelines, which process messages with Spark in rounds. Reference: ``api-ref/pipelines.md``.

In each round, Spark processes claimed messages, and one commit publishes the results and settles the claims.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import SparkSession

from zq.client.stopping import stop_on_signals
from zq.errors import Fenced, Invalid
from zq.spark import warn_of_speculation
from zq.spark.options import BODY_TYPES, NAME, ClaimingOptions, OptionParser, parse_claiming_options
from zq.spark.poison import ERROR, reject
from zq.spark.rounds import RoundExecutor, RoundSource, Stage
from zq.spark.runner import RoundFailed, Runner, Totals

__all__ = ["ERROR", "Pipeline", "RoundFailed", "Totals", "reject"]
# Default server URL.
URL: Final = "http://localhost:8888"
# Sink options that users may set.
SINK_OPTIONS: Final = ("bodyColumn", "ttl", "delay", "ttlColumn", "delayColumn", "queueColumn")
# Bounds of the numeric settings.
BOUNDS: Final = {
    "max_messages": (1, 1_000_000),
    "claim_size": (1, 1_000_000),
    "claim_ttl": (60, 2**31),
    "wait": (0, 30),
    "retry_for": (0, 2**31),
    "most_poison": (0, 1000),
}


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A pipeline that reads a queue, applies stages (functions on DataFrames) and publishes to other queues."""

    source: str
    stages: Sequence[Stage]
    sink: str | None = None
    """Target queue for rows whose column ``queue`` is missing or null."""
    dead_letters: str | None = None
    """Queue for poison messages. Default: the ``_dead_letter_queue`` of the source, if any."""
    name: str | None = None
    """Name of the pipeline. Only one run may use a name at a time. Default: ``<source>.<sink>``."""
    url: str | None = None
    project: str | None = None
    token: str | None = field(default=None, repr=False)
    """Access token. The defaults of url, project and token are ``ZQ_URL``, ``ZQ_PROJECT`` and ``ZQ_TOKEN``."""
    client_id: str | None = None
    """UUID of the client. Default: a new UUID per process."""
    max_messages: int = 10_000
    """Maximum number of messages per round."""
    claim_size: int | None = None
    """Maximum number of messages per claim. Default: the server's limit."""
    claim_ttl: int = 300
    wait: int = 5
    """Seconds for which a claim waits for messages."""
    retry_for: int = 60
    """Seconds for which requests are retried while the server is unavailable."""
    most_poison: int = 20
    """Maximum number of poison messages per round. If more messages fail, the round fails."""
    body_type: str = "string"
    sink_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ``Invalid`` if a setting is not valid. This check sends no request to the server."""
        if isinstance(self.stages, str) or not isinstance(self.stages, Sequence) or not self.stages:
            raise Invalid("stages must be a list of functions.")
        if wrong := next((one for one in self.stages if not callable(one)), None):
            raise Invalid(f"stages must be functions, not {wrong!r}.")
        for option in self.sink_options:
            if option not in SINK_OPTIONS:
                raise Invalid(f"sink_options may contain {', '.join(SINK_OPTIONS)}, not {option}.")
        if not self.source or self.sink == self.source:
            raise Invalid(f"source and sink must be two queues, not {self.source or 'none'} and {self.sink or 'none'}.")
        if not NAME.fullmatch(self.full_name):
            raise Invalid(
                f"name must be 1 to 64 characters from A-Z a-z 0-9 _ - and the dot, and not only dots; it is "
                f"{self.full_name}."
            )
        if self.body_type not in BODY_TYPES:
            raise Invalid(f"body_type must be one of {', '.join(BODY_TYPES)}, not {self.body_type}.")
        for setting, (minimum, maximum) in BOUNDS.items():
            value = getattr(self, setting)
            if value is not None and (not isinstance(value, int) or not minimum <= value <= maximum):
                raise Invalid(f"{setting} must be an integer from {minimum} to {maximum}, not {value}.")

    @property
    def full_name(self) -> str:
        """The name of the pipeline, or the default name if ``name`` is not set."""
        return self.name or ".".join(queue for queue in (self.source, self.sink) if queue)

    def run(
        self,
        spark: SparkSession,
        until_empty: bool = False,
        progress: Callable[[Totals], object] | None = None,
    ) -> Totals:
        """Run rounds until SIGTERM or SIGINT arrives. With ``until_empty``, also stop when the queue is empty.

        ``progress`` is called with the totals after each round. Raises ``RoundFailed`` if a round fails for a reason
        other than poison messages, and ``Fenced`` if another run with this name has started.
        """
        warn_of_speculation(spark)
        spark.dataSource.register(RoundSource)
        runner = Runner(
            self.claiming_options(),
            RoundExecutor(spark, self.stages, self.writer_options(), self.body_type),
            self.most_poison,
        )
        try:
            with stop_on_signals(runner.stopped.set):
                runner.begin(self.dead_letters)
                while not runner.stopped.is_set():
                    batch = runner.claim()
                    if not batch.claims and until_empty:
                        break
                    if batch.claims and runner.work(batch) and progress is not None:
                        progress(runner.totals)
        except Fenced:
            raise Fenced(
                f"Another run of pipeline {runner.name} was started, so this one stops. Use a different name for "
                "each pipeline."
            ) from None
        finally:
            runner.end()
        return runner.totals

    def claiming_options(self) -> ClaimingOptions:
        """Return the options for claiming. Raises ``Invalid`` if a setting is missing or not valid."""
        return parse_claiming_options(
            OptionParser(
                self._place()
                | _as_strings(queue=self.source, consumer=self.full_name, maxMessagesPerBatch=self.max_messages)
                | _as_strings(
                    claimSize=self.claim_size, claimTtl=self.claim_ttl, wait=self.wait, bodyType=self.body_type
                )
            )
        )

    def writer_options(self) -> dict[str, str]:
        """Return the options for Spark's reader and writer. Raises ``Invalid`` if the project is missing."""
        return self._place() | _as_strings(
            queue=self.sink, bodyType=self.body_type, idempotencyKey=self.full_name, **self.sink_options
        )

    def _place(self) -> dict[str, str]:
        known = os.environ.get
        url, token = self.url or known("ZQ_URL") or URL, self.token or known("ZQ_TOKEN")
        project = self.project or known("ZQ_PROJECT")
        if not project:
            raise Invalid(
                "project is missing: set it, or the environment variable ZQ_PROJECT, to the project of the queues."
            )
        return _as_strings(url=url, project=project, token=token, clientId=self.client_id, retryFor=self.retry_for)


def _as_strings(**options: Any) -> dict[str, str]:
    return {name: str(value) for name, value in options.items() if value is not None}
