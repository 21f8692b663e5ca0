# SPDX-License-Identifier: Apache-2.0
"""Detection of a pipeline's poison messages: rejection by stage functions, and bisection with dry runs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from zq.errors import Invalid, ZqError
from zq.spark.failures import MAX_REASON_LENGTH
from zq.wire.extensions import BuryTerms

# The column in which a stage states why it rejects a row.
ERROR: Final = "_error"
# Seconds before failing messages are tried again. The second attempt succeeds if the cause was an outage.
RETRY_PAUSE: Final = 3.0
# Claim count from which messages count as poison even if all messages of a round fail.
MIN_FAILED_ROUNDS: Final = 5
# Number of messages to try separately, in order to find one that succeeds.
PROBES: Final = 4
# Maximum number of dry runs per search.
MAX_RUNS: Final = 500
# A function that processes messages in a dry run and returns the reason of a failure, or ``None``. If the second
# argument is true, the dry run also stages the results, to detect messages that the sink rejects.
DryRun = Callable[[Sequence[str], bool], str | None]


class InconclusiveSearch(ZqError):
    """An error that ``find_poison`` raises if no message fails when it is processed alone, or if too many fail."""


class RunStopped(ZqError):
    """An exception that ends the current round because the pipeline must stop."""


def find_poison(
    ids: Sequence[str], fails: DryRun, max_poison: int, pause: Callable[[float], object], claim_count: int = 1
) -> dict[str, str]:
    """Find the poison messages of a failed round. Return a mapping from message id to the reason of the failure.

    A message is poison if it fails twice when it is processed alone. If all messages together succeed in a dry run, the
    result is empty. Raises ``InconclusiveSearch`` if more than ``max_poison`` messages fail, or if an outage or a
    faulty stage is the probable cause.

    Args:
        fails: Processes messages in a dry run, and returns the reason of a failure or ``None``.
        pause: Sleeps for the given seconds. Called before the second attempt.
        claim_count: Lowest claim count of the messages. If all messages fail and this count is less than
            ``MIN_FAILED_ROUNDS``, the search is inconclusive.
    """
    together, keep = fails(ids, False), False
    if together is None:
        together, keep = fails(ids, True), True
    if together is None:
        return {}
    # A stage may fail only for empty input, so the messages also have to fail.
    if fails([], keep) and not _any_succeeds(ids, fails, keep):
        raise InconclusiveSearch("the stages fail even without messages")
    search = Bisection(lambda some: fails(some, keep), max_poison)
    if len(ids) > 1:
        search.search(ids, known=True)
    found = search.found if len(ids) > 1 else {ids[0]: together}
    if not found:
        raise InconclusiveSearch("no message fails by itself")
    if len(found) > max_poison:
        raise InconclusiveSearch(f"more than {max_poison} messages fail, for example with {next(iter(found.values()))}")
    if len(found) == len(ids) > 1 and claim_count < MIN_FAILED_ROUNDS:
        raise InconclusiveSearch(f"all messages of the round fail, for example with {next(iter(found.values()))}")
    pause(RETRY_PAUSE)
    return {one: reason for one in found if (reason := fails([one], keep))}


def _any_succeeds(ids: Sequence[str], fails: DryRun, keep: bool) -> bool:
    probes = ids[:: -(-len(ids) // PROBES)] if ids else ids
    return any(fails([one], keep) is None for one in probes)


class Bisection:
    """A search by bisection for the messages that fail when they are processed alone."""

    def __init__(self, fails: Callable[[Sequence[str]], str | None], max_poison: int) -> None:
        """Create a search that ends when it has found more than ``max_poison`` messages."""
        self._fails = fails
        self._max_poison = max_poison
        self._runs = 0
        self.found: dict[str, str] = {}

    def search(self, ids: Sequence[str], known: bool) -> bool:
        """Add each message that fails alone to ``found``. Return whether the search found such a message.

        If ``known`` is true, the caller already knows that the messages fail when they are processed together.
        """
        if self._runs >= MAX_RUNS or len(self.found) > self._max_poison:
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
        left = self.search(ids[:half], known=False)
        right = self.search(ids[half:], known=not left)
        return left or right


def reject(condition: Column | str, reason: str) -> Column:
    """Return a column for ``withColumn(ERROR, …)`` that rejects the rows for which the condition is true."""
    return F.when(F.expr(condition) if isinstance(condition, str) else condition, F.lit(reason))


def find_rejected(frame: DataFrame, stage: str) -> dict[str, str]:
    """Return the reason for each message that a stage function rejected, as a mapping from message id to reason.

    Raises ``Invalid`` if the column ``id`` is missing or the column with the reasons is not a string.
    """
    if "id" not in frame.columns:
        raise Invalid(
            f"Stage {stage} rejects rows in column {ERROR}, but has no column id, which identifies the messages. The "
            f"select of the stage must keep both id and {ERROR}."
        )
    if not isinstance(frame.schema[ERROR].dataType, StringType):
        raise Invalid(f"Column {ERROR} of stage {stage} must be a string.")
    found = frame.where(f"{ERROR} is not null").select("id", ERROR).collect()
    return {row[0]: row[1][:MAX_REASON_LENGTH] or "rejected" for row in found}


def remove_rejected(frame: DataFrame, rejected: Mapping[str, str]) -> DataFrame:
    """Remove the rejected messages from a frame.

    Spark may compute the frame again. If a stage function then rejects a row that it accepted before, the round fails.
    """
    if rejected:
        listed = ", ".join(f"'{one}'" for one in rejected)
        frame = frame.where(f"coalesce(id not in ({listed}), true)")
    only_now = F.raise_error(F.lit(f"A row has {ERROR} only when recomputed: a stage is not deterministic."))
    return frame.where(F.when(F.col(ERROR).isNull(), F.lit(True)).otherwise(only_now)).drop(ERROR)


def batch_burials(rejected: Mapping[str, str], room: int) -> Iterator[list[BuryTerms]]:
    """Yield batches of rejected messages, which the caller moves to the dead-letter queue.

    Each message is yielded with the reason for its rejection. A batch has at most ``room`` bytes of JSON, unless it
    contains only one message.
    """
    some, size = list[BuryTerms](), 0
    for one, reason in rejected.items():
        letter = BuryTerms(one, reason)
        length = len(msgspec.json.encode(letter)) + 1
        if some and size + length > room:
            yield some
            some, size = [], 0
        some.append(letter)
        size += length
    if some:
        yield some
