# SPDX-License-Identifier: Apache-2.0
"""``…/subscriptions/{subscription}/deliveries`` without a worker: pending deliveries and the test of a subscriber."""

import pytest

from tests.http.api import Api
from tests.http.conftest import Compose
from tests.http.test_subscriptions import OPTIONS, subscribe


@pytest.fixture
def api(compose: Compose) -> Api:
    """Return a client of a server with a secret key."""
    return compose(app=OPTIONS)


@pytest.mark.parametrize("kind", ["queues", "topics"])
def test_a_test_delivery_waits_for_its_own_subscriber(api: Api, kind: str) -> None:
    """A test delivery waits until its subscriber confirms; failed deliveries are listed separately."""
    path = f"/v2/{kind}/jobs/subscriptions"
    one, other = (subscribe(api, path, subscriber=f"http://8.8.8.8/{name}")["subscription_id"] for name in "ab")
    assert "has not confirmed" in api.post(f"{path}/{one}/deliveries", 409, None).json["description"]
    for id in (one, other):
        api.put(f"{path}/{id}/confirm", 204, {"confirmed": True})
    told = [api.post(f"{path}/{one}/deliveries", 202, None).json["message_id"] for _ in range(2)]

    question, *tests = api.get(f"{path}/{one}/deliveries?state=waiting", 200).json["deliveries"]
    assert question["Message_Type"] == "SubscriptionConfirmation"
    assert [each["message_id"] for each in tests] == told
    assert [(each["body"], each["attempts"], each["reason"]) for each in tests] == [({"test": True}, 0, "")] * 2
    page = api.get(f"{path}/{one}/deliveries?state=waiting&limit=2", 200).json
    assert api.get(page["links"][0]["href"], 200).json["deliveries"] == tests[1:]
    assert len(api.get(f"{path}/{other}/deliveries?state=waiting", 200).json["deliveries"]) == 1
    assert api.get(f"{path}/{one}/deliveries?state=dead", 200).json["deliveries"] == []
    assert api.get(f"{path}/{one}/deliveries", 200).json["deliveries"] == []
    api.get(f"/v2/{kind}/jobs/messages", 200)


def test_deliveries_of_a_missing_subscription_or_an_unknown_state_are_refused(api: Api) -> None:
    path = "/v2/queues/jobs/subscriptions"
    api.post(f"{path}/none/deliveries", 404, None)
    api.get(f"{path}/none/deliveries?state=waiting", 404)
    id = subscribe(api, path)["subscription_id"]
    refused = api.get(f"{path}/{id}/deliveries?state=lost", 400).json
    assert refused["description"] == "state must be dead or waiting."
