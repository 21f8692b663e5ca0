# SPDX-License-Identifier: Apache-2.0
"""What the Python client repeats, and that no repeat does harm: a proxy loses answers after the work was done, turns
requests away, and falls silent."""

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.client.either import bodies, client_of
from tests.client.misbehaving import BUSY, LOST_ANSWER, LOST_REQUEST, SILENT, Proxy, Trouble
from tests.servers import ZqServer, free_port
from zq import errors
from zq.client import Client, Retries
from zq.client.transport import told
from zq.model import Settled

QUICK = Retries(attempts=5, deadline=10, first=0.01, most=0.05)


@pytest.fixture
def proxy(running: ZqServer) -> Iterator[Proxy]:
    with Proxy(running.url).serving() as serving:
        yield serving


@pytest.fixture
def client(proxy: Proxy, kind: str, project: str) -> Iterator[Any]:
    with client_of(kind, proxy.url, project, timeout=0.5, retries=QUICK) as opened:
        yield opened


@pytest.mark.parametrize(
    "trouble", [LOST_ANSWER, LOST_REQUEST, BUSY, SILENT], ids=["answer", "request", "busy", "silent"]
)
def test_a_post_counts_once_whatever_happened_to_it(client: Any, proxy: Proxy, trouble: Trouble) -> None:
    """One key for all attempts of a call, another one for the next call."""
    queue = client.queue("jobs")
    proxy.plan(trouble, trouble)
    queue.post("once")
    assert len(proxy.seen) == 3
    assert len({key for *_, key in proxy.seen}) == 1
    assert proxy.seen[0][2]
    proxy.plan()
    queue.post("once more")
    assert bodies(queue.list()) == ["once", "once more"]


def test_a_claim_whose_answer_was_lost_is_found_again(client: Any, proxy: Proxy) -> None:
    """The repeat asks for the same name and gets the same messages; no message waits for a claim to lapse."""
    queue = client.queue("jobs")
    queue.post_batch(range(4))
    proxy.plan(LOST_ANSWER)
    claim = queue.claim(2)
    assert bodies(claim.messages) == [0, 1]
    assert proxy.seen[0] == proxy.seen[1]
    assert queue.stats().claimed == 2


def test_a_settlement_whose_answer_was_lost_says_what_it_did(client: Any, proxy: Proxy) -> None:
    """Though the claim is over by the time of the repeat."""
    queue = client.queue("jobs")
    queue.post_batch(range(2))
    claim = queue.claim(2)
    proxy.plan(LOST_ANSWER)
    assert queue.settle(claim.id, delete=[message.id for message in claim.messages]) == Settled(deleted=2)


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
    with client_of(kind, proxy.url, retries=Retries(attempts=3, first=0.01)) as client:
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
        assert time.monotonic() - began < 0.5
    dead = f"http://127.0.0.1:{free_port()}"
    sentence = pytest.raises(errors.Unavailable, match=r"^The server at 127\.0\.0\.1:\d+ cannot be reached\.$")
    with client_of(kind, dead, retries=Retries(deadline=0.3, first=0.01)) as client, sentence:
        client.queue("jobs").pop()


def test_refusals_are_not_repeated(client: Any, proxy: Proxy) -> None:
    """What is wrong stays wrong."""
    proxy.plan()
    with pytest.raises(errors.MessageNotFound):
        client.queue("jobs").get("0" * 32)
    assert len(proxy.seen) == 1


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, '{"title": "Unable to delete", "description": "No."}', errors.ClaimNotHeld),
        (403, '{"title": "Unable to delete", "description": "No."}', errors.MessageClaimed),
        (403, '{"title": "Forbidden"}', errors.NotAuthorized),
        (404, '{"title": "Not found", "description": "No."}', errors.NotFound),
        (401, '{"error": {"code": 401, "title": "Unauthorized"}}', errors.NotAuthorized),
        (413, "<html>too large</html>", errors.Invalid),
        (500, "", errors.ZqError),
    ],
)
def test_other_servers_errors_are_told_by_status_and_title(status: int, body: str, kind: type[Exception]) -> None:
    """A Zaqar server does not name the class, and a proxy sends its own pages."""
    error = told(httpx.Response(status, content=body.encode()))
    assert type(error) is kind
    assert str(error).endswith(".")
    assert "\n" not in str(error)


def test_what_is_no_address_of_a_server_is_refused_at_once() -> None:
    """Not at the first request, after a minute of attempts."""
    with pytest.raises(errors.Invalid, match="http"):
        Client("localhost:8888", "acme")


def test_headers_of_the_callers_authentication_are_sent(running: ZqServer, kind: str) -> None:
    """``auth`` is whatever httpx takes; here a function that changes the project."""

    def other_project(request: httpx.Request) -> httpx.Request:
        request.headers["X-Project-ID"] = f"from-auth-{kind}"
        return request

    with client_of(kind, running.url, "acme", auth=other_project) as client:
        client.queue("jobs").post(1)
    with client_of(kind, running.url, f"from-auth-{kind}") as client:
        assert client.queue("jobs").stats().free == 1
