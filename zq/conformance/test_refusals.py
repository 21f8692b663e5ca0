# SPDX-License-Identifier: Apache-2.0
"""Every driver raises a refusal with the message of its error class."""

from collections.abc import Callable

import pytest

from zq import errors
from zq.conformance.builders import Scene, make_key
from zq.model import Bounds, ClaimRef, Fence, Release

Refused = Callable[[Scene], object]


def claimed_by_another(scene: Scene) -> object:
    [message] = scene.post(1)
    scene.take()
    return scene.delete(message)


def claimed_by_nobody(scene: Scene) -> object:
    return scene.delete(scene.post(1)[0], "unknown")


def many_claimed_by_nobody(scene: Scene) -> object:
    return scene.delete_many(scene.post(2), ["unknown"])


def some_claimed_by_another(scene: Scene) -> object:
    posted = scene.post(2)
    mine, _ = scene.take(1), scene.take(1)
    return scene.delete_many(posted, [mine.id])


def key_of_another_request(scene: Scene) -> object:
    scene.post(1, once=make_key())
    return scene.post(1, once=make_key(digest=b"another"))


def full_stage(scene: Scene) -> object:
    return scene.stage("s1", 3, max_messages=2)


def other_count(scene: Scene) -> object:
    scene.stage("s1", 3)
    return scene.commit(1, ["s1"], expected={"s1": 4})


def large_commit(scene: Scene) -> object:
    scene.stage("s1", 3)
    return scene.commit(1, ["s1"], bounds=Bounds(1, 2))


REFUSALS: list[tuple[Refused, errors.ZqError]] = [
    (claimed_by_another, errors.MessageClaimed()),
    (claimed_by_nobody, errors.ClaimNotHeld()),
    (many_claimed_by_nobody, errors.ClaimNotHeld()),
    (some_claimed_by_another, errors.MessageClaimed()),
    (lambda scene: scene.held("none"), errors.ClaimNotFound()),
    (lambda scene: scene.renew("none"), errors.ClaimNotFound()),
    (lambda scene: scene.settle("none", release=[Release("x")]), errors.ClaimNotFound()),
    (lambda scene: scene.named("a.b", fence=Fence("job", 7)), errors.Fenced()),
    (key_of_another_request, errors.KeyReused()),
    (full_stage, errors.StageFull()),
    (lambda scene: scene.commit(1, ["none"]), errors.StageNotFound.of("none")),
    (other_count, errors.StageDiffers.of("s1", 3, 4)),
    (large_commit, errors.CommitTooLarge.of(3, 2)),
    (lambda scene: scene.commit(1, [], [ClaimRef(scene.at("none").queue, "a.b")]), errors.ClaimLapsed.of("a.b")),
    (lambda scene: scene.last("nobody"), errors.ProducerNotFound()),
]


@pytest.mark.parametrize(
    ("refused", "error"), REFUSALS, ids=[f"{at}-{type(error).__name__}" for at, (_, error) in enumerate(REFUSALS)]
)
def test_a_refusal_has_the_message_of_its_class(scene: Scene, refused: Refused, error: errors.ZqError):
    """The exception is exactly of this class, and its text is the same in every driver."""
    with pytest.raises(type(error)) as raised:
        refused(scene)
    assert (type(raised.value), str(raised.value)) == (type(error), str(error))
    assert str(error)
