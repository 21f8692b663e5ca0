# SPDX-License-Identifier: Apache-2.0
"""A store that was used with a clock days ahead, which was then set right."""

import pytest

from zq.conformance.builders import Scene, drafts

pytestmark = pytest.mark.fresh_store


def test_posts_after_a_false_future_can_be_claimed(scene: Scene):
    """Messages posted in the false future keep their time; later messages do not wait for it."""
    future = scene.now + 864_000
    scene.storage.messages.post(scene.queue, drafts(1, future, ttl=864_000 * 2), future)
    fresh = scene.post(2)
    assert scene.claimable() == fresh
