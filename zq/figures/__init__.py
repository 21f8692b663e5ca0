# SPDX-License-Identifier: Apache-2.0
"""Time series of queues and servers for charts and dashboards (decision 0108).

Each process samples continuously, even without viewers, so that a chart has history when it is opened.
``counting`` counts the messages and requests of this process. ``exchange`` shares the counts among the processes of a
store. ``series`` stores points, ``sampler`` takes them, ``ranking`` sorts and pages queues, ``reports`` builds the
answers.
"""

from zq.figures.reports import Figures

__all__ = ["Figures"]
