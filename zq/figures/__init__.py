# SPDX-License-Identifier: Apache-2.0
"""The figures of queues and servers that people look at: kept by each process, so that a chart has a past when it
opens and a hundred viewers cost what one costs (decision 0108).

``counting`` counts what goes through this process. ``exchange`` tells the other processes of the store, and hears of
theirs. ``series`` keeps points, ``sampler`` takes them, ``ranking`` sorts and pages queues, ``reports`` answers.
"""

from zq.figures.reports import Figures

__all__ = ["Figures"]
