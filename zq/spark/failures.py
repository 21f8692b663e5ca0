# SPDX-License-Identifier: Apache-2.0
"""How Spark tells that work has failed, and the line of what it tells that says why."""

import re
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from zq import errors
from zq.errors import ZqError

SPARKS: Final = (PySparkException, Py4JError)
RAISED: Final = re.compile(r"\bzq(?:\.\w+)*\.(\w+): (.+)")
"""The last line of a traceback that ends in an error of zq."""
LONGEST: Final = 1024
"""Characters of a reason."""
CALLING: Final = "An error occurred while calling"
TRACE: Final = "Traceback (most recent call last):"


def reason(error: Exception) -> ZqError:
    """What went wrong inside Spark: the error of zq that a worker raised, else the line that says it."""
    raised = RAISED.findall(str(error))
    if not raised:
        return ZqError(why(error))
    name, sentence = raised[-1]
    kind = getattr(errors, name, ZqError)
    found: ZqError = (kind if isinstance(kind, type) and issubclass(kind, ZqError) else ZqError)(sentence)
    return found


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
