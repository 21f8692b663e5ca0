# SPDX-License-Identifier: Apache-2.0
"""The HTTP interface of the broker: Falcon resources and middleware."""
