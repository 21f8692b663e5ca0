# SPDX-License-Identifier: Apache-2.0
"""The delivery worker, which finds pending deliveries and sends them by HTTP or mail (contract 9.7 to 9.11)."""
