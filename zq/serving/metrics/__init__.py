# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics; the only package that imports prometheus-client.

- ``definitions`` declares all metrics.
- ``counting`` counts events and renders the page.
- ``collector`` reads the store's metrics on each scrape.
- ``timed`` measures the duration of storage operations.
- ``multiprocess`` combines the metrics of worker processes.

``multiprocess.begin`` must run before ``counting`` is imported, because prometheus-client decides at import whether to
combine processes. This module therefore imports nothing.
"""
