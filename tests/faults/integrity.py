# SPDX-License-Identifier: Apache-2.0
"""What every store must pass that nobody has open any more, whatever was killed before (S-B2)."""

from zq.model.stats import Report
from zq.storage import check


def whole(uri: str) -> Report | None:
    """Compare the store's parts with each other; fails with the first contradictions. None if there is no check."""
    report = check(uri)
    assert report is None or report.contradictions == 0, "\n".join(report.examples)
    return report
