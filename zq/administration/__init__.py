# SPDX-License-Identifier: Apache-2.0
"""The administration of a deployment, as a feature of the server: its projects and their quotas, the keys that encrypt
messages, and the audit trail."""
