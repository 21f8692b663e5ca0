# SPDX-License-Identifier: Apache-2.0
"""Subscriptions over HTTP (contract 9): subscribers, responses, and metadata that queues hide."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.features import core_with_subscriptions, fan_out_of
from tests.http.api import PATCH_TYPE, Api
from tests.http.conftest import Compose
from tests.http.scoped import Scoped
from tests.tables import every_row
from zq.auth.signatures import derive_confirmation_key, signature
from zq.clock import ManualClock
from zq.http.app import create_app
from zq.model import ClaimRequest, Lease, ListFilter, QueueRef, new_ids
from zq.model.identity import SignedUrlOptions
from zq.storage.api import Storage
from zq.subscriptions.documents import SubscriptionDocuments
from zq.subscriptions.feature import SubscriptionsFeature
from zq.subscriptions.model import Source, Subscription
from zq.subscriptions.notices import decode_notice
from zq.subscriptions.policy import SubscriptionPolicy
from zq.subscriptions.sealing import SecretSealer

OPTIONS = {"share": lambda: SignedUrlOptions(secret_key="s" * 32)}
SEALER = SecretSealer(OPTIONS["share"])
TARGET = "http://trigger.me"
HEAT = 220367260800
"""The ttl of OpenStack Heat's subscriptions."""


@pytest.fixture
def api(compose: Compose) -> Api:
    """Return a client of a server with a secret key."""
    return compose(app=OPTIONS)


@pytest.fixture(params=["queues", "topics"])
def path(request: pytest.FixtureRequest) -> str:
    """Return the path of the subscriptions of a source."""
    return f"/v2/{request.param}/jobs/subscriptions"


def subscribe(api: Api, path: str, status: int = 201, **terms: Any) -> dict[str, Any]:
    made: dict[str, Any] = api.post(path, status, {"subscriber": TARGET, "ttl": 600} | terms).json
    return made


def test_subscriptions_of_project_are_listed_over_all_sources(api: Api) -> None:
    """Pages may end within a source. Each entry has the kind of the source and the number of pending deliveries."""
    for number in range(3):
        subscribe(api, "/v2/queues/jobs/subscriptions", subscriber=f"{TARGET}/{number}")
        subscribe(api, "/v2/topics/news/subscriptions", subscriber=f"{TARGET}/{number}")
    subscribe(api, "/v2/queues/mail/subscriptions")
    pages = api.pages("/v2/subscriptions?limit=2", "subscriptions")
    listed = [each for page in pages for each in page]
    assert [(each["kind"], each["source"]) for each in listed] == [
        *[("queue", "jobs")] * 3,
        ("queue", "mail"),
        *[("topic", "news")] * 3,
    ]
    assert len({each["id"] for each in listed}) == 7
    [mail] = [each for each in listed if each["source"] == "mail"]
    assert (mail["subscriber"], mail["confirmed"], mail["dead"]) == (TARGET, False, 0)
    assert mail["waiting"] == 1, "the confirmation request"
    assert "marker" in api.get("/v2/subscriptions?marker=x", 400).json["description"]


def test_a_subscription_is_made_shown_and_ended(api: Api, path: str, clock: ManualClock) -> None:
    """9.1 to 9.4: All members are always present, and the secret is shown once."""
    answer = api.post(path, 201, {"subscriber": TARGET, "ttl": 600, "options": {"a": 1}})
    assert answer.headers["Location"] == path
    id = answer.json["subscription_id"]
    assert answer.json["secret"].startswith("whsec_")
    clock.advance(7)
    shown = {
        "id": id,
        "source": "jobs",
        "subscriber": TARGET,
        "ttl": 600,
        "age": 7,
        "options": {"a": 1},
        "confirmed": False,
    }
    assert api.get(f"{path}/{id}", 200).json == shown
    assert api.get(path, 200).json["subscriptions"] == [shown]
    api.delete(f"{path}/{id}", 204)
    api.delete(f"{path}/{id}", 204)
    api.get(f"{path}/{id}", 404)
    assert api.get(path, 200).json == {"subscriptions": [], "links": []}


def test_a_source_without_subscriptions_lists_none(api: Api, path: str) -> None:
    assert api.get(path, 200).json == {"subscriptions": [], "links": []}


def test_the_source_is_created_before_the_terms_are_checked(api: Api, path: str) -> None:
    api.post(path, 400, {"subscriber": ""})
    source = path.rsplit("/", 2)[0]
    assert [found["name"] for found in api.get(source, 200).json[source.removeprefix("/v2/")]] == ["jobs"]


@every_row(
    "subscriber",
    [None, "", 1, [], "fake", "email://fake", "http://", "http:/x", "http://a@b/", "http://u:p@h/", "http://h:x/",
     "http://h:99999/", "http://h/ x", "http://h/\n", "mailto:", "mailto:a", "mailto:@b", "mailto:a@b,c@d",
     "mailto:a@b?subject=%0d%0ax",
     "trust+http://h/", "trust+ftp://h/", "x" * 2049, "http://h\\@i/"],
)  # fmt: skip
def test_an_invalid_subscriber_is_refused(api: Api, path: str, subscriber: object) -> None:
    refused = api.post(path, 400, {"subscriber": subscriber}).json
    assert "subscriber" in refused["description"]


@every_row("ttl", [0, 59, -1, "60", 60.5, True, None, 1 << 63, 253402300799])
def test_an_invalid_ttl_is_refused(api: Api, path: str, ttl: object) -> None:
    assert api.post(path, 400, {"subscriber": TARGET, "ttl": ttl}).status_int == 400


def test_a_ttl_may_be_as_long_as_heats(api: Api, path: str) -> None:
    made = subscribe(api, path, ttl=HEAT)
    assert api.get(f"{path}/{made['subscription_id']}", 200).json["ttl"] == HEAT


@every_row(
    "options",
    [
        [], 1, "x",
        {"_retry_policy": {"retries_with_no_delay": "1"}},
        {"_retry_policy": {"minimum_delay": 25}},
        {"post_headers": []}, {"post_headers": {"a b": "x"}}, {"post_headers": {"a": "x\r\ny"}},
        {"post_headers": {"Host": "x"}}, {"post_headers": {"content-type": "x"}},
        {"post_headers": {"Webhook-Id": "x"}}, {"post_headers": {"X-Auth-Token": "x"}},
        {"post_headers": {"a": "x" * 4096}}, {"post_headers": {f"a{n}": "" for n in range(21)}},
        {"post_data": 1}, {"from": "a\nb"}, {"subject": 1}, {"x": "y" * 16384},
    ],
)  # fmt: skip
def test_invalid_options_are_refused(api: Api, path: str, options: object) -> None:
    assert "options" in api.post(path, 400, {"subscriber": TARGET, "options": options}).json["description"]


def test_null_options_mean_no_options(api: Api, path: str) -> None:
    made = subscribe(api, path, options=None)
    assert api.get(f"{path}/{made['subscription_id']}", 200).json["options"] == {}


@every_row("body", [b"", b"[]", b"1", b"{", b"null"])
def test_a_body_that_is_not_an_object_is_refused(api: Api, path: str, body: bytes) -> None:
    api.call("POST", path, 400, body)


@every_row(
    ("method", "below", "body", "sentence"),
    [
        ("POST", "", b"xxx", "body could not be parsed"),
        ("PUT", "/none/confirm", b"xxx", "body could not be parsed"),
        ("PATCH", "/none", b"xxx", "body could not be parsed"),
        ("POST", "", b"", "Missing parameter"),
        ("POST", "", b"{}", "Missing parameter"),
        ("POST", "", b'{"subscriber": "fake"}', "must be supported in the list"),
        ("POST", "", b'{"subscriber": "email://fake"}', "must be supported in the list"),
        ("POST", "", b'{"subscriber": "http://trigger.me", "options": "a"}', "must be a dict"),
        ("PATCH", "/none", b'{"options": "a"}', "must be a dict"),
        ("POST", "", b'{"subscriber": "http://trigger.me", "ttl": "a"}', "must be an integer"),
    ],
)
def test_a_refusal_holds_the_words_that_clients_look_for(
    api: Api, path: str, method: str, below: str, body: bytes, sentence: str
) -> None:
    assert sentence in api.call(method, path + below, 400, body).json["description"]


@every_row(
    ("method", "below", "body", "sentence"),
    [
        ("PATCH", "/none", b"[1]", "Subscriptions must be a dict."),
        ("POST", "", b"[1]", "Subscriptions must be a dict."),
        ("PUT", "/none/confirm", b'{"confirmed": 123}', "The 'confirmed' should be boolean."),
        ("PUT", "/none/confirm", b"{}", "The 'confirmed' should be boolean."),
        ("PUT", "/none/confirm", b"[1]", "The 'confirmed' should be boolean."),
    ],
)
def test_a_refusal_is_the_sentence_that_clients_compare(
    api: Api, path: str, method: str, below: str, body: bytes, sentence: str
) -> None:
    assert api.call(method, path + below, 400, body).json["description"] == sentence


def test_the_same_subscriber_is_asked_again_until_it_agrees(api: Api, path: str) -> None:
    """9.2 [T]: The id is the same and nothing changes; after confirmation the server answers 409 with a Location."""
    made = subscribe(api, path)
    again = api.post(path, 201, {"subscriber": TARGET, "ttl": 900, "options": {"b": 2}})
    assert again.json == {"subscription_id": made["subscription_id"]}
    item = f"{path}/{made['subscription_id']}"
    found = api.get(item, 200).json
    assert (found["ttl"], found["options"]) == (600, {})
    confirmed = api.put(f"{item}/confirm", 204, {"confirmed": True})
    assert confirmed.headers["Location"] == f"{item}/confirm"
    assert api.get(item, 200).json["confirmed"] is True
    assert api.post(path, 409, {"subscriber": TARGET}).headers["Location"] == path


def test_a_subscriber_of_a_queue_that_only_sqs_can_name_confirms(
    compose: Compose, storage: Storage, clock: ManualClock
) -> None:
    """The signed confirmation works for a name of 80 characters."""
    api, name = compose(app=OPTIONS), "x" * 80
    storage.queues.create(QueueRef(api.project, name), b"{}")
    path = f"/v2/queues/{name}/subscriptions"
    item = f"{path}/{subscribe(api, path)['subscription_id']}"
    expires = datetime.fromtimestamp(clock.now() + 600, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    key = derive_confirmation_key("s" * 32, api.project, 0)
    signed = {
        "URL-Signature": signature(key, [f"{item}/confirm"], ["PUT"], api.project, expires),
        "URL-Expires": expires,
        "URL-Methods": "PUT",
        "URL-Paths": f"{item}/confirm",
    }
    api.put(f"{item}/confirm", 204, {"confirmed": True}, headers=signed)
    assert api.get(item, 200).json["confirmed"] is True


@pytest.mark.parametrize("subscriber", [TARGET, "mailto:ann@example.org"])
@pytest.mark.parametrize("required", [True, False])
def test_the_owner_of_a_subscription_does_not_confirm_it(
    scoped: Scoped, storage: Storage, clock: ManualClock, path: str, subscriber: str, required: bool
) -> None:
    """Criterion E4: Only the subscriber, by its signature, and an administrator confirm. The owner may end it.

    Without ``require_confirmation`` the owner may confirm as in Zaqar, but no mail is sent before the recipient
    agrees.
    """
    policy = SubscriptionPolicy(confirm=required, sealer=SecretSealer(OPTIONS["share"]))
    broker, use_cases = core_with_subscriptions(storage, clock, policy)
    app = create_app(broker, strategy=scoped.strategy, features=[SubscriptionsFeature(use_cases)], **OPTIONS)
    owner = scoped.api(app=app)
    item = f"{path}/{subscribe(owner, path, subscriber=subscriber)['subscription_id']}"
    protected = required or subscriber != TARGET
    for _ in range(2):
        refused = owner.put(f"{item}/confirm", 403 if protected else 204, {"confirmed": True})
        assert not protected or refused.json["description"].startswith("Only the subscriber")
        assert owner.get(item, 200).json["confirmed"] is not protected
        owner.put(f"{item}/confirm", 204, {"confirmed": False})
        assert owner.get(item, 200).json["confirmed"] is False
    scoped.api(app=app, roles=frozenset({"admin"})).put(f"{item}/confirm", 204, {"confirmed": True})
    assert owner.get(item, 200).json["confirmed"] is True
    owner.put(f"{item}/confirm", 204, {"confirmed": False})
    expires = "2099-01-01T00:00:00"
    key = derive_confirmation_key("s" * 32, owner.project, 0)
    signed = {
        "URL-Signature": signature(key, [f"{item}/confirm"], ["PUT"], owner.project, expires),
        **{"URL-Methods": "PUT", "URL-Paths": f"{item}/confirm", "URL-Expires": expires},
        **{"X-Project-ID": owner.project, "X-Auth-Token": None},
    }
    owner.put(f"{item}/confirm", 204, {"confirmed": True}, headers=signed)
    assert owner.get(item, 200).json["confirmed"] is True


@pytest.mark.parametrize("needed", [True, False])
def test_who_has_confirmed_cannot_subscribe_again(compose: Compose, path: str, needed: bool) -> None:
    """9.1, 9.2 [T]: A new subscription is not confirmed, whether or not confirmation is required."""
    api = compose(app=OPTIONS, require_confirmation=needed)
    made = subscribe(api, path)
    item = f"{path}/{made['subscription_id']}"
    assert api.get(item, 200).json["confirmed"] is False
    assert api.post(path, 201, {"subscriber": TARGET}).json == {"subscription_id": made["subscription_id"]}
    api.put(f"{item}/confirm", 204, {"confirmed": True})
    assert api.get(item, 200).json["confirmed"] is True
    api.post(path, 409, {"subscriber": TARGET})
    api.call("PATCH", item, 204, {"subscriber": f"{TARGET}/other"})
    assert api.get(item, 200).json["confirmed"] is False
    api.post(path, 201, {"subscriber": f"{TARGET}/other"})
    api.put(f"{item}/confirm", 204, {"confirmed": True})
    api.put(f"{item}/confirm", 204, {"confirmed": False})
    assert api.get(item, 200).json["confirmed"] is False
    api.post(path, 201, {"subscriber": f"{TARGET}/other"})


@every_row("body", [{}, {"confirmed": 1}, {"confirmed": "true"}, {"confirmed": None}])
def test_a_confirmation_requires_a_boolean(api: Api, path: str, body: object) -> None:
    """9.6 [T]: The server checks the value before the id."""
    api.put(f"{path}/none/confirm", 400, body)


def test_what_is_not_there_cannot_be_confirmed(api: Api, path: str) -> None:
    """9.6: An id of another source is not found either."""
    made = subscribe(api, path)
    api.put(f"{path}/none/confirm", 404, {"confirmed": True})
    api.put(f"{path.replace('jobs', 'other')}/{made['subscription_id']}/confirm", 404, {"confirmed": True})


def test_an_agreement_can_be_taken_back(api: Api, path: str) -> None:
    item = f"{path}/{subscribe(api, path)['subscription_id']}"
    for agreed in (True, True, False, False, True):
        api.put(f"{item}/confirm", 204, {"confirmed": agreed})
        assert api.get(item, 200).json["confirmed"] is agreed


def test_a_subscription_is_changed(api: Api, path: str, clock: ManualClock) -> None:
    """9.5: The ttl restarts and options are replaced; null and unknown members change nothing."""
    item = f"{path}/{subscribe(api, path, options={'a': 1})['subscription_id']}"
    clock.advance(60)
    assert api.patch(item, 204, {"ttl": 900, "options": None, "x": 1}).headers["Location"] == item
    found = api.get(item, 200).json
    assert (found["ttl"], found["age"], found["options"]) == (900, 0, {"a": 1})
    api.patch(item, 204, {"options": {"b": 2}, "subscriber": TARGET})
    assert api.get(item, 200).json["options"] == {"b": 2}


@pytest.mark.parametrize("named", [True, False])
def test_another_subscriber_gets_no_secret_of_the_former_one(
    compose: Compose, storage: Storage, clock: ManualClock, path: str, named: bool
) -> None:
    """Criterion E6: Values of headers and the signing secret are removed; values in the same change are kept."""
    api, subscriptions = compose(app=OPTIONS), core_with_subscriptions(storage, clock)[1].subscriptions
    options = {"post_headers": {"X-Api-Key": "s3cret", "X-Plain": "p"}, "post_data": "d", "a": 1}
    id = subscribe(api, path, options=options)["subscription_id"]
    source = Source(api.project, path.split("/")[2][:-1], "jobs")
    before = subscriptions.get(source, id).value
    api.post(f"{path}/{id}/secret", 200)
    kept = api.get(f"{path}/{id}", 200).json["options"]
    api.patch(f"{path}/{id}", 204, {"subscriber": TARGET, "options": kept})
    same = subscriptions.get(source, id).value
    assert (same.options, same.former[0]) == (options, before.secret)
    kept["post_headers"]["X-New"] = "n"
    api.patch(f"{path}/{id}", 204, {"subscriber": "http://other.me"} | ({"options": kept} if named else {}))
    after = subscriptions.get(source, id).value
    assert after.options == {"post_data": "d", "a": 1} | ({"post_headers": {"X-New": "n"}} if named else {})
    assert after.secret not in (b"", before.secret, same.secret)
    assert after.former is None


@every_row("body", [b"", b"{}", b"[]", b'{"x": 1}', b'{"ttl": null}', b'{"ttl": 1}', b'{"subscriber": "x"}'])
def test_an_invalid_change_is_refused(api: Api, path: str, body: bytes) -> None:
    """9.5 [T, Q]: The server checks the change before the id."""
    api.call("PATCH", f"{path}/none", 400, body)


def test_a_change_keeps_subscribers_apart(api: Api, path: str) -> None:
    """9.5 [T]: A new subscriber has to confirm (E4)."""
    first = f"{path}/{subscribe(api, path)['subscription_id']}"
    subscribe(api, path, subscriber="http://other.me")
    api.put(f"{first}/confirm", 204, {"confirmed": True})
    api.patch(first, 409, {"subscriber": "http://other.me"})
    api.patch(first, 204, {"subscriber": "http://third.me"})
    found = api.get(first, 200).json
    assert (found["subscriber"], found["confirmed"]) == ("http://third.me", False)
    api.patch(f"{path}/none", 404, {"ttl": 60})


def test_pages_go_on_behind_the_marker(api: Api, path: str) -> None:
    made = {subscribe(api, path, subscriber=f"http://host{n}.me")["subscription_id"] for n in range(5)}
    seen, where = [], f"{path}?limit=2"
    while page := api.get(where, 200).json["subscriptions"]:
        seen += [each["id"] for each in page]
        where = f"{path}?limit=2&marker={seen[-1]}"
    assert sorted(seen) == sorted(made)
    assert len(seen) == 5


def test_a_subscription_ends(api: Api, path: str, clock: ManualClock) -> None:
    item = f"{path}/{subscribe(api, path, ttl=60)['subscription_id']}"
    clock.advance(61)
    api.get(item, 404)
    assert subscribe(api, path)["secret"]


def test_what_is_secret_is_not_shown(api: Api, path: str) -> None:
    """E6: A client that sends the shown options back does not change them."""
    options = {"post_headers": {"Authorization": "Bearer x"}, "post_data": "y"}
    made = subscribe(api, path, options=options)
    item = f"{path}/{made['subscription_id']}"
    shown = api.get(item, 200).json["options"]
    assert shown == {"post_headers": {"Authorization": "***"}, "post_data": "y"}
    api.patch(item, 204, {"options": shown})
    assert "Bearer x" not in api.get(path, 200).text
    assert api.get(item, 200).json["options"] == shown


def test_secrets_rotate(api: Api, path: str) -> None:
    made = subscribe(api, path)
    new = api.post(f"{path}/{made['subscription_id']}/secret", 200, None).json["secret"]
    assert new.startswith("whsec_")
    assert new != made["secret"]
    api.post(f"{path}/none/secret", 404, None)


def test_subscribing_without_a_secret_key_is_refused(compose: Compose, path: str) -> None:
    refused = compose().post(path, 400, {"subscriber": TARGET}).json
    assert "[signed_url] secret_key" in refused["description"]


def test_a_source_has_a_hundred_at_most(api: Api) -> None:
    path = "/v2/queues/jobs/subscriptions"
    for number in range(100):
        subscribe(api, path, subscriber=f"http://host{number}.me")
    assert "100" in subscribe(api, path, 403)["description"]


def test_a_purge_ends_subscriptions(api: Api, path: str) -> None:
    """6.8: This holds by default and if the purge names them; deletion of a queue keeps them (6.6)."""
    source = path.rpartition("/")[0]
    for body, left in (({"resource_types": ["messages"]}, 1), ({"resource_types": ["subscriptions"]}, 0), (None, 0)):
        api.post(path, 201, {"subscriber": TARGET})
        api.post(f"{source}/purge", 204, body)
        assert len(api.get(path, 200).json["subscriptions"]) == left
    subscribe(api, path)
    api.delete(source, 204)
    assert len(api.get(path, 200).json["subscriptions"]) == 1


class TestNotices:
    """Notifications that posts create."""

    PATH = "/v2/queues/jobs/subscriptions"

    def notices(self, storage: Storage, api: Api, clock: ManualClock) -> list[Any]:
        queue = Source(api.project, "queue", "jobs").notices
        request = ClaimRequest(Lease(new_ids(1, clock.now())[0], 60, 0), 1000)
        claim = storage.claims.create(queue, request, clock.now()).claim
        return [decode_notice(message.body).body for message in claim.messages] if claim else []

    def agreed(self, api: Api) -> str:
        item = f"{self.PATH}/{subscribe(api, self.PATH)['subscription_id']}"
        api.put(f"{item}/confirm", 204, {"confirmed": True})
        return item

    def test_where_confirmation_is_not_needed_messages_go_to_a_subscriber_until_it_declines(
        self, compose: Compose, storage: Storage, clock: ManualClock
    ) -> None:
        """9.7: Messages are delivered before the subscriber confirms, and after."""
        api = compose(app=OPTIONS, require_confirmation=False)
        item = f"{self.PATH}/{subscribe(api, self.PATH)['subscription_id']}"
        api.send("jobs", "unconfirmed")
        api.put(f"{item}/confirm", 204, {"confirmed": True})
        api.send("jobs", "confirmed")
        api.put(f"{item}/confirm", 204, {"confirmed": False})
        api.send("jobs", "declined")
        assert self.notices(storage, api, clock) == [b'"unconfirmed"', b'"confirmed"']

    def test_the_option_decides_at_delivery_whether_a_subscriber_has_to_agree(
        self, compose: Compose, storage: Storage, clock: ManualClock
    ) -> None:
        """9.1, 9.7: The store has the subscriber's response; a changed option applies to all subscriptions at once."""
        free = compose(app=OPTIONS, require_confirmation=False)
        source = Source(free.project, "queue", "jobs")
        made = subscribe(free, self.PATH)["subscription_id"]
        strict = compose(app=OPTIONS, require_confirmation=True)

        def delivered(body: str, confirm: bool) -> list[bytes]:
            free.send("jobs", body)
            fan_out = fan_out_of(storage, clock, SubscriptionPolicy(confirm=confirm))
            for queue in (source.notices, source.worker_queue(made)):
                request = ClaimRequest(Lease(new_ids(1, clock.now())[0], 60, 0), 1000)
                claim = storage.claims.create(queue, request, clock.now()).claim
                if claim and queue == source.notices:
                    fan_out.fan_out(queue, claim)
            return [decode_notice(message.body).body for message in claim.messages] if claim else []

        assert delivered("free", confirm=False) == [b'"free"']
        assert delivered("strict", confirm=True) == []
        strict.post(f"{self.PATH}/{made}/deliveries", 409)
        strict.put(f"{self.PATH}/{made}/confirm", 204, {"confirmed": True})
        assert delivered("agreed", confirm=True) == [b'"agreed"']
        strict.put(f"{self.PATH}/{made}/confirm", 204, {"confirmed": False})
        assert delivered("declined", confirm=False) == []

    def test_a_subscriber_that_declines_while_agreement_is_needed_gets_nothing_without_it(
        self, compose: Compose, storage: Storage, clock: ManualClock
    ) -> None:
        """9.6: The decline is stored, although there were no deliveries at that time."""
        free, strict = (compose(app=OPTIONS, require_confirmation=needed) for needed in (False, True))
        made = subscribe(free, self.PATH)["subscription_id"]
        strict.put(f"{self.PATH}/{made}/confirm", 204, {"confirmed": False})
        free.send("jobs", "unwanted")
        assert self.notices(storage, free, clock) == []

    def test_a_subscription_from_when_agreement_was_needed_starts_when_it_is_made_again(
        self, compose: Compose, storage: Storage, clock: ManualClock
    ) -> None:
        """Deliveries start unless the subscriber has declined."""
        strict, free = (compose(app=OPTIONS, require_confirmation=needed) for needed in (True, False))
        made = subscribe(strict, self.PATH)
        assert subscribe(free, self.PATH)["subscription_id"] == made["subscription_id"]
        free.send("jobs", "started")
        assert self.notices(storage, free, clock) == [b'"started"']
        free.put(f"{self.PATH}/{made['subscription_id']}/confirm", 204, {"confirmed": False})
        subscribe(free, self.PATH)
        free.send("jobs", "declined")
        assert self.notices(storage, free, clock) == []

    @pytest.mark.parametrize("needed", [True, False])
    def test_a_pending_subscription_of_an_earlier_version_is_asked_again_and_can_be_confirmed(
        self, compose: Compose, storage: Storage, clock: ManualClock, needed: bool
    ) -> None:
        """Earlier versions stored ``agreed=False`` for a pending subscription and for a declined one.

        Deliveries start only after the subscriber confirms, or the owner if confirmation is not required.
        """
        api = compose(app=OPTIONS, require_confirmation=needed)
        source = Source(api.project, "queue", "jobs")
        api.put("/v2/queues/jobs", 201)
        stored = SubscriptionDocuments(storage, clock)
        subscriber = f"http://pending-{needed}.me".lower()
        former = Subscription("0" * 32, subscriber, 600, clock.now(), secret=SEALER.seal("whsec_"), agreed=False)
        stored.change(source, lambda all: (all.replace(former), None))
        assert subscribe(api, self.PATH, subscriber=subscriber)["subscription_id"] == former.id
        pending = storage.messages.list(source.worker_queue(former.id), 0, 10, ListFilter(), clock.now()).items
        confirmations = [decode_notice(message.body).confirmation for message in pending]
        assert confirmations == (["SubscriptionConfirmation"] if needed else [])
        api.send("jobs", "pending")
        api.put(f"{self.PATH}/{former.id}/confirm", 204, {"confirmed": True})
        api.send("jobs", "confirmed")
        assert self.notices(storage, api, clock) == [b'"confirmed"']

    def test_a_post_leaves_a_notice_of_each_message_where_somebody_has_agreed(
        self, api: Api, storage: Storage, clock: ManualClock
    ) -> None:
        api.send("jobs", "before")
        item = f"{self.PATH}/{subscribe(api, self.PATH)['subscription_id']}"
        api.send("jobs", "unconfirmed")
        assert self.notices(storage, api, clock) == []
        api.put(f"{item}/confirm", 204, {"confirmed": True})
        api.send("jobs", "one", "two")
        assert self.notices(storage, api, clock) == [b'"one"', b'"two"']
        api.put(f"{item}/confirm", 204, {"confirmed": False})
        api.send("jobs", "after")
        assert self.notices(storage, api, clock) == []

    def test_another_server_learns_of_it_with_its_next_post(
        self, compose: Compose, storage: Storage, clock: ManualClock
    ) -> None:
        """Every accepted message has its notifications, although the server has cached the queue's former rules."""
        one, other = compose(app=OPTIONS), compose(app=OPTIONS)
        other.send("jobs", "before")
        self.agreed(one)
        other.send("jobs", "after")
        assert self.notices(storage, one, clock) == [b'"after"']

    def test_a_queue_that_reappears_has_its_subscriptions(self, api: Api, storage: Storage, clock: ManualClock) -> None:
        self.agreed(api)
        api.delete("/v2/queues/jobs", 204)
        assert api.get("/v2/queues", 200).json["queues"] == []
        api.send("jobs", "again")
        assert self.notices(storage, api, clock) == [b'"again"']

    def test_metadata_hide_and_keep_it(self, api: Api, storage: Storage, clock: ManualClock) -> None:
        """Clients cannot access the internal metadata of subscriptions or zq's internal queues."""
        self.agreed(api)
        api.send("jobs", "one")
        assert "~" not in api.get("/v2/queues/jobs", 200).text
        assert "~" not in api.get("/v2/queues?detailed=true", 200).text
        assert api.get("/v2/queues?with_count=true", 200).json["count"] == 1
        change = [{"op": "add", "path": "/metadata/~0subscriptions", "value": 1}]
        headers = {"Content-Type": PATCH_TYPE}
        api.call("PATCH", "/v2/queues/jobs", 400, change, headers)
        api.call("PATCH", "/v2/queues/jobs", 200, [{"op": "add", "path": "/metadata/a", "value": 1}], headers)
        api.call("PUT", "/v2/queues/new", 400, {"~subscriptions": 1})
        api.send("jobs", "two")
        assert self.notices(storage, api, clock) == [b'"one"', b'"two"']
        api.get("/v2/queues/~notices/messages", 400)

    def test_only_those_who_had_agreed_get_it(self, api: Api, storage: Storage, clock: ManualClock) -> None:
        """A subscriber that confirms after a message was accepted does not get it, even if fan-out is still pending."""
        ids = []
        for message in ("one", "two"):
            made = subscribe(api, self.PATH, subscriber=f"http://{message}{api.project}.me")
            ids.append(made["subscription_id"])
            api.put(f"{self.PATH}/{ids[-1]}/confirm", 204, {"confirmed": True})
            api.send("jobs", message)
        queue = Source(api.project, "queue", "jobs").notices
        request = ClaimRequest(Lease(new_ids(1, clock.now())[0], 60, 0), 1000)
        claim = storage.claims.create(queue, request, clock.now()).claim
        assert claim is not None
        source = Source(api.project, "queue", "jobs")
        told = fan_out_of(storage, clock).fan_out(queue, claim)
        assert sorted(told) == sorted(source.worker_queue(id) for id in ids)
        counts = [storage.queues.stats(source.worker_queue(id), clock.now()).free for id in ids]
        assert counts == [2 + 1, 1 + 1]  # each subscriber also got a confirmation request
