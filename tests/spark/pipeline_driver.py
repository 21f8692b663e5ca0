# SPDX-License-Identifier: Apache-2.0
"""A driver to be killed: ``python -m tests.spark.pipeline_driver url project folder`` runs a pipeline that stays
behind its first commit, and there another one that stays in a round."""

import sys
from pathlib import Path
from typing import Any

from tests.spark.conftest import prepared, session
from tests.spark.driver import held_up


def copying(source: str, url: str, project: str, folder: str) -> Any:
    """From a queue to the one named after it."""
    from zq.spark.pipeline import Pipeline

    def copy(frame: Any) -> Any:
        return frame.withColumn("body", held_up(f"{folder}/{source}")("body"))

    size = {"max_messages": 60, "claim_size": 60, "wait": 0}  # one task, for there are two places
    return Pipeline(source=source, stages=[copy], sink=f"{source}-out", url=url, project=project, **size)


def main() -> None:
    url, project, folder = sys.argv[1:]
    prepared()
    spark = session(f"{folder}/warehouse")

    inside, after = (copying(source, url, project, folder) for source in ("inside", "after"))

    def stay(_: object) -> None:
        Path(folder, "after", "committed").touch()
        inside.run(spark)

    after.run(spark, progress=stay)


if __name__ == "__main__":
    main()
