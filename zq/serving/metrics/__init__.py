# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics; the only package that uses prometheus-client.

``definitions`` declares all metrics. ``counting`` counts events and renders the page, ``collector`` reads the store
when the page is requested, ``timed`` measures the store's verbs, and ``multiprocess`` combines worker processes.

This module imports nothing, because prometheus-client decides at import whether it combines processes:
``multiprocess.begin`` must run before ``counting`` is imported.
"""
