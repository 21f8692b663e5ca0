# SPDX-License-Identifier: Apache-2.0
"""The HTTP interface: parse, ask the broker, render. No rule of queues lives here."""
