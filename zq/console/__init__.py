# SPDX-License-Identifier: Apache-2.0
"""The web console: a page that a browser shows, and a client of the HTTP interface like any other.

All that it does is in ``static``, as the browser gets it; here is only how that is served.
"""
