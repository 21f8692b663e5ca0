# SPDX-License-Identifier: Apache-2.0
"""The YAML file of ``zq apply``: parsing, and comparison with the settings on the server."""
