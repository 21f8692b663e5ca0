# SPDX-License-Identifier: Apache-2.0
"""Live claims are listed, with who holds them."""

from zq.conformance.builders import Scene
from zq.model import ClaimRequest, Holder, Lease

WHO = Holder("a" * 32, "tool/1 <script>\u202e")


def claim(scene: Scene, name: str, limit: int = 2, ttl: int = 60, holder: Holder = WHO, named: bool = False) -> None:
    request = ClaimRequest(Lease(name, ttl, 60), limit, named=named, holder=holder)
    scene.storage.claims.create(scene.queue, request, scene.now)


def test_a_claim_is_listed_with_its_holder(scene: Scene) -> None:
    """Until it was settled, and after a renewal with its new end."""
    scene.post(100)
    claim(scene, "a", 70)
    [found] = scene.storage.claims.list(scene.queue, "", 10, scene.now).items
    assert (found.id, found.holder, found.messages, found.ends) == ("a", WHO, 70, scene.now + 60)
    scene.storage.claims.renew(scene.queue, Lease("a", 300, 60), scene.now)
    [found] = scene.storage.claims.list(scene.queue, "", 10, scene.now).items
    assert (found.holder, found.messages, found.ends) == (WHO, 70, scene.now + 300)
    scene.storage.claims.release(scene.queue, "a", scene.now)
    assert scene.storage.claims.list(scene.queue, "", 10, scene.now).items == []


def test_pages_neither_skip_nor_repeat(scene: Scene) -> None:
    """Named, lapsed and settled claims among them; a lapsed one is not listed."""
    scene.post(60)
    for number in range(20):
        claim(scene, f"c{number:02}", ttl=60 if number % 2 else 120)
    scene.tick(61)
    found, after = [], ""
    while True:
        page = scene.storage.claims.list(scene.queue, after, 3, scene.now)
        found += [each.id for each in page.items]
        if page.next is None:
            break
        after = page.next
    assert found == [f"c{number:02}" for number in range(0, 20, 2)]


def test_who_takes_over_is_the_holder(scene: Scene) -> None:
    """Under the same name, after the first one lapsed; the caller that finds a claim changes nothing."""
    scene.post(2)
    claim(scene, "a", holder=Holder("b" * 32, "old"), named=True)
    claim(scene, "a", named=True)
    assert scene.storage.claims.list(scene.queue, "", 9, scene.now).items[0].holder.agent == "old"
    scene.tick(61)
    claim(scene, "a", named=True)
    assert scene.storage.claims.list(scene.queue, "", 9, scene.now).items[0].holder == WHO
