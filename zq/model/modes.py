# SPDX-License-Identifier: Apache-2.0
"""Modes of a deployment, which restrict the requests that its servers accept."""

from enum import StrEnum


class Mode(StrEnum):
    """The requests that the servers of a store accept: all, all that add no messages, or all that change nothing."""

    NORMAL = "normal"
    NO_POSTS = "no_posts"
    READ_ONLY = "read_only"
