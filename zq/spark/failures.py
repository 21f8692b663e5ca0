# SPDX-License-Identifier: Apache-2.0
"""Extraction of the cause from Spark's error messages."""

import re
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from zq import errors
from zq.errors import ZqError

# Base classes of the errors that Spark raises.
SPARK_ERRORS: Final = (PySparkException, Py4JError)
# The last line of a traceback that ends with a zq error.
ZQ_ERROR_LINE: Final = re.compile(r"\bzq(?:\.\w+)*\.(\w+): (.+)")
# Maximum length of a reason.
MAX_REASON_LENGTH: Final = 1024
# Start of an error message from Java.
JAVA_CALL_PREFIX: Final = "An error occurred while calling"
# The first line of a traceback.
TRACEBACK_START: Final = "Traceback (most recent call last):"


def extract_error(error: Exception) -> ZqError:
    """Return the zq error that a worker raised, or a ``ZqError`` with the line that explains the failure."""
    raised = ZQ_ERROR_LINE.findall(str(error))
    if not raised:
        return ZqError(explain(error))
    name, sentence = raised[-1]
    kind = getattr(errors, name, ZqError)
    found: ZqError = (kind if isinstance(kind, type) and issubclass(kind, ZqError) else ZqError)(sentence)
    return found


def explain(error: BaseException) -> str:
    """Return the line that explains an error: the line after a Python traceback, or else the first line."""
    lines = str(error).strip().splitlines()
    if any(line.endswith(TRACEBACK_START) for line in lines):
        last = max(
            number for number, line in enumerate(lines) if line.startswith("  ") or line.endswith(TRACEBACK_START)
        )
        lines = lines[last + 1 :]
    if lines and lines[0].startswith(JAVA_CALL_PREFIX):
        lines = lines[1:]
    line = next((text.strip(": ") for text in lines if text.strip(": ")), type(error).__name__)
    return line[:MAX_REASON_LENGTH]
