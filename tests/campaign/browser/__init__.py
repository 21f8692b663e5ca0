# SPDX-License-Identifier: Apache-2.0
"""Long tests of the console: every page, many queues, streams that break, other browsers, and its pictures."""
