# SPDX-License-Identifier: Apache-2.0
"""Deliveries of topics: subscribers get messages published after they confirm, even if a follower is killed."""

from typing import Any

import pytest

from tests.features import fan_out_of
from tests.http.api import Api
from tests.http.conftest import Compose
from tests.http.test_subscriptions import OPTIONS, subscribe
from zq.clock import ManualClock
from zq.errors import Unavailable
from zq.model import ClaimRequest, Lease, new_ids
from zq.storage.api import Storage
from zq.subscriptions.fan_out import FanOut
from zq.subscriptions.model import Notice, Source, make_log_ref
from zq.subscriptions.notices import decode_notice


@pytest.fixture
def api(compose: Compose) -> Api:
    return compose(app=OPTIONS)


@pytest.fixture
def following(storage: Storage, clock: ManualClock) -> FanOut:
    return fan_out_of(storage, clock)


def agreed(api: Api, topic: str = "news", subscriber: str = "http://8.8.8.8/one") -> str:
    """Subscribe to the topic, confirm the subscription, and return its id."""
    path = f"/v2/topics/{topic}/subscriptions"
    id: str = subscribe(api, path, subscriber=subscriber)["subscription_id"]
    api.put(f"{path}/{id}/confirm", 204, {"confirmed": True})
    return id


def publish(api: Api, *bodies: Any, topic: str = "news") -> None:
    api.post(f"/v2/topics/{topic}/messages", 201, {"messages": [{"body": body} for body in bodies]})


def pending(storage: Storage, api: Api, clock: ManualClock, id: str, topic: str = "news") -> list[Notice]:
    """Return the pending deliveries of a subscription without the confirmation request."""
    queue = Source(api.project, "topic", topic).worker_queue(id)
    request = ClaimRequest(Lease(new_ids(1, clock.now())[0], 60, 0), 1000)
    claim = storage.claims.create(queue, request, clock.now()).claim
    found = [decode_notice(message.body) for message in claim.messages] if claim else []
    return [each for each in found if not each.confirmation]


def bodies(storage: Storage, api: Api, clock: ManualClock, id: str, topic: str = "news") -> list[bytes]:
    return [each.body for each in pending(storage, api, clock, id, topic)]


def test_each_gets_what_is_published_to_its_topic_after_it_agreed(
    api: Api, storage: Storage, clock: ManualClock, following: FanOut
) -> None:
    publish(api, "before")
    one = agreed(api)
    publish(api, "first")
    late, other = agreed(api, subscriber="http://8.8.8.8/late"), agreed(api, "other")
    publish(api, "second", "third")
    publish(api, "elsewhere", topic="other")
    publish(api, "nobody's", topic="third")
    while (followed := following.follow(api.project)) and followed.has_more:
        pass
    assert bodies(storage, api, clock, one) == [b'"first"', b'"second"', b'"third"']
    assert bodies(storage, api, clock, late) == [b'"second"', b'"third"']
    assert bodies(storage, api, clock, other, "other") == [b'"elsewhere"']
    assert following.follow(api.project) is not None
    assert bodies(storage, api, clock, one) == []


def test_a_project_without_subscribers_is_not_followed(
    api: Api, storage: Storage, clock: ManualClock, following: FanOut
) -> None:
    publish(api, "x")
    assert following.follow(api.project) is None
    id = agreed(api)
    assert make_log_ref(api.project) in following.list_work(api.project)
    api.delete(f"/v2/topics/news/subscriptions/{id}", 204)
    assert following.follow(api.project) is None
    assert make_log_ref(api.project) not in following.list_work(api.project)
    again = agreed(api)
    publish(api, "y")
    following.follow(api.project)
    assert bodies(storage, api, clock, again) == [b'"y"']


def test_who_agrees_while_the_log_is_read_misses_nothing(
    api: Api, storage: Storage, clock: ManualClock, following: FanOut, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The follower has already read the subscriptions when it reads a message for the new subscription."""
    one, late = agreed(api), ""
    read = storage.topics.read

    def reads_late(*arguments: Any) -> Any:
        nonlocal late
        if not late:
            monkeypatch.undo()
            late = agreed(api, subscriber="http://8.8.8.8/late")
            publish(api, "x")
        return read(*arguments)

    monkeypatch.setattr(storage.topics, "read", reads_late)
    followed = following.follow(api.project)
    assert followed is not None
    assert followed.has_more
    assert following.follow(api.project) is not None
    assert bodies(storage, api, clock, late) == [b'"x"']
    told = pending(storage, api, clock, one)
    assert len({each.message for each in told}) == 1  # delivered twice with the same id


def test_who_subscribes_while_the_last_one_is_forgotten_is_followed(
    api: Api, storage: Storage, clock: ManualClock, following: FanOut, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.delete(f"/v2/topics/news/subscriptions/{agreed(api)}", 204)
    late = ""
    delete = storage.documents.delete

    def deletes_late(*arguments: Any, **terms: Any) -> bool:
        nonlocal late
        monkeypatch.undo()
        late = agreed(api)
        return delete(*arguments, **terms)

    monkeypatch.setattr(storage.documents, "delete", deletes_late)
    assert following.follow(api.project) is not None
    publish(api, "x")
    following.follow(api.project)
    assert bodies(storage, api, clock, late) == [b'"x"']


def test_who_is_killed_before_the_cursor_moves_tells_it_again(
    api: Api, storage: Storage, clock: ManualClock, following: FanOut, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The delivery has the same id."""
    id = agreed(api)
    publish(api, "x")

    def fails(*_arguments: Any, **_terms: Any) -> bool:
        raise Unavailable

    with monkeypatch.context() as patched:
        patched.setattr(storage.documents, "put", fails)
        with pytest.raises(Unavailable):
            following.follow(api.project)
    following.follow(api.project)
    told = pending(storage, api, clock, id)
    assert [each.body for each in told] == [b'"x"', b'"x"']
    assert len({each.message for each in told}) == 1


def test_a_circle_of_topics_ends(api: Api, storage: Storage, clock: ManualClock, following: FanOut) -> None:
    """E4: A message that has passed five deliveries is not delivered further."""
    id = agreed(api)
    for hops in (4, 5):
        body = {"messages": [{"body": hops}]}
        api.post("/v2/topics/news/messages", 201, body, headers={"Zq-Hops": str(hops)})
    following.follow(api.project)
    assert [(each.body, each.hops) for each in pending(storage, api, clock, id)] == [(b"4", 4)]
