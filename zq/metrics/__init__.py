# SPDX-License-Identifier: Apache-2.0
"""What a server tells Prometheus; the only place that knows prometheus-client.

``definitions`` names every metric. ``counting`` counts what happens and writes the page, ``told`` asks the store when
the page is read, ``measured`` takes the time of the store's verbs, ``shared`` joins the worker processes.

Nothing is imported here: prometheus-client decides on its import whether processes are joined, so ``shared.begin``
comes before ``counting`` is imported.
"""
