# SPDX-License-Identifier: Apache-2.0
"""The adapter of Amazon SQS (2012-11-05): it parses and renders; every rule of queues is the broker's."""
