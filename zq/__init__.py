# SPDX-License-Identifier: Apache-2.0
"""zq: a multi-tenant queue service with OpenStack Zaqar's v2 wire contract."""

__version__ = "0.1.0"
