# SPDX-License-Identifier: Apache-2.0
"""Tokens of the Python client: sources, transmission, secrecy, and rejected requests."""

import logging
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from traceback import format_exception
from typing import Any

import pytest

from tests.client.client_kinds import bodies, client_of
from tests.client.misbehaving import LOST_ANSWER, Proxy, Trouble
from zq import errors
from zq.client import Retries
from zq.client.credentials import read_token_file
from zq.testing import Server, server

TOO_FAST = Trouble(
    passes=False,
    status=429,
    headers=(("X-Zq-Error", "TooManyRequests"), ("Content-Type", "application/json"), ("Retry-After", "1")),
    content=b'{"title": "Too many requests", "description": "The project may make at most 2 requests per second.",'
    b' "limit": "requests"}',
)
TO_REQUESTS = TOO_FAST._replace(status=503)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    with server(auth_strategy="token") as running:
        yield running


@pytest.fixture
def headers() -> Iterator[tuple[str, list[Any]]]:
    """Start a server that redirects to another name of itself, and yield its URL and the received headers."""
    seen: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers)
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{self.server.server_port}/v2/ping")  # type: ignore[attr-defined]
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}", seen
        http.shutdown()
        thread.join()


def test_a_token_names_the_project(guarded: Server, kind: str) -> None:
    """The client needs no project; another project than the token's is rejected with the server's message."""
    token = guarded.token("acme")
    with client_of(kind, guarded.url, "", token=token) as client:
        client.queue("jobs").post("mine")
    with client_of(kind, guarded.url, "acme", token=token) as client:
        assert bodies(client.queue("jobs").pop()) == ["mine"]
    with client_of(kind, guarded.url, "other", token=token) as client, pytest.raises(errors.NotAuthorized):
        client.queue("jobs").post("not mine")


def test_me_says_what_a_token_is_for(guarded: Server, kind: str) -> None:
    """The response has the rules of the token's scopes and its project."""
    token = guarded.token("acme", scopes=["observe:**"])
    with client_of(kind, guarded.url, "", token=token) as client:
        found = client.me()
    assert (found["project"], found["projects"], found["admin"], found["auth"]) == ("acme", ["acme"], False, "token")
    assert "queues:get" in found["rules"]
    assert "queues:purge" not in found["rules"]


def test_producer_token_posts_and_publishes_many(guarded: Server, kind: str) -> None:
    """The client cannot read the queue's size limit, and uses the server's limit for its batches."""
    token = guarded.token("acme", scopes=["produce:queue/many", "produce:topic/many"])
    with client_of(kind, guarded.url, "acme", token=token) as client:
        assert client.queue("many").post_many(range(1100)) == 1100
        assert client.topic("many").publish_many(range(3)) == 3
        with pytest.raises(errors.NotAuthorized):
            client.queue("many").metadata()


def test_the_environment_gives_the_token(guarded: Server, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument overrides the variable, also an empty token or another way to authenticate."""
    monkeypatch.setenv("ZQ_TOKEN", guarded.token("acme"))
    with client_of(kind, guarded.url) as client:
        client.ping()
    for options in ({"token": ""}, {"token": "zq_wrong"}, {"auth": lambda request: request}):
        with client_of(kind, guarded.url, **options) as client, pytest.raises(errors.NotAuthenticated):
            client.ping()


def test_refusals_are_errors_of_their_own_with_the_servers_sentence(guarded: Server, kind: str) -> None:
    sentence = r"^A credential is required: Authorization: Bearer <token>\.$"
    needed = pytest.raises(errors.NotAuthenticated, match=sentence)
    with client_of(kind, guarded.url, token="") as client, needed:
        client.ping()
    token = guarded.token("acme", scopes=["produce:queue/orders"])
    with client_of(kind, guarded.url, token=token) as client:
        client.queue("orders").post(1)
        with pytest.raises(errors.NotAuthorized, match=r"This credential does not allow .* queue orders") as refused:
            client.queue("orders").pop()
        assert type(refused.value) is errors.NotAuthorized
        assert token not in "".join(format_exception(refused.value))


def test_a_quota_that_is_used_up_is_an_error_of_its_own(kind: str) -> None:
    with (
        server(auth_strategy="token", quota={"queues": 1}) as bounded,
        client_of(kind, bounded.url, token=bounded.token("acme")) as client,
    ):
        client.queue("a").create()
        with pytest.raises(errors.QuotaExceeded, match=r"^The project may have at most 1 queues\.$"):
            client.queue("b").create()


def test_no_redirect_takes_a_token_along(headers: tuple[str, list[Any]], kind: str) -> None:
    """Only the named server gets a request, and the error has the redirect's target."""
    url, seen = headers
    with client_of(kind, url, token="zq_secret") as client, pytest.raises(errors.ZqError, match="a redirect to"):
        client.ping()
    assert [sent["Authorization"] for sent in seen] == ["Bearer zq_secret"]
    assert seen[0]["X-Auth-Token"] is None


def test_other_token_is_sent_in_keystones_header_too(headers: tuple[str, list[Any]], kind: str) -> None:
    url, seen = headers
    with client_of(kind, url, token="gAAAA-keystones") as client, pytest.raises(errors.ZqError):
        client.ping()
    assert (seen[0]["Authorization"], seen[0]["X-Auth-Token"]) == ("Bearer gAAAA-keystones", "gAAAA-keystones")


def test_nothing_shows_a_token(guarded: Server, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """The representations of client and settings, logs and errors have no token, even an unusable one."""
    caplog.set_level(logging.DEBUG)
    with client_of(kind, guarded.url, token="zq_0secret") as client:
        with pytest.raises(errors.NotAuthenticated) as refused:
            client.ping()
        settings = client.transport._settings
        shown = [
            repr(client),
            str(client),
            repr(settings),
            repr(settings.token),
            *format_exception(refused.value),
            caplog.text,
        ]
        lines = [line for text in shown for line in text.splitlines()]
        assert not [line for line in lines if "0secret" in line]
    for text in ("zq_0secret\nX-Roles: admin", "zq_0secret ", "zq_0secretü"):
        with pytest.raises(errors.Invalid) as wrong, client_of("blocking", guarded.url, token=text):
            pass
        assert "0secret" not in str(wrong.value)


@pytest.mark.parametrize("trouble", [TOO_FAST, TO_REQUESTS], ids=["429", "503"])
def test_rate_limited_call_waits_for_retry_after(
    proxy: Proxy, kind: str, project: str, trouble: Trouble, caplog: pytest.LogCaptureFixture
) -> None:
    """The request was not processed, so even a pop is retried; no attempt is counted, and the log has one line."""
    caplog.set_level(logging.INFO, "zq.client")
    with client_of(kind, proxy.url, project, retries=Retries(attempts=2, first_delay=0.01)) as client:
        proxy.plan(trouble, trouble, trouble)
        began = time.monotonic()
        assert bodies(client.queue("jobs").pop()) == []
        assert time.monotonic() - began >= 3
        assert len(proxy.seen) == 4
    said = [record.getMessage() for record in caplog.records if record.name == "zq.client"]
    assert said == ["The project may make at most 2 requests per second. Waiting 1 s, as requested by the server."]


def test_rate_limit_error_names_the_exceeded_limit(proxy: Proxy, kind: str, project: str) -> None:
    """The error is raised at once if the server's Retry-After exceeds the deadline."""
    with client_of(kind, proxy.url, project, retries=Retries(deadline=0.5)) as client:
        proxy.plan(TOO_FAST)
        with pytest.raises(errors.TooManyRequests, match="2 requests per second") as refused:
            client.ping()
        assert (refused.value.retry_after, refused.value.limit) == (1, "requests")
        assert len(proxy.seen) == 1


def test_a_lost_answer_before_it_is_not_forgotten(proxy: Proxy, kind: str, project: str) -> None:
    """The error's cause shows that an earlier attempt may have been processed."""
    with client_of(kind, proxy.url, project, retries=Retries(deadline=0.9, first_delay=0.01, max_delay=0.02)) as client:
        proxy.plan(LOST_ANSWER, TOO_FAST)
        with pytest.raises(errors.TooManyRequests) as refused:
            client.queue("jobs").post("once")
        assert isinstance(refused.value.__cause__, errors.Unavailable)


def test_a_consumer_waits_when_it_is_too_fast(proxy: Proxy, kind: str, project: str) -> None:
    """The consumer waits longer than a single call, and claims nothing twice."""
    with client_of(kind, proxy.url, project, retries=Retries(deadline=0.5, first_delay=0.01)) as client:
        queue = client.queue("jobs")
        queue.post_batch(range(3))
        proxy.plan(None, TOO_FAST, TOO_FAST)  # the first request is for the limits
        assert bodies(queue.consume(wait=0, until_empty=True)) == [0, 1, 2]
        assert queue.stats().total == 0


def test_a_consumer_whose_token_is_revoked_ends_with_the_server_s_sentence(
    guarded: Server, kind: str, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop raises ``NotAuthenticated``."""
    monkeypatch.setattr("zq.auth.tokens.CACHE_TTL", 1.0)  # seconds for which the server caches a credential
    token = guarded.token(project)
    with client_of(kind, guarded.url, project, token=token) as client:
        queue = client.queue("jobs")
        queue.post("last")

        def work() -> None:
            for message in queue.consume(wait=1):
                assert message.body == "last"
                guarded.revoke(token)

        with pytest.raises(errors.NotAuthenticated, match=r"^The credential is not valid\.$"):
            work()


def test_a_stream_ends_with_its_token(guarded: Server, kind: str) -> None:
    """A stream that cannot be opened raises the reason."""
    token = guarded.token("acme")
    with client_of(kind, guarded.url, token=token) as client:
        client.topic("news").publish("first")
        events = client.topic("news").stream(after=0)
        assert next(iter(events)).body == "first"
        events.close()
    with client_of(kind, guarded.url, token="zq_wrong") as client, pytest.raises(errors.NotAuthenticated):
        next(iter(client.topic("news").stream(after=0)))


def test_a_stream_ends_when_its_token_is_revoked(
    guarded: Server, kind: str, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends the stream, and the client raises the reason instead of reconnecting forever."""
    monkeypatch.setattr("zq.http.streams.HEARTBEAT", 1.0)  # seconds between two checks of the credential
    monkeypatch.setattr("zq.auth.tokens.CACHE_TTL", 1.0)  # seconds for which the server caches it
    token = guarded.token("acme")
    with client_of(kind, guarded.url, token=token) as client:
        client.topic(project).publish("first")
        events = client.topic(project).stream(after=0)
        heard = iter(events)
        assert next(heard).body == "first"
        guarded.revoke(token)
        with pytest.raises(errors.NotAuthenticated):
            next(heard)
        events.close()


def test_a_token_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("zq_abc\n")
    for mode in (0o644, 0o640, 0o602):
        file.chmod(mode)
        with pytest.raises(
            errors.Invalid, match=rf"^Other users can read or write the token file .*: chmod 600 {file}$"
        ):
            read_token_file(file)
    file.chmod(0o600)
    assert read_token_file(file) == "zq_abc"
    file.write_text("two words")
    with pytest.raises(errors.Invalid, match="contain only a token") as wrong:
        read_token_file(file)
    assert "words" not in str(wrong.value)
    with pytest.raises(errors.Invalid, match="cannot be read"):
        read_token_file(tmp_path / "none")


@pytest.mark.parametrize("wrong", [{"auth_strategy": "jwt"}, {"quota": {"queues": 1}}])
def test_a_server_of_tests_refuses_what_it_cannot_be(wrong: Any) -> None:
    with pytest.raises(ValueError, match="auth_strategy"), server(**wrong):
        pass
