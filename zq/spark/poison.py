# SPDX-License-Identifier: Apache-2.0
"""Messages that a stage marks as not to be worked on, and dead letters of what cannot be."""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from zq.errors import Invalid
from zq.spark.failures import LONGEST
from zq.wire.settling import Buried

ERROR: Final = "_error"
"""The column in which a stage says why a row cannot be worked on."""


def reject(condition: Column | str, reason: str) -> Column:
    """For ``withColumn(ERROR, …)``: the reason in rows where the condition, a column or SQL, holds."""
    return F.when(F.expr(condition) if isinstance(condition, str) else condition, F.lit(reason))


def marked(frame: DataFrame, stage: str) -> dict[str, str]:
    """Ids that a stage has marked, with the reasons. Raises ``Invalid``."""
    if "id" not in frame.columns:
        raise Invalid(
            f"Stage {stage} marks rows in column {ERROR} but has dropped column id, which tells their messages: its "
            f"select must keep both id and {ERROR}."
        )
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


def letters(rejected: Mapping[str, str], room: int) -> Iterator[list[Buried]]:
    """As dead letters, in slices of so many bytes of JSON: reasons may be long, and requests may not."""
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
