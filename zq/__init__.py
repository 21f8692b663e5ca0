# SPDX-License-Identifier: Apache-2.0
"""zq: a multi-tenant queue service that is compatible with the OpenStack Zaqar v2 API."""

__version__ = "0.1.0"
