# SPDX-License-Identifier: Apache-2.0
"""The web console as a feature of the server: a page in the browser, and a client of the HTTP interface like any other.

``static`` has the files of the page; the modules here serve them.
"""
