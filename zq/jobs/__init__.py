# SPDX-License-Identifier: Apache-2.0
"""Spark jobs for ``python -m zq.jobs.<name>`` and ``spark-submit``. Reference: ``api-ref/spark.md``."""
