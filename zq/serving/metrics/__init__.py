# SPDX-License-Identifier: Apache-2.0
"""What a server shows to Prometheus; the only place that knows prometheus-client.

``definitions`` names every metric. ``counting`` counts what happens and writes the page, ``collector`` asks the store
when the page is read, ``timed`` takes the time of the store's verbs, ``multiprocess`` joins the worker processes.

Nothing is imported here: prometheus-client decides on its import whether processes are joined, so
``multiprocess.begin`` comes before ``counting`` is imported.
"""
