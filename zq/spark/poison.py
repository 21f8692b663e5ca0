# SPDX-License-Identifier: Apache-2.0
"""Messages that cannot be worked on: those that a stage marks, and those over which it raises."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from zq.errors import Invalid

ERROR: Final = "_error"
"""The column in which a stage says why a row cannot be worked on."""
LONGEST: Final = 1024
"""Characters of a reason."""
MOST_RUNS: Final = 500
"""Dry runs of one search."""
CALLING: Final = "An error occurred while calling"
TRACE: Final = "Traceback (most recent call last):"


def reject(condition: Column | str, reason: str) -> Column:
    """For ``withColumn(ERROR, …)``: the reason in rows where the condition, a column or SQL, holds."""
    return F.when(F.expr(condition) if isinstance(condition, str) else condition, F.lit(reason))


def marked(frame: DataFrame, stage: str) -> dict[str, str]:
    """Ids that a stage has marked, with the reasons. Raises ``Invalid``."""
    if "id" not in frame.columns:
        raise Invalid(f"Stage {stage} marks rows in column {ERROR} and leaves no column id to tell their messages by.")
    if not isinstance(frame.schema[ERROR].dataType, StringType):
        raise Invalid(f"Stage {stage} must mark rows in column {ERROR} by text.")
    found = frame.where(f"{ERROR} is not null").select("id", ERROR).collect()
    return {row[0]: row[1][:LONGEST] or "rejected" for row in found}


def unmarked(frame: DataFrame, rejected: Mapping[str, str]) -> DataFrame:
    """Without the messages that were rejected. A row that is marked only now, computed anew, fails the round."""
    if rejected:
        listed = ", ".join(f"'{one}'" for one in rejected)
        frame = frame.where(f"coalesce(id not in ({listed}), true)")
    only_now = F.raise_error(F.lit(f"A row has {ERROR} that had none before: a stage decides by chance."))
    return frame.where(F.when(F.col(ERROR).isNull(), F.lit(True)).otherwise(only_now)).drop(ERROR)


def why(error: BaseException) -> str:
    """The line that says it: that behind a traceback of Python, else the first one."""
    lines = str(error).strip().splitlines()
    if TRACE in lines:
        last = max(number for number, line in enumerate(lines) if line.startswith("  ") or line == TRACE)
        lines = lines[last + 1 :]
    if lines and lines[0].startswith(CALLING):
        lines = lines[1:]
    told = next((line.strip(": ") for line in lines if line.strip(": ")), type(error).__name__)
    return told[:LONGEST]


class Search:
    """Finds messages that fail by themselves, by halving what fails."""

    def __init__(self, fails: Callable[[Sequence[str]], str | None], most: int) -> None:
        """``fails``: why work on messages with these ids fails, None if it goes well. ``most``: ends beyond so many."""
        self._fails = fails
        self._most = most
        self._runs = 0
        self.found: dict[str, str] = {}

    def look(self, ids: Sequence[str], known: bool) -> bool:
        """Whether one was found among these. ``known``: that they fail together."""
        if self._runs >= MOST_RUNS or len(self.found) > self._most:
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
