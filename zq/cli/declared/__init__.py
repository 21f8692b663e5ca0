# SPDX-License-Identifier: Apache-2.0
"""The declaration of a project's settings in a YAML file, and its comparison with the server."""
