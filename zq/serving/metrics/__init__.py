# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics; the only package that uses prometheus-client.

``definitions`` declares every metric. ``counting`` counts events and renders the page, ``collector`` reads the store
when the page is requested, ``timed`` measures the store's verbs, ``multiprocess`` combines worker processes.

This module imports nothing: prometheus-client decides on its import whether processes are combined, so
``multiprocess.begin`` must run before ``counting`` is imported.
"""
