# SPDX-License-Identifier: Apache-2.0
"""Statistics of queues and servers for charts and dashboards (decision 0108): depths, rates and time series.

Each process samples queue depths even if no client requests the statistics, so that a new chart shows past values at
once. The modules:

- ``counting`` counts the messages and requests of this process.
- ``exchange`` shares the counts among the processes that use a store.
- ``sampler`` samples queue depths in the background, and ``series`` stores the time series.
- ``ranking`` sorts and pages queues.
- ``reports`` builds the responses.
"""

from zq.figures.reports import Figures

__all__ = ["Figures"]
