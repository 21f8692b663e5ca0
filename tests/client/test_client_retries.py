# SPDX-License-Identifier: Apache-2.0
"""Retries of the Python client: safe although a proxy loses responses, rejects requests or hangs."""

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
    """All attempts of a call have the same idempotency key; the next call has another key."""
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
    """A retry cannot help, although the 503 has a Retry-After; a plain 503 is retried."""
    queue = client.queue("jobs")
    proxy.plan(DAMAGED)
    with pytest.raises(errors.StoreDamaged):
        bodies(queue.list())
    assert len(proxy.seen) == 1
    proxy.plan(BUSY)
    assert bodies(queue.list()) == []
    assert len(proxy.seen) == 2


def test_a_claim_whose_answer_was_lost_is_found_again(client: Any, proxy: Proxy) -> None:
    """The retry has the same claim name and gets the same messages, so that none waits for an expiry."""
    queue = client.queue("jobs")
    queue.post_batch(range(4))
    proxy.plan(LOST_ANSWER)
    claim = queue.claim(2)
    assert bodies(claim.messages) == [0, 1]
    assert proxy.seen[0] == proxy.seen[1]
    assert queue.stats().claimed == 2


def test_a_claim_without_an_answer_is_given_back(proxy: Proxy, kind: str, project: str) -> None:
    """Its messages are released; a claim with the caller's name stays, so that the caller can find it."""
    with client_of(kind, proxy.url, project, retries=Retries(attempts=2, first_delay=0.01)) as client:
        queue = client.queue("jobs")
        queue.post_batch(range(4))
        for name, claimed in ((None, 0), ("mine.1", 2)):
            proxy.plan(LOST_ANSWER, LOST_REQUEST)
            with pytest.raises(errors.Unavailable):
                queue.claim(2, name=name)
            assert queue.stats().claimed == claimed


def test_a_claim_that_is_cancelled_is_given_back(proxy: Proxy, running: ZqServer, project: str) -> None:
    """The server had already made the claim when the request was cancelled."""
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
    """The claim is already finished when the request is retried."""
    queue = client.queue("jobs")
    queue.post_batch(range(2))
    claim = queue.claim(2)
    proxy.plan(LOST_ANSWER)
    assert queue.settle(claim.id, delete=[message.id for message in claim.messages]) == SettleResult(deleted=2)


def test_a_pop_is_never_sent_twice(client: Any, proxy: Proxy) -> None:
    """The lost response contained messages, and a retry would pop more."""
    queue = client.queue("jobs")
    queue.post_batch(range(3))
    for trouble in (LOST_ANSWER, BUSY):
        proxy.plan(trouble)
        with pytest.raises(errors.Unavailable):
            queue.pop()
        assert len(proxy.seen) == 1
    assert bodies(queue.pop(3)) == [1, 2]


def test_a_pop_that_reached_no_server_is_repeated(kind: str, project: str) -> None:
    """The connection failed, so nothing was popped. The ``auth`` function counts the attempts."""
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
    """Every transient status is retried."""
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
    """No retry is sent before the requested time."""
    proxy.plan(Trouble(passes=False, status=503, headers=(("Retry-After", "1"),)))
    began = time.monotonic()
    client.ping()
    assert time.monotonic() - began >= 1


def test_what_lasts_longer_than_the_deadline_is_unavailable(proxy: Proxy, kind: str) -> None:
    """The number of attempts, the deadline or a later Retry-After ends the retries with one error message."""
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
    """A retry would fail in the same way."""
    proxy.plan()
    with pytest.raises(errors.MessageNotFound):
        client.queue("jobs").get("0" * 32)
    assert len(proxy.seen) == 1


@pytest.mark.parametrize(
    ("trouble", "sentence"),
    [
        (Trouble(passes=False, status=302, headers=(("Location", "/login"),)), "302 Found, a redirect to /login"),
        (Trouble(passes=False, status=200), "This client cannot parse the response"),
    ],
)
def test_answer_of_another_server_is_an_error(client: Any, proxy: Proxy, trouble: Trouble, sentence: str) -> None:
    """A redirect or a proxy's page is an error, because the request was not processed."""
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
    """The error is never an exception of a library, for a success or an error response."""
    proxy.plan(Trouble(passes=False, status=200, content=content))
    with pytest.raises(errors.ZqError, match="This client cannot parse the response"):
        list(client.queue("jobs").consume(wait=0, until_empty=True))
    proxy.plan(Trouble(passes=False, status=400, content=content, headers=(("X-Zq-Error", "Any"),)))
    with pytest.raises(errors.Invalid, match="answered 400"):
        client.limits()


@pytest.mark.parametrize("asked", ["\xb2", "1" * 400, "soon", ""])
def test_a_strange_retry_after_is_bounded(asked: str) -> None:
    """Any header value results in 0 to 3600 seconds."""
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
    """Zaqar does not name the error class, and proxies send their own pages."""
    error = error_from(httpx.Response(status, content=body.encode()))
    assert type(error) is kind
    assert str(error).endswith(".")
    assert "\n" not in str(error)


def test_invalid_server_url_is_refused_at_once() -> None:
    """The constructor raises the error, not the first request."""
    for url in ("localhost:8888", "http://", "http://host:99999", "http://host:port"):
        with pytest.raises(errors.Invalid, match="URL"):
            Client(url, "acme")


def test_what_no_header_can_hold_is_refused_at_once(client: Any, proxy: Proxy) -> None:
    """The error is raised before anything is sent, and is not a network error."""
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
    """The URL's scheme may have any case."""
    with Client(url, "acme") as client:
        assert client.transport._client._transport._pool._ssl_context.verify_mode is ssl.CERT_REQUIRED


def test_a_closed_client_says_so(proxy: Proxy, kind: str) -> None:
    """The error is a ``ZqError``."""
    with client_of(kind, proxy.url) as client:
        client.close()
        with pytest.raises(errors.ZqError, match="closed"):
            client.ping()


def test_headers_of_the_callers_authentication_are_sent(running: ZqServer, kind: str) -> None:
    """``auth`` may be anything that httpx accepts; the test uses a function that changes the project."""

    def other_project(request: httpx.Request) -> httpx.Request:
        request.headers["X-Project-ID"] = f"from-auth-{kind}"
        return request

    with client_of(kind, running.url, "acme", auth=other_project) as client:
        client.queue("jobs").post(1)
    with client_of(kind, running.url, f"from-auth-{kind}") as client:
        assert client.queue("jobs").stats().free == 1


def test_a_commit_that_is_under_way_is_asked_for_until_it_is_done(client: Any, proxy: Proxy) -> None:
    """A 202 is neither a result nor a failure: it counts neither as an attempt nor against the deadline."""
    under_way = Trouble(passes=False, status=202, headers=(("Retry-After", "1"),), content=b'{"published":1}')
    client.queue("out").stage("etl.1", [1, 2])
    proxy.commits.extend([under_way] * 2)
    assert client.commit("etl", 1, publish=[("etl.1", 2)]).published == 2
    assert [path for _, path, _ in proxy.seen if path.startswith("/v2/commits")] == ["/v2/commits"] * 3


def test_a_stage_with_other_messages_is_an_error(client: Any) -> None:
    """The error has its own class (contract A.9)."""
    client.queue("out").stage("etl.1", [1, 2])
    with pytest.raises(errors.StageDiffers, match="has 2 messages, but 3 are expected"):
        client.commit("etl", 1, publish=[("etl.1", 3)])
