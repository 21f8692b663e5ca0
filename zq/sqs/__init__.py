# SPDX-License-Identifier: Apache-2.0
"""The protocol of Amazon SQS (version 2012-11-05) beside zq's own."""
