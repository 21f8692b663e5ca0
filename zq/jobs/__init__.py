# SPDX-License-Identifier: Apache-2.0
"""Jobs for ``python -m zq.jobs.<name>`` or ``spark-submit``; see ``api-ref/spark.md``."""
