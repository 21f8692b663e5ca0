# SPDX-License-Identifier: Apache-2.0
"""Topics where they differ from queues: keys, names, creation by publishing, and deletion (contract 13, extensions 8).

Common behaviour is tested together with queues.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.http.api import KINDS, RESERVED, TOPIC_RESERVED, Api
from tests.http.test_publishing import bodies, publish
from tests.tables import every_row
from zq.clock import ManualClock
from zq.core import NO_FOLLOWERS
from zq.core.creation import TopicCreation, TopicStore
from zq.core.data_keys import DataKeys
from zq.core.quotas import NO_QUOTAS
from zq.core.rules import CACHE_TTL, DefaultTtls
from zq.core.topics import Topics
from zq.model.limits import Limits
from zq.model.topics import TopicRef
from zq.storage.api import Storage

URL = "/v2/topics/news"
TTL, SIZE = "_default_message_ttl", "_max_messages_post_size"
ORDINARY = sorted(RESERVED.keys() - TOPIC_RESERVED.keys())
ZEROS = {"messages": {"claimed": 0, "free": 0, "total": 0}}


def names(api: Api) -> list[str]:
    """Return the names of the project's topics."""
    return api.names(KINDS[1])


def seen(api: Api, topic: str) -> list[Any]:
    """Return the bodies of a listing."""
    return bodies(api.get(f"/v2/topics/{topic}/messages?limit=20", 200))


def test_a_topic_and_a_queue_of_one_name_are_two_things(api: Api) -> None:
    """13: Topics have a namespace of their own; each is listed, shown, purged and deleted separately."""
    api.put("/v2/queues/news", 201, {"a": 1})
    api.put(URL, 201, {"a": 2})
    assert (api.queues(), names(api)) == (["news"], ["news"])
    api.send("news", "queued")
    publish(api, "published")
    api.post(f"{URL}/purge", 204)
    assert api.seen("news") == ["queued"]
    api.delete("/v2/queues/news", 204)
    assert api.get(URL, 200).json == {**TOPIC_RESERVED, "a": 2}


def test_only_three_reserved_keys_are_shown(api: Api) -> None:
    """13 [T]: Other reserved keys of queues are ordinary keys, shown once they are set."""
    assert api.get(URL, 200).json == TOPIC_RESERVED
    api.put(URL, 201, {"_max_claim_count": 3})
    assert api.get(URL, 200).json == {**TOPIC_RESERVED, "_max_claim_count": 3}


@pytest.mark.parametrize("key", TOPIC_RESERVED)
def test_a_reserved_key_of_a_topic_can_be_removed_though_never_set(api: Api, key: str) -> None:
    """13, 6.5 [T]: The removal has no effect."""
    api.put(URL, 201)
    assert api.patch(URL, 200, [{"op": "remove", "path": f"/metadata/{key}"}]).json == TOPIC_RESERVED


@pytest.mark.parametrize("key", ORDINARY)
def test_a_key_that_only_queues_reserve_cannot_be_removed_unset(api: Api, key: str) -> None:
    """13, 6.5: The server answers 409, and the error mentions the topic."""
    api.put(URL, 201)
    refused = api.patch(URL, 409, [{"op": "remove", "path": f"/metadata/{key}"}]).json
    assert refused["title"] == "Resource conflict"
    assert "topic" in refused["description"]


@every_row(
    ("key", "value"),
    [(TTL, 59), (TTL, 1209601), (SIZE, 0), (SIZE, 262145), ("_default_message_delay", 901), (TTL, "60")],
)
def test_a_reserved_value_out_of_range_is_refused(api: Api, key: str, value: object) -> None:
    """6.1, 13: PUT and PATCH refuse the value as for queues, and change nothing."""
    api = api.fresh()
    assert key in api.put(URL, 400, {key: value}).json["description"]
    assert names(api) == []
    api.put(URL, 201)
    api.patch(URL, 400, [{"op": "add", "path": f"/metadata/{key}", "value": value}])
    assert api.get(URL, 200).json == TOPIC_RESERVED


def test_a_topic_may_have_a_dead_letter_queue_of_its_own_name(api: Api) -> None:
    """13: The name denotes a queue, which has no effect on a topic."""
    api.put(URL, 201, {"_dead_letter_queue": "news"})


def test_encryption_of_a_topic_is_not_built(api: Api) -> None:
    """Extensions 0: The server answers 400 instead of storing and ignoring the key."""
    assert "_enable_encrypt_messages" in api.put(URL, 400, {"_enable_encrypt_messages": True}).json["description"]
    assert names(api) == []


@every_row("name", ["Nice-Bo@t", "a" * 65, "b%20c", "%C3%A9", "a%0A", "*", "a.*", ""])
@every_row("rest", ["", "/stats", "/purge", "/messages", "/messages/1", "/stream", "/subscriptions"])
def test_a_bad_name_is_refused_on_every_route(door: Api, name: str, rest: str) -> None:
    """1.2, 1.8, 13 [T]: The server answers 400 with the title of topics before it checks the method."""
    refused = door.get(f"/v2/topics/{name}{rest}", 400).json
    assert refused["title"] == "Invalid topic identification"
    assert "topic name" in refused["description"]


@pytest.mark.parametrize(("length", "status"), [(256, 200), (257, 400)])
def test_the_project_of_a_topic_has_at_most_256_characters(api: Api, length: int, status: int) -> None:
    """1.3, 1.8: The title of the error is that of topics."""
    answer = api.get(URL, status, {"X-Project-ID": "p" * length})
    assert status == 200 or answer.json["title"] == "Invalid topic identification"


def test_a_name_may_have_64_characters_and_dots(api: Api) -> None:
    for name in ("a" * 64, ".", "..", "a.b-c_D.9"):
        api.put(f"/v2/topics/{name}", 201)
    assert len(names(api)) == 4


def test_a_missing_topic_cannot_be_patched(api: Api) -> None:
    """6.5: The server answers 404, and the error mentions the topic."""
    assert "topic" in api.patch(URL, 404, []).json["description"]


def test_no_patch_overwrites_another(api: Api) -> None:
    """6.5: Each patch is atomic, so eight concurrent patches all take effect."""
    api.put(URL, 201)
    keys = [f"key{number}" for number in range(8)]
    with ThreadPoolExecutor(len(keys)) as pool:
        patches = [[{"op": "add", "path": f"/metadata/{key}", "value": key}] for key in keys]
        list(pool.map(lambda patch: api.patch(URL, 200, patch), patches))
    assert api.get(URL, 200).json == TOPIC_RESERVED | dict(zip(keys, keys, strict=True))


def test_publishing_creates_the_topic(api: Api) -> None:
    """Extensions 8: The topic has no metadata, like a queue created by a post; a later PUT answers 204."""
    publish(api, 1)
    assert names(api) == ["news"]
    assert api.get(URL, 200).json == TOPIC_RESERVED
    api.put(URL, 204, {"a": 1})


def test_stats_count_what_has_not_expired(api: Api, clock: ManualClock) -> None:
    """6.7, 13: No message is claimed. The oldest and newest messages have sequences if ``detailed`` is set."""
    publish(api, 1, ttl=60)
    first, last = publish(api, 2, 3, ttl=600)
    publish(api, 4, topic="other")
    clock.advance(100)
    stats = api.get(f"{URL}/stats?detailed=true", 200).json["messages"]
    assert (stats["claimed"], stats["free"], stats["total"]) == (0, 2, 2)
    assert stats["oldest"].keys() == {"href", "age", "created", "sequence"}
    assert (stats["oldest"]["href"], stats["oldest"]["age"]) == (f"{URL}/messages/{first}", 100)
    assert (stats["newest"]["href"], stats["newest"]["sequence"]) == (f"{URL}/messages/{last}", last)
    assert api.get(stats["oldest"]["href"], 200).json["body"] == 2
    assert "sequence" not in api.get(f"{URL}/stats", 200).json["messages"]["oldest"]


def test_purge_empties_one_topic_and_keeps_its_metadata(api: Api) -> None:
    """6.8, 13, L8: Other topics and projects keep their messages."""
    other = api.tenant(project="other")
    api.put(URL, 201, {"a": 1})
    for tenant, topic in ((api, "news"), (api, "news2"), (other, "news")):
        publish(tenant, "kept", topic=topic)
    api.post(f"{URL}/purge", 204, {"resource_types": ["subscriptions"]})
    assert seen(api, "news") == ["kept"]
    api.post(f"{URL}/purge", 400, {"resource_types": ["topics"]})
    api.post(f"{URL}/purge", 204)
    assert (seen(api, "news"), seen(api, "news2"), seen(other, "news")) == ([], ["kept"], ["kept"])
    assert api.get(f"{URL}/stats", 200).json == ZEROS
    assert api.get(URL, 200).json["a"] == 1
    publish(api, "new")
    assert seen(api, "news") == ["new"]


def test_deletion_takes_metadata_and_messages(api: Api) -> None:
    """6.6, 13: Afterwards the name is unused; the next message creates the topic again."""
    api.put(URL, 201, {"a": 1})
    [old] = publish(api, "old")
    api.delete(URL, 204)
    assert names(api) == []
    assert api.get(URL, 200).json == TOPIC_RESERVED
    assert api.get(f"{URL}/stats", 200).json == ZEROS
    api.get(f"{URL}/messages/{old}", 404)
    [new] = publish(api, "new")
    assert new > old
    assert names(api) == ["news"]
    assert seen(api, "news") == ["new"]


def test_what_a_topic_says_of_ttl_and_size_counts_at_once(api: Api) -> None:
    """6.1: This holds for PATCH, deletion and PUT, although the server caches the topic's rules."""
    [message] = publish(api, 1)
    assert api.get(f"{URL}/messages/{message}", 200).json["ttl"] == 3600
    api.patch(URL, 200, [{"op": "add", "path": f"/metadata/{key}", "value": 100} for key in (TTL, SIZE)])
    [message] = publish(api, 2)
    assert api.get(f"{URL}/messages/{message}", 200).json["ttl"] == 100
    api.post(f"{URL}/messages", 400, {"messages": [{"body": "x" * 100}]})
    api.delete(URL, 204)
    api.put(URL, 201, {TTL: 200})
    [message] = publish(api, "x" * 100)
    assert api.get(f"{URL}/messages/{message}", 200).json["ttl"] == 200


class Watch:
    """A monotonic clock that the test sets."""

    time = 100.0

    def __call__(self) -> float:
        return self.time


def test_another_servers_change_counts_after_a_second(
    storage: Storage, clock: ManualClock, project_suffix: str
) -> None:
    """Cached rules need no query until they expire; a server knows its own changes at once."""
    watch, default_ttls, news = Watch(), DefaultTtls(3600), TopicRef(f"acme{project_suffix}", "news")
    (here, known_here), (there, known_there) = (composed(storage, clock, default_ttls, watch) for _ in "ab")
    assert known_here.rules(news).ttl == 3600
    assert not there.create(news, b"{}"), "the first question has created it"
    there.delete(news)
    there.create(news, b'{"_default_message_ttl": 60}')
    watch.time += CACHE_TTL * 0.99
    assert (known_here.rules(news).ttl, known_there.rules(news).ttl) == (3600, 60)
    watch.time += CACHE_TTL * 0.01
    assert known_here.rules(news).ttl == 60
    here.delete(news)
    assert known_here.rules(news).ttl == 3600


def composed(
    storage: Storage, clock: ManualClock, default_ttls: DefaultTtls, monotonic: Callable[[], float] = time.monotonic
) -> tuple[Topics, TopicCreation]:
    """Return the use cases of topics of one server."""
    store = TopicStore(storage, clock)
    creation = TopicCreation(store, NO_QUOTAS, Limits(), default_ttls, monotonic)
    keys = DataKeys(storage.documents, clock, {})
    topics = Topics(storage, clock, Limits(), default_ttls, keys, NO_QUOTAS, store, creation, NO_FOLLOWERS)
    return topics, creation


def test_the_table_of_queues_ttls_is_not_for_topics(storage: Storage, clock: ManualClock, project_suffix: str) -> None:
    """``queue_ttl`` names queues only; topics show and use the default."""
    topics, creation = composed(storage, clock, DefaultTtls(120, [("*", 60)]))
    news = TopicRef(f"acme{project_suffix}", "news")
    assert creation.rules(news).ttl == 120
    assert topics.metadata(news)[TTL] == 120
