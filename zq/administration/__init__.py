# SPDX-License-Identifier: Apache-2.0
"""Administration of projects, quotas and encryption keys."""
