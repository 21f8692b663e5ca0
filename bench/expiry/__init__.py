# SPDX-License-Identifier: Apache-2.0
"""Costs and effects of expiry: ``python -m bench.expiry``; ``--help`` describes the parts."""
