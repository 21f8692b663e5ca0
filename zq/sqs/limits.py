# SPDX-License-Identifier: Apache-2.0
"""The limits of SQS."""

from typing import Final

# The maximum number of tags of a queue, and the maximum characters of a tag's key and value.
MAX_TAGS: Final = 50
MAX_TAG_KEY: Final = 128
MAX_TAG_VALUE: Final = 256
# The maximum characters of an access policy.
MAX_ACCESS_POLICY: Final = 8192
# The maximum number of queues that a redrive allow policy may name.
MAX_SOURCES: Final = 10
# The numeric attributes of a queue: minimum, maximum and default.
NUMBERS: Final = {
    "VisibilityTimeout": (0, 43_200, 30),
    "MessageRetentionPeriod": (60, 1_209_600, 345_600),
    "DelaySeconds": (0, 900, 0),
    "MaximumMessageSize": (1024, 1_048_576, 1_048_576),
    "ReceiveMessageWaitTimeSeconds": (0, 20, 0),
    "KmsDataKeyReusePeriodSeconds": (60, 86_400, 300),
}
# The maximum ``maxReceiveCount`` of a redrive policy.
MAX_RECEIVES: Final = 1000
# The maximum number of queues in a page.
MAX_PAGE: Final = 1000
# The maximum bytes of a request's body: the largest message, escaped.
MAX_BODY: Final = 2_621_440
