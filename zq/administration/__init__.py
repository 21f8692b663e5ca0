# SPDX-License-Identifier: Apache-2.0
"""The administration of a deployment, as a feature of the server: projects with their quotas, and encryption keys."""
