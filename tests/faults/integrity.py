# SPDX-License-Identifier: Apache-2.0
"""The integrity check that every store must pass after it is closed, whatever was killed before (S-B2)."""

from zq.model.stats import Report
from zq.storage import check


def whole(uri: str) -> Report | None:
    """Check the store's integrity and fail with the first contradictions. Return None if the driver has no check."""
    report = check(uri)
    assert report is None or report.contradictions == 0, "\n".join(report.examples)
    return report
