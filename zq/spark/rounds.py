# SPDX-License-Identifier: Apache-2.0
"""What Spark reads and writes in one round of a pipeline: exactly the messages of the claims that the round holds, and
their results, published by the commit that settles these claims.

A format of its own, for the runner in ``pipeline.py`` only. Its option ``round`` is a ``Round`` as JSON.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
from msgspec import Struct
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from zq.model import Fence
from zq.spark import rows
from zq.spark.options import Connection, Given, body_type, connection, sink_options
from zq.spark.staging import BatchWriter, Staged

FORMAT: Final = "zq-round"
COLUMNS: Final = ("id", "seq", "body", "created", "ttl", "claim_count", "claim")
"""No queue: in what goes to the sink, that column says where to."""


class Round(Struct, frozen=True):
    """What a round works on. ``claims``: names, each with the ids to be read of it; None = all that it holds."""

    name: str
    epoch: int
    batch: int
    queue: str
    claims: dict[str, list[str] | None]
    dry: bool = False
    """Results are staged, and dropped: to see whether that goes well."""
    tasks: int = 64
    """Most that read; with fewer claims, one for each."""

    @property
    def fence(self) -> Fence:
        """That of the run."""
        return Fence(self.name, self.epoch)


class RoundSource(DataSource):
    """The format."""

    @classmethod
    def name(cls) -> str:
        """What ``format()`` takes."""
        return FORMAT

    def schema(self) -> StructType:
        """Of what is read."""
        return rows.schema(COLUMNS, body_type(_given(self.options)))

    def reader(self, schema: StructType) -> "RoundReader":
        """Of the claims."""
        given = _given(self.options)
        return RoundReader(connection(given), body_type(given), _round(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """Of the results."""
        options = sink_options(_given(self.options), stream=False)
        return RoundWriter(options, schema, overwrite).of(_round(self.options))


@dataclass
class Part(InputPartition):
    """Claims that one task reads."""

    names: list[str]


class RoundReader(DataSourceReader):
    """Reads claims, however often, and takes none."""

    def __init__(self, place: Connection, body: str, of: Round) -> None:
        self.place = place
        self.body = body
        self.round = of

    def partitions(self) -> list[Part]:
        """The claims, shared out among tasks."""
        names = [name for name, ids in self.round.claims.items() if ids != []]
        share = -(-len(names) // self.round.tasks) or 1
        return [Part(names[first : first + share]) for first in range(0, len(names), share)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Their messages. A claim that is gone raises ``ClaimNotFound``: its messages may be at work elsewhere."""
        if not isinstance(partition, Part):  # Spark reads something of no partitions, too
            return
        queue = self.place.client().queue(self.round.queue)
        for name in partition.names:
            wanted = self.round.claims[name]
            ids = None if wanted is None else frozenset(wanted)
            made = rows.Rows(COLUMNS, self.body, claim=f"{queue.name}/{name}")
            yield from made.of([message for message in queue.held(name).messages if ids is None or message.id in ids])


class RoundWriter(BatchWriter):
    """The sink, whose commit is the round's."""

    round: Round

    def of(self, this: Round) -> "RoundWriter":
        """The writer of a round."""
        self.round = this
        return self

    def commit(self, messages: list[Staged]) -> None:  # type: ignore[override]
        """Publish and settle, under the fence."""
        this = self.round
        if this.dry:
            self.drop(messages)
            return
        held = [(this.queue, name) for name in this.claims]
        self.publish(this.name, this.batch, messages, held, this.fence)


def _round(options: Mapping[str, str]) -> Round:
    return msgspec.json.decode(options["round"], type=Round)


def _given(options: Mapping[str, str]) -> Given:
    return Given({name: value for name, value in options.items() if name.lower() != "round"})
