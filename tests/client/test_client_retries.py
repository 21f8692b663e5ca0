# SPDX-License-Identifier: Apache-2.0
"""What the Python client repeats, and that no repeat does harm: a proxy loses answers after the work was done, turns
requests away, and falls silent."""

import asyncio
import ssl
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.client.client_kinds import bodies, client_of
from tests.client.misbehaving import BUSY, LATE, LOST_ANSWER, LOST_REQUEST, SILENT, Proxy, Trouble
from tests.servers import ZqServer, free_port
from zq import errors
from zq.client import AsyncClient, Client, PostStopped, Retries
from zq.client.calls import error_from, parse_retry_after
from zq.model import SettleResult

DAMAGED = Trouble(
    passes=False,
    status=503,
    headers=(("X-Zq-Error", "StoreDamaged"), ("Content-Type", "application/json"), ("Retry-After", "1")),
    content=b'{"title": "Store damaged", "description": "It is."}',
)
QUICK = Retries(attempts=5, deadline=60, first_delay=0.01, max_delay=0.05)


@pytest.fixture
def client(proxy: Proxy, kind: str, project: str) -> Iterator[Any]:
    with client_of(kind, proxy.url, project, retries=QUICK) as opened:
        yield opened


@pytest.mark.parametrize(
    "trouble",
    [LOST_ANSWER, LOST_REQUEST, BUSY, pytest.param(SILENT, marks=pytest.mark.slow)],
    ids=["answer", "request", "busy", "silent"],
)
def test_a_post_counts_once_whatever_happened_to_it(
    kind: str, project: str, client: Any, proxy: Proxy, trouble: Trouble
) -> None:
    """One key for all attempts of a call, another one for the next call."""
    queue = client.queue("jobs")
    proxy.plan(trouble, trouble)
    if trouble is SILENT:
        with client_of(kind, proxy.url, project, timeout=3, retries=QUICK) as impatient:
            impatient.queue("jobs").post("once")
    else:
        queue.post("once")
    assert len(proxy.seen) == 3
    assert len({key for *_, key in proxy.seen}) == 1
    assert proxy.seen[0][2]
    proxy.plan()
    queue.post("once more")
    assert bodies(queue.list()) == ["once", "once more"]


def test_a_call_that_meets_damage_is_not_repeated(client: Any, proxy: Proxy) -> None:
    """Trying again does not help, although every 503 may name a time to do so; a plain 503 is tried again."""
    queue = client.queue("jobs")
    proxy.plan(DAMAGED)
    with pytest.raises(errors.StoreDamaged):
        bodies(queue.list())
    assert len(proxy.seen) == 1
    proxy.plan(BUSY)
    assert bodies(queue.list()) == []
    assert len(proxy.seen) == 2


def test_a_claim_whose_answer_was_lost_is_found_again(client: Any, proxy: Proxy) -> None:
    """The repeat asks for the same name and gets the same messages; no message waits for a claim to lapse."""
    queue = client.queue("jobs")
    queue.post_batch(range(4))
    proxy.plan(LOST_ANSWER)
    claim = queue.claim(2)
    assert bodies(claim.messages) == [0, 1]
    assert proxy.seen[0] == proxy.seen[1]
    assert queue.stats().claimed == 2


def test_a_claim_without_an_answer_is_given_back(proxy: Proxy, kind: str, project: str) -> None:
    """Its messages do not wait for it to lapse; under a name of the caller's it stays, to be found by him."""
    with client_of(kind, proxy.url, project, retries=Retries(attempts=2, first_delay=0.01)) as client:
        queue = client.queue("jobs")
        queue.post_batch(range(4))
        for name, claimed in ((None, 0), ("mine.1", 2)):
            proxy.plan(LOST_ANSWER, LOST_REQUEST)
            with pytest.raises(errors.Unavailable):
                queue.claim(2, name=name)
            assert queue.stats().claimed == claimed


def test_a_claim_that_is_cancelled_is_given_back(proxy: Proxy, running: ZqServer, project: str) -> None:
    """The server had made it already, and its answer was on its way."""
    with Client(running.url, project) as observer:
        queue = observer.queue("jobs")
        queue.post_batch(range(2))

        async def cancelled() -> None:
            async with AsyncClient(proxy.url, project) as client:
                proxy.plan(LATE)
                claim = asyncio.create_task(client.queue("jobs").claim(2))
                while not await asyncio.to_thread(lambda: queue.stats().claimed):
                    await asyncio.sleep(0.01)
                claim.cancel()
                await asyncio.wait([claim])
                assert claim.cancelled()

        asyncio.run(cancelled())
        assert queue.stats().claimed == 0


def test_a_settlement_whose_answer_was_lost_says_what_it_did(client: Any, proxy: Proxy) -> None:
    """Though the claim is over by the time of the repeat."""
    queue = client.queue("jobs")
    queue.post_batch(range(2))
    claim = queue.claim(2)
    proxy.plan(LOST_ANSWER)
    assert queue.settle(claim.id, delete=[message.id for message in claim.messages]) == SettleResult(deleted=2)


def test_a_pop_is_never_sent_twice(client: Any, proxy: Proxy) -> None:
    """Its lost answer took messages along, and a repeat would take more."""
    queue = client.queue("jobs")
    queue.post_batch(range(3))
    for trouble in (LOST_ANSWER, BUSY):
        proxy.plan(trouble)
        with pytest.raises(errors.Unavailable):
            queue.pop()
        assert len(proxy.seen) == 1
    assert bodies(queue.pop(3)) == [1, 2]


def test_a_pop_that_reached_no_server_is_repeated(kind: str, project: str) -> None:
    """Nothing of it was sent, so nothing was popped. What signs requests counts them."""
    attempts: list[str] = []

    def signed(request: httpx.Request) -> httpx.Request:
        attempts.append(request.method)
        return request

    retries = Retries(attempts=3, deadline=60, first_delay=0.01, max_delay=0.05)
    dead, unreached = f"http://127.0.0.1:{free_port()}", pytest.raises(errors.Unavailable, match="cannot be reached")
    with client_of(kind, dead, project, auth=signed, retries=retries) as client, unreached:
        client.queue("jobs").pop()
    assert attempts == ["DELETE"] * 3


def test_reads_renewals_and_deletions_are_repeated(client: Any, proxy: Proxy) -> None:
    """As often as it takes, on every status of trouble that passes."""
    queue = client.queue("jobs")
    queue.post(1)
    for status in (429, 502, 503, 504):
        proxy.plan(Trouble(passes=False, status=status), Trouble(passes=False, status=status))
        assert queue.stats().free == 1
    claim = queue.claim()
    proxy.plan(LOST_ANSWER)
    queue.renew(claim.id, ttl=100)
    proxy.plan(LOST_ANSWER)
    queue.delete()
    assert not queue.exists()


def test_retry_after_is_honoured(client: Any, proxy: Proxy) -> None:
    """No attempt comes before the time that the server asked for."""
    proxy.plan(Trouble(passes=False, status=503, headers=(("Retry-After", "1"),)))
    began = time.monotonic()
    client.ping()
    assert time.monotonic() - began >= 1


def test_what_lasts_longer_than_the_deadline_is_unavailable(proxy: Proxy, kind: str) -> None:
    """The number of attempts, the deadline and a Retry-After beyond it end the repeating; one sentence says why."""
    with client_of(kind, proxy.url, retries=Retries(attempts=3, first_delay=0.01)) as client:
        proxy.plan(*[BUSY] * 9)
        with pytest.raises(errors.Unavailable, match=r"^The server answered 503 Service Unavailable\.$"):
            client.ping()
        assert len(proxy.seen) == 3
        proxy.troubles.clear()
    with client_of(kind, proxy.url, retries=Retries(deadline=0.5)) as client:
        proxy.plan(Trouble(passes=False, status=429, headers=(("Retry-After", "60"),)))
        began = time.monotonic()
        with pytest.raises(errors.Unavailable):
            client.ping()
        assert time.monotonic() - began < 30
    dead = f"http://127.0.0.1:{free_port()}"
    sentence = pytest.raises(
        errors.Unavailable, match=r"^The server at 127\.0\.0\.1:\d+ cannot be reached \(connection refused\)\.$"
    )
    with client_of(kind, dead, retries=Retries(deadline=0.3, first_delay=0.01)) as client, sentence:
        client.queue("jobs").pop()


def test_refusals_are_not_repeated(client: Any, proxy: Proxy) -> None:
    """What is wrong stays wrong."""
    proxy.plan()
    with pytest.raises(errors.MessageNotFound):
        client.queue("jobs").get("0" * 32)
    assert len(proxy.seen) == 1


@pytest.mark.parametrize(
    ("trouble", "sentence"),
    [
        (Trouble(passes=False, status=302, headers=(("Location", "/login"),)), "302 Found, a redirect to /login"),
        (Trouble(passes=False, status=200), "This client cannot read the answer"),
    ],
)
def test_a_strangers_answer_is_no_success(client: Any, proxy: Proxy, trouble: Trouble, sentence: str) -> None:
    """A redirect, or a page of a proxy: what was to be done has not been done."""
    queue = client.queue("jobs")
    verbs: list[Any] = [lambda: queue.delete_messages(["a"]), lambda: queue.renew("a"), client.ping, queue.create]
    verbs += [lambda: next(iter(client.topic("news").stream())), lambda: queue.post(1)]
    for verb in verbs:
        proxy.plan(trouble)
        with pytest.raises(errors.ZqError, match=sentence):
            verb()
    for content in (b"<h1>trouble</h1>", b'{"resources": ["a"]}'):
        proxy.plan(None, None, trouble._replace(content=content))
        with pytest.raises(PostStopped) as caught:
            queue.post_many(range(5))
        assert caught.value.stored == []
        assert caught.value.maybe_stored == ([range(5)])


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b'{"limits":"\xff"}', b'{"a":' + b"[" * 100_000, b'{"max_wait": "long"}'],
    ids=["nothing", "empty", "bytes", "deep", "texts"],
)
def test_garbage_is_an_error_of_one_sentence(client: Any, proxy: Proxy, content: bytes) -> None:
    """Never by an error of a library's, be it in an answer or in a refusal."""
    proxy.plan(Trouble(passes=False, status=200, content=content))
    with pytest.raises(errors.ZqError, match="This client cannot read the answer"):
        list(client.queue("jobs").consume(wait=0, until_empty=True))
    proxy.plan(Trouble(passes=False, status=400, content=content, headers=(("X-Zq-Error", "Any"),)))
    with pytest.raises(errors.Invalid, match="answered 400"):
        client.limits()


@pytest.mark.parametrize("asked", ["\xb2", "1" * 400, "soon", ""])
def test_a_strange_retry_after_is_bounded(asked: str) -> None:
    """Whatever the header holds, it is seconds."""
    assert 0 <= parse_retry_after({"Retry-After": asked}) <= 3600


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, '{"title": "Unable to delete", "description": "No."}', errors.ClaimNotHeld),
        (403, '{"title": "Unable to delete", "description": "No."}', errors.MessageClaimed),
        (403, '{"title": "Forbidden"}', errors.NotAuthorized),
        (404, '{"title": "Not found", "description": "No."}', errors.NotFound),
        (401, '{"error": {"code": 401, "title": "Unauthorized"}}', errors.NotAuthenticated),
        (413, "<html>too large</html>", errors.Invalid),
        (500, "", errors.ZqError),
    ],
)
def test_other_servers_errors_are_known_by_status_and_title(status: int, body: str, kind: type[Exception]) -> None:
    """A Zaqar server does not name the class, and a proxy sends its own pages."""
    error = error_from(httpx.Response(status, content=body.encode()))
    assert type(error) is kind
    assert str(error).endswith(".")
    assert "\n" not in str(error)


def test_what_is_no_address_of_a_server_is_refused_at_once() -> None:
    """Not at the first request, after a minute of attempts."""
    for url in ("localhost:8888", "http://", "http://host:99999", "http://host:port"):
        with pytest.raises(errors.Invalid, match="URL"):
            Client(url, "acme")


def test_what_no_header_can_hold_is_refused_at_once(client: Any, proxy: Proxy) -> None:
    """Before anything is sent: it is no trouble of the network."""
    proxy.plan()
    for key in ("a\nb", "Bestellung-ü", "a b"):
        for post in (client.queue("jobs").post_batch, client.queue("jobs").settle):
            with pytest.raises(errors.InvalidHeader, match="key"):
                post("abc", key=key)
    for strange in ("a\nb", " a", "a\x00"):
        for project, client_id in ((strange, None), ("acme", strange)):
            with pytest.raises(errors.Invalid, match="control"):
                Client(proxy.url, project, client_id)

    def spoil(request: httpx.Request) -> httpx.Request:
        request.headers["X-Auth-Token"] = "a\nb"
        return request

    with Client(proxy.url, "acme", auth=spoil) as spoiling, pytest.raises(errors.Invalid, match="HTTP"):
        spoiling.ping()
    assert proxy.seen == []


@pytest.mark.parametrize("url", ["https://localhost", "HTTPS://localhost"])
def test_certificates_are_checked(url: str) -> None:
    """However the address is written, and for a proxy that speaks TLS; else there are none."""
    with Client(url, "acme") as client:
        assert client.transport._client._transport._pool._ssl_context.verify_mode is ssl.CERT_REQUIRED


def test_a_closed_client_says_so(proxy: Proxy, kind: str) -> None:
    """In zq's words."""
    with client_of(kind, proxy.url) as client:
        client.close()
        with pytest.raises(errors.ZqError, match="closed"):
            client.ping()


def test_headers_of_the_callers_authentication_are_sent(running: ZqServer, kind: str) -> None:
    """``auth`` is whatever httpx takes; here a function that changes the project."""

    def other_project(request: httpx.Request) -> httpx.Request:
        request.headers["X-Project-ID"] = f"from-auth-{kind}"
        return request

    with client_of(kind, running.url, "acme", auth=other_project) as client:
        client.queue("jobs").post(1)
    with client_of(kind, running.url, f"from-auth-{kind}") as client:
        assert client.queue("jobs").stats().free == 1


def test_a_commit_that_is_under_way_is_asked_for_until_it_is_done(client: Any, proxy: Proxy) -> None:
    """202 is no answer, and no failure: it counts neither as an attempt nor against the deadline."""
    under_way = Trouble(passes=False, status=202, headers=(("Retry-After", "1"),), content=b'{"published":1}')
    client.queue("out").stage("etl.1", [1, 2])
    proxy.commits.extend([under_way] * 2)
    assert client.commit("etl", 1, publish=[("etl.1", 2)]).published == 2
    assert [path for _, path, _ in proxy.seen if path.startswith("/v2/commits")] == ["/v2/commits"] * 3


def test_a_stage_with_other_messages_is_an_error(client: Any) -> None:
    """A.9, by its own class."""
    client.queue("out").stage("etl.1", [1, 2])
    with pytest.raises(errors.StageDiffers, match="has 2 messages, but 3 are expected"):
        client.commit("etl", 1, publish=[("etl.1", 3)])
