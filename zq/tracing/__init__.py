# SPDX-License-Identifier: Apache-2.0
"""OpenTelemetry spans of HTTP requests, with links to the spans that posted the delivered messages."""
