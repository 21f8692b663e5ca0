# SPDX-License-Identifier: Apache-2.0
"""Poison messages of a pipeline: rejection by stages, search by bisection, and burial.

The search only uses ``fails``, a dry run with given message ids, which returns the reason of a failure or ``None``. It
distinguishes messages that fail by themselves from outages and from faults of the stages.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from zq.errors import Invalid, ZqError
from zq.spark.failures import MAX_REASON_LENGTH
from zq.wire.extensions import Buried

# The column in which a stage states why a row is rejected.
ERROR: Final = "_error"
# Seconds before the second attempt at messages to be buried, which may succeed if the cause was external.
RETRY_PAUSE: Final = 3.0
# Rounds after which messages that all fail count as faulty: in an outage, other messages would have arrived.
MIN_FAILED_ROUNDS: Final = 5
# Number of messages that are tried separately to see whether any succeeds.
PROBES: Final = 4
# Maximum number of dry runs of one search.
MAX_RUNS: Final = 500
# A dry run. The second argument says whether results are also staged, to find messages that the sink refuses.
Fails = Callable[[Sequence[str], bool], str | None]


class Inconclusive(ZqError):
    """A search without a result: no message is faulty, or too many are."""


class RunStopped(ZqError):
    """A run that was asked to stop, possibly during a search."""


def poison(
    ids: Sequence[str], fails: Fails, most: int, pause: Callable[[float], object], claim_count: int = 1
) -> dict[str, str]:
    """Return the messages that fail by themselves, twice, with reasons; empty if nothing fails any more.

    Args:
        pause: Waits the given number of seconds.
        claim_count: Minimum claim count by message.

    Raises ``Inconclusive``.
    """
    together, keep = fails(ids, False), False
    if together is None:
        together, keep = fails(ids, True), True
    if together is None:
        return {}
    if fails([], keep) and not _some_go_well(ids, fails, keep):  # otherwise the stages cannot handle empty input
        raise Inconclusive("the stages themselves fail")
    search = Bisection(lambda some: fails(some, keep), most)
    if len(ids) > 1:
        search.look(ids, known=True)
    found = search.found if len(ids) > 1 else {ids[0]: together}
    if not found:
        raise Inconclusive("no message fails by itself")
    if len(found) > most:
        raise Inconclusive(f"more than {most} messages fail, one by {next(iter(found.values()))}")
    if len(found) == len(ids) > 1 and claim_count < MIN_FAILED_ROUNDS:
        raise Inconclusive(f"all of its messages fail, one by {next(iter(found.values()))}")
    pause(RETRY_PAUSE)
    return {one: reason for one in found if (reason := fails([one], keep))}


def _some_go_well(ids: Sequence[str], fails: Fails, keep: bool) -> bool:
    probes = ids[:: -(-len(ids) // PROBES)] if ids else ids
    return any(fails([one], keep) is None for one in probes)


class Bisection:
    """The search for messages that fail by themselves: a failing set is split in two, and each half is tried."""

    def __init__(self, fails: Callable[[Sequence[str]], str | None], most: int) -> None:
        """Initialize; the search ends after ``most`` messages."""
        self._fails = fails
        self._most = most
        self._runs = 0
        self.found: dict[str, str] = {}

    def look(self, ids: Sequence[str], known: bool) -> bool:
        """Return whether a failing message was found among these.

        Args:
            known: Whether they are known to fail together.
        """
        if self._runs >= MAX_RUNS or len(self.found) > self._most:
            return False
        if len(ids) == 1 or not known:
            self._runs += 1
            reason = self._fails(ids)
            if reason is None:
                return False
            if len(ids) == 1:
                self.found[ids[0]] = reason
                return True
        half = len(ids) // 2
        left = self.look(ids[:half], known=False)
        right = self.look(ids[half:], known=not left)
        return left or right


def reject(condition: Column | str, reason: str) -> Column:
    """Return the column for ``withColumn(ERROR, …)``: the reason in rows where the condition holds."""
    return F.when(F.expr(condition) if isinstance(condition, str) else condition, F.lit(reason))


def rejected_ids(frame: DataFrame, stage: str) -> dict[str, str]:
    """Return the ids that a stage has rejected, with the reasons. Raises ``Invalid``."""
    if "id" not in frame.columns:
        raise Invalid(
            f"Stage {stage} marks rows in column {ERROR} but has dropped column id, which tells their messages: its "
            f"select must keep both id and {ERROR}."
        )
    if not isinstance(frame.schema[ERROR].dataType, StringType):
        raise Invalid(f"Stage {stage} must mark rows in column {ERROR} by text.")
    found = frame.where(f"{ERROR} is not null").select("id", ERROR).collect()
    return {row[0]: row[1][:MAX_REASON_LENGTH] or "rejected" for row in found}


def without_rejected(frame: DataFrame, rejected: Mapping[str, str]) -> DataFrame:
    """Return the frame without rejected messages. A row that is rejected only when recomputed fails the round."""
    if rejected:
        listed = ", ".join(f"'{one}'" for one in rejected)
        frame = frame.where(f"coalesce(id not in ({listed}), true)")
    only_now = F.raise_error(F.lit(f"A row has {ERROR} only when recomputed: a stage is not deterministic."))
    return frame.where(F.when(F.col(ERROR).isNull(), F.lit(True)).otherwise(only_now)).drop(ERROR)


def burials(rejected: Mapping[str, str], room: int) -> Iterator[list[Buried]]:
    """Yield the burials in slices of up to ``room`` bytes of JSON, because reasons may be long."""
    some, size = list[Buried](), 0
    for one, reason in rejected.items():
        letter = Buried(one, reason)
        length = len(msgspec.json.encode(letter)) + 1
        if some and size + length > room:
            yield some
            some, size = [], 0
        some.append(letter)
        size += length
    if some:
        yield some
