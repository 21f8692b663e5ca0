# SPDX-License-Identifier: Apache-2.0
"""A store that was used while the clock was days ahead, after the clock was corrected."""

import pytest

from zq.conformance.builders import Scene, drafts

pytestmark = pytest.mark.fresh_store


def test_posts_after_a_false_future_can_be_claimed(scene: Scene):
    """Messages posted while the clock was ahead keep their available time. Later messages do not wait for it."""
    future = scene.now + 864_000
    scene.storage.messages.post(scene.queue, drafts(1, future, ttl=864_000 * 2), future)
    fresh = scene.post(2)
    assert scene.claimable() == fresh
