# SPDX-License-Identifier: Apache-2.0
"""Standard Webhooks according to the specification (criterion E5), and encrypted secrets in the store."""

import base64
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.features import core_with_subscriptions
from zq.client.webhooks import RecentDeliveries, verify
from zq.clock import ManualClock
from zq.errors import Invalid
from zq.model.identity import SignedUrlOptions
from zq.storage import connect
from zq.subscriptions.model import Source
from zq.subscriptions.policy import SubscriptionPolicy
from zq.subscriptions.sealing import SecretSealer
from zq.subscriptions.subscriptions import Terms
from zq.wire import webhooks

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
MESSAGE = "msg_p5jXN8AQM9LWM0D4loKWxJek"
MOMENT = 1614265330
BODY = b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
GIVEN = {"webhook-id": MESSAGE, "webhook-timestamp": str(MOMENT), "webhook-signature": SIGNATURE}
OTHER = "whsec_" + base64.b64encode(b"o" * 32).decode()


def check(given: dict[str, str], body: bytes = BODY, now: float = MOMENT, secret: str = SECRET) -> str:
    return webhooks.verify(secret, given, body, now, 300)


def test_the_vector_of_the_specification() -> None:
    assert webhooks.signature(SECRET, MESSAGE, MOMENT, BODY) == SIGNATURE
    assert webhooks.headers([SECRET], MESSAGE, MOMENT, BODY) == GIVEN
    assert check({name.title(): value for name, value in GIVEN.items()}) == MESSAGE


def test_both_sign_while_a_secret_is_replaced() -> None:
    """The signatures are separated by a space; either secret verifies the message."""
    headers = webhooks.headers([OTHER, SECRET], MESSAGE, MOMENT, BODY)
    assert headers["webhook-signature"].split(" ")[1] == SIGNATURE
    for secret in (OTHER, SECRET):
        assert check(headers, secret=secret) == MESSAGE
    assert "webhook-signature" not in webhooks.headers([], MESSAGE, MOMENT, BODY)


@pytest.mark.parametrize(("seconds", "good"), [(0, True), (300, True), (-300, True), (301, False), (-301, False)])
def test_a_timestamp_too_old_or_in_the_future_is_refused(seconds: int, good: bool) -> None:
    if good:
        assert check(GIVEN, now=MOMENT + seconds) == MESSAGE
    else:
        with pytest.raises(Invalid, match="300 seconds"):
            check(GIVEN, now=MOMENT + seconds)


@pytest.mark.parametrize(
    ("change", "body"),
    [
        ({}, BODY + b" "),
        ({}, b""),
        ({"webhook-id": "msg_other"}, BODY),
        ({"webhook-timestamp": str(MOMENT + 1)}, BODY),
        ({"webhook-timestamp": "١٦١٤٢٦٥٣٣٠"}, BODY),
        ({"webhook-timestamp": f"{MOMENT}.0"}, BODY),
        ({"webhook-timestamp": "9" * 400}, BODY),
        ({"webhook-signature": SIGNATURE.replace("v1,", "v1a,")}, BODY),
        ({"webhook-signature": SIGNATURE[3:]}, BODY),
        ({"webhook-signature": "v1,"}, BODY),
        ({"webhook-signature": "v1,é"}, BODY),
        ({"webhook-signature": webhooks.signature(OTHER, MESSAGE, MOMENT, BODY)}, BODY),
        *(({name: ""}, BODY) for name in GIVEN),
    ],
)
def test_a_forged_one_is_refused(change: dict[str, str], body: bytes) -> None:
    with pytest.raises(Invalid):
        check(GIVEN | change, body)


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_!", "whsec_TWZLUTlyOEdLWXFUd1VQRDhJ", "x" * 92])
def test_an_invalid_secret_is_refused(secret: str) -> None:
    with pytest.raises(Invalid, match="whsec_"):
        check(GIVEN, secret=secret)


def test_a_new_secret_is_long_enough() -> None:
    """The specification requires 24 to 64 bytes."""
    made = {webhooks.new_secret() for _ in range(10)}
    assert len(made) == 10
    assert all(24 <= len(webhooks.key(secret)) <= 64 for secret in made)


def test_the_library_accepts_a_recent_message_once() -> None:
    """The timestamp is checked against the current time; a repeated message has the same id."""
    with pytest.raises(Invalid, match="300 seconds"):
        verify(SECRET, GIVEN, BODY)
    assert verify(SECRET, GIVEN, BODY, tolerance=1e12) == MESSAGE
    received = RecentDeliveries(max_ids=2)
    assert [received.is_new(id) for id in ("a", "a", "b", "a", "c", "a")] == [True, False, True, False, True, True]


def _sealer(*keys: str) -> SecretSealer:
    return SecretSealer(lambda: SignedUrlOptions(secret_key=keys[0] if keys else "", old_secret_keys=keys[1:]))


def test_a_secret_is_opened_by_the_key_that_sealed_it() -> None:
    """The key may be any of the configured ones; each encryption differs."""
    sealed = _sealer("a" * 32).seal(SECRET)
    assert SECRET.encode() not in sealed
    assert sealed != _sealer("a" * 32).seal(SECRET)
    assert _sealer("b" * 32, "a" * 32).open(sealed) == SECRET
    assert _sealer("b" * 32).open(sealed) == ""
    assert _sealer().open(sealed) == ""
    for broken in (b"", sealed[:11], sealed[:-1], sealed[:-1] + bytes([sealed[-1] ^ 1])):
        assert _sealer("a" * 32).open(broken) == ""
    with pytest.raises(Invalid, match="secret_key"):
        _sealer().seal(SECRET)


def test_the_bytes_of_a_store_hold_no_secret(tmp_path: Path) -> None:
    """The store never contains a secret, neither after the subscription nor after the secret was rotated."""
    folder = tmp_path / "store"
    storage, source = connect(f"rocksdb:{folder}"), Source("acme", "queue", "jobs")
    try:
        policy = SubscriptionPolicy(sealer=_sealer("a" * 32))
        _, use_cases = core_with_subscriptions(storage, ManualClock(1_800_000_000.0), policy)
        subscriptions = use_cases.subscriptions
        made = subscriptions.create(source, Terms("http://trigger.me"))
        secrets = [made.secret, subscriptions.rotate(source, made.id)]
        one = use_cases.stored.get(source).find(made.id)
        assert one is not None
        assert list(policy.secrets(one, 1_800_000_000.0)) == secrets[::-1]
    finally:
        storage.close()
    files = [each.read_bytes() for each in folder.rglob("*") if each.is_file()]
    assert any(b"http://trigger.me" in each for each in files), "The subscription is there to be read."
    plain: list[Callable[[str], bytes]] = [str.encode, lambda secret: webhooks.key(secret), lambda s: s[6:].encode()]
    assert not [1 for each in files for secret in secrets for form in plain if form(secret) in each]
