# SPDX-License-Identifier: Apache-2.0
"""Jobs that are run with ``python -m zq.jobs.<name>`` or ``spark-submit``; see ``api-ref/spark-jobs.md``."""
