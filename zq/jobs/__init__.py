# SPDX-License-Identifier: Apache-2.0
"""Jobs that run as they are, by ``python -m zq.jobs.<name>`` or ``spark-submit``: ``api-ref/spark-jobs.md``."""
