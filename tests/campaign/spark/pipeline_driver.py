# SPDX-License-Identifier: Apache-2.0
"""A pipeline that a test kills in its second round: ``zq pipeline run tests/campaign/spark/pipeline_driver.py``.

The job creates the file ``reached`` in the folder ``PIPELINE_FOLDER``, and waits there while the file ``hold`` exists.
"""

import os
import time
from pathlib import Path
from typing import Any

from pyspark.sql.functions import udf

from zq.spark.pipeline import Pipeline

ROUND = 20
FOLDER = os.environ.get("PIPELINE_FOLDER", "")


def copy(frame: Any) -> Any:
    """Copy a round. Its rows are so few that Spark gets them as a single task."""
    folder = FOLDER

    def passed(body: str) -> str:
        if int(body) >= ROUND:
            Path(folder, "reached").touch()
            while Path(folder, "hold").exists():
                time.sleep(0.02)
        return body

    return frame.withColumn("body", udf(passed, "string", useArrow=False)("body"))


pipeline = Pipeline(source="in", stages=[copy], sink="out", max_messages=ROUND, claim_size=10, wait=0)
