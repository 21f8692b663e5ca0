# SPDX-License-Identifier: Apache-2.0
"""The Amazon SQS protocol (API version 2012-11-05), served in addition to zq's own API."""
