# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics; the only package that imports prometheus-client.

The modules are:

- ``definitions``: declarations of all metrics;
- ``counting``: event counters, and the page that Prometheus scrapes;
- ``collector``: the store's metrics, read on each scrape;
- ``server``: the metrics of the server process and of quotas, read on each scrape;
- ``timed``: the duration of storage operations;
- ``token``: the token that scrapers must send;
- ``multiprocess``: combination of the metrics of worker processes.

``multiprocess.begin`` must run before the module ``counting`` is imported, because prometheus-client decides at import
whether to combine the metrics of several processes. This module therefore imports nothing.
"""
