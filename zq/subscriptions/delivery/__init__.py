# SPDX-License-Identifier: Apache-2.0
"""Delivery of notifications by webhook and mail (contract sections 9.7 to 9.11)."""
