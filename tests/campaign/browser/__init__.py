# SPDX-License-Identifier: Apache-2.0
"""Long tests of the console: every page, many queues, broken streams, other browsers, and screenshots."""
