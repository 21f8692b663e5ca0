# SPDX-License-Identifier: Apache-2.0
"""Modes of a deployment, which restrict the requests that its servers accept."""

from enum import StrEnum


class Mode(StrEnum):
    """The requests that the servers of a store accept.

    Attributes:
        NORMAL: All requests.
        NO_POSTS: All requests that add no messages, so that consumers empty the queues.
        READ_ONLY: Requests that change nothing.
    """

    NORMAL = "normal"
    NO_POSTS = "no_posts"
    READ_ONLY = "read_only"
