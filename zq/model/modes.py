# SPDX-License-Identifier: Apache-2.0
"""Modes of a deployment, which restrict the requests that its servers accept."""

from enum import StrEnum


class Mode(StrEnum):
    """The mode of a deployment, which determines the requests that its servers accept.

    ``NORMAL`` permits all requests. ``NO_POSTS`` forbids requests that add messages. ``READ_ONLY`` forbids requests
    that change anything.
    """

    NORMAL = "normal"
    NO_POSTS = "no_posts"
    READ_ONLY = "read_only"
