# SPDX-License-Identifier: Apache-2.0
"""Limits of the SQS API."""

from typing import Final

# Maximum number of tags per queue, and maximum length of a tag's key and value in characters.
MAX_TAGS: Final = 50
MAX_TAG_KEY: Final = 128
MAX_TAG_VALUE: Final = 256
# Maximum length of an access policy in characters.
MAX_ACCESS_POLICY: Final = 8192
# Maximum number of source queues in a redrive allow policy.
MAX_SOURCES: Final = 10
# Minimum, maximum and default of each numeric queue attribute.
NUMBERS: Final = {
    "VisibilityTimeout": (0, 43_200, 30),
    "MessageRetentionPeriod": (60, 1_209_600, 345_600),
    "DelaySeconds": (0, 900, 0),
    "MaximumMessageSize": (1024, 1_048_576, 1_048_576),
    "ReceiveMessageWaitTimeSeconds": (0, 20, 0),
    "KmsDataKeyReusePeriodSeconds": (60, 86_400, 300),
}
# Maximum ``maxReceiveCount`` of a redrive policy.
MAX_RECEIVES: Final = 1000
# Maximum number of queues in a page.
MAX_PAGE: Final = 1000
# Maximum size of a request body in bytes. A message of the maximum size fits even if all its characters are escaped.
MAX_BODY: Final = 2_621_440
