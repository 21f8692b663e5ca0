# SPDX-License-Identifier: Apache-2.0
"""Publish and subscribe over HTTP (S-D4): ``python -m bench.topics``; ``--help`` describes the options."""
