# SPDX-License-Identifier: Apache-2.0
"""Pipelines: rounds of claiming messages, working on them with Spark, and publishing results and settling messages by
one commit. Reference: ``api-ref/pipelines.md``."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import SparkSession

from zq.client.stopping import stop_on_signals
from zq.errors import Fenced, Invalid
from zq.spark import warn_of_speculation
from zq.spark.options import BODY_TYPES, NAME, ClaimingOptions, Given, claiming_options
from zq.spark.poison import ERROR, reject
from zq.spark.rounds import RoundSource, Stage, Work
from zq.spark.runner import RoundFailed, Runner, Totals

__all__ = ["ERROR", "Pipeline", "RoundFailed", "Totals", "reject"]
# The server, unless one is given.
URL: Final = "http://localhost:8888"
# Options of the sink that are the user's.
SINK: Final = ("bodyColumn", "ttl", "delay", "ttlColumn", "delayColumn", "queueColumn")
# The least and the most of each number.
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
    """From one queue through stages to others. What stands below ``name`` has defaults that fit."""

    source: str
    stages: Sequence[Stage]
    sink: str | None = None
    """Of rows without a queue of their own in column ``queue``."""
    dead_letters: str | None = None
    """Where messages go that cannot be worked on; None: the source's own ``_dead_letter_queue``, if it has one."""
    name: str | None = None
    """Of claims, commits and fence; one runner at a time has it. ``<source>.<sink>`` if not given."""
    url: str | None = None
    project: str | None = None
    token: str | None = field(default=None, repr=False)
    """Also from ``ZQ_URL``, ``ZQ_PROJECT`` and ``ZQ_TOKEN``."""
    client_id: str | None = None
    """A UUID; a fresh one for each process if not given."""
    max_messages: int = 10_000
    """Of one round."""
    claim_size: int | None = None
    """None: as large as the server allows."""
    claim_ttl: int = 300
    wait: int = 5
    """Seconds that a look waits at the server for messages."""
    retry_for: int = 60
    """Seconds for which requests are repeated while the server does not answer."""
    most_poison: int = 20
    """If more messages than these raise in one round, the stages count as at fault."""
    body_type: str = "string"
    sink_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises ``Invalid`` for settings that are wrong by themselves."""
        if isinstance(self.stages, str) or not isinstance(self.stages, Sequence) or not self.stages:
            raise Invalid("stages must be a list of functions.")
        if wrong := next((one for one in self.stages if not callable(one)), None):
            raise Invalid(f"stages must be functions, not {wrong!r}.")
        for option in self.sink_options:
            if option not in SINK:
                raise Invalid(f"sink_options must be of {', '.join(SINK)}, not {option}.")
        if not self.source or self.sink == self.source:
            raise Invalid(f"source and sink must be two queues, not {self.source or 'none'} and {self.sink or 'none'}.")
        if not NAME.fullmatch(self.named):
            raise Invalid(
                f"name must have 1 to 64 characters of A-Z a-z 0-9 _ - . and not only dots, not {self.named}."
            )
        if self.body_type not in BODY_TYPES:
            raise Invalid(f"body_type must be one of {', '.join(BODY_TYPES)}, not {self.body_type}.")
        for setting, (least, most) in BOUNDS.items():
            value = getattr(self, setting)
            if value is not None and (not isinstance(value, int) or not least <= value <= most):
                raise Invalid(f"{setting} must be an integer from {least} to {most}, not {value}.")

    @property
    def named(self) -> str:
        """The name, be it given or made of the queues."""
        return self.name or ".".join(queue for queue in (self.source, self.sink) if queue)

    def run(
        self,
        spark: SparkSession,
        until_empty: bool = False,
        progress: Callable[[Totals], object] | None = None,
    ) -> Totals:
        """Rounds, until SIGTERM or SIGINT, or until nothing is left. ``progress`` is called after each.

        Raises ``RoundFailed``, and ``Fenced`` when another run of this name was started.
        """
        warn_of_speculation(spark)
        spark.dataSource.register(RoundSource)
        runner = Runner(self.taking(), Work(spark, self.stages, self.writing(), self.body_type), self.most_poison)
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
                f"Another run of pipeline {runner.name} was started, so this one stops: give each pipeline a name of "
                "its own."
            ) from None
        finally:
            runner.end()
        return runner.totals

    def taking(self) -> ClaimingOptions:
        """How messages are claimed. Raises ``Invalid``."""
        return claiming_options(
            Given(
                self._place()
                | _texts(queue=self.source, consumer=self.named, maxMessagesPerBatch=self.max_messages)
                | _texts(claimSize=self.claim_size, claimTtl=self.claim_ttl, wait=self.wait, bodyType=self.body_type)
            )
        )

    def writing(self) -> dict[str, str]:
        """Options that reading and writing need. Raises ``Invalid``."""
        return self._place() | _texts(
            queue=self.sink, bodyType=self.body_type, idempotencyKey=self.named, **self.sink_options
        )

    def _place(self) -> dict[str, str]:
        known = os.environ.get
        url, token = self.url or known("ZQ_URL") or URL, self.token or known("ZQ_TOKEN")
        project = self.project or known("ZQ_PROJECT")
        if not project:
            raise Invalid("project is missing: it says whose queues are meant. ZQ_PROJECT may name it, too.")
        return _texts(url=url, project=project, token=token, clientId=self.client_id, retryFor=self.retry_for)


def _texts(**options: Any) -> dict[str, str]:
    """Those that are given."""
    return {name: str(value) for name, value in options.items() if value is not None}
