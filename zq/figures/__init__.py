# SPDX-License-Identifier: Apache-2.0
"""Statistics of queues and servers for charts and dashboards (decision 0108): depths, rates and time series.

Each process samples queue depths even if no client requests the statistics, so that a new chart shows past values at
once.
"""

from zq.figures.reports import Figures

__all__ = ["Figures"]
