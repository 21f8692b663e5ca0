# SPDX-License-Identifier: Apache-2.0
"""The client in an interpreter, in logs and in errors: signatures, values, causes, counts."""

import inspect
import logging
import pydoc
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, get_origin

import msgspec
import pytest

from tests.servers import ZqServer
from zq.client import AsyncClient, Client, Message, Retries, WorkResult
from zq.client.calls import listing, operation
from zq.errors import Unavailable

NOWHERE = "http://127.0.0.1:1"
KINDS = [Client(NOWHERE, "acme"), Client(NOWHERE, "acme").queue("q"), Client(NOWHERE, "acme").topic("t")]
ASYNC_KINDS = [
    AsyncClient(NOWHERE, "acme"),
    AsyncClient(NOWHERE, "acme").queue("q"),
    AsyncClient(NOWHERE, "acme").topic("t"),
]


@pytest.mark.parametrize("target", [*KINDS, *ASYNC_KINDS], ids=lambda target: type(target).__name__)
def test_every_verb_says_what_it_takes_and_returns(target: Any) -> None:
    """Tab completion and ``help`` show names, types and docstrings, but not the decorators' internals."""
    verbs = inspect.getmembers_static(type(target), lambda member: isinstance(member, operation | listing))
    assert verbs
    for name, verb in verbs:
        bound = getattr(target, name)
        signature = inspect.signature(bound)
        assert "self" not in signature.parameters
        assert bound.__doc__ == verb.__doc__ != ""
        assert name in pydoc.plain(pydoc.render_doc(bound))
        assert "Call[" not in str(signature)
        waits = not isinstance(target, tuple(type(each) for each in ASYNC_KINDS))
        if isinstance(verb, listing):
            assert get_origin(signature.return_annotation) is (Iterator if waits else AsyncIterator)
        elif not waits:
            assert get_origin(signature.return_annotation) is Coroutine


def test_a_notebook_shows_the_body_and_no_password() -> None:
    """The representation of a message has a shortened body, and that of a client has no credentials."""
    message = Message("51f0", 60, 3, raw=msgspec.Raw(b'{"order": 1}'), claim_count=2)
    assert repr(message) == "Message(id='51f0', body={\"order\": 1}, ttl=60, age=3, claim_count=2)"
    assert len(repr(Message("51f0", 60, 3, raw=msgspec.Raw(b'"' + b"x" * 5000 + b'"')))) < 300
    assert repr(Client("http://me:secret@host:8888", "acme")) == "Client(http://host:8888, project='acme')"


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("http://127.0.0.1:1", "connection refused"),
        ("http://nohost.invalid:8888", "the host name cannot be resolved"),
    ],
)
def test_an_error_names_its_cause_and_the_first_repeat_is_logged(
    url: str, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The first retry is logged once."""
    with (
        Client(url, "acme", retries=Retries(first_delay=0.01, max_delay=0.02, deadline=0.5)) as client,
        pytest.raises(Unavailable, match=cause),
    ):
        client.queue("jobs").post(1)
    warnings = [record.getMessage() for record in caplog.records if record.name == "zq.client"]
    assert len(warnings) == 1
    assert cause in warnings[0]
    assert "Retrying" in warnings[0]


def test_a_server_without_tls_is_named_as_such(running: ZqServer) -> None:
    """The request uses https:// for a plain HTTP port."""
    url = running.url.replace("http://", "https://")
    with (
        Client(url, "acme", retries=Retries(attempts=1)) as client,
        pytest.raises(Unavailable, match="the TLS handshake failed"),
    ):
        client.ping()


def test_work_returns_counts_and_logs_nothing(running: ZqServer, caplog: pytest.LogCaptureFixture) -> None:
    """``work`` returns the number of handlers that succeeded and failed, and httpx logs nothing at level INFO."""
    caplog.set_level(logging.INFO)
    with Client(running.url, "acme") as client:
        queue = client.queue("counted")
        queue.post_many(range(7))

        def handle(message: Message) -> None:
            if message.body == 3:
                raise ValueError("three")

        worked = queue.work(handle, concurrency=2, until_empty=True, wait=1, backoff=60)
    assert worked == WorkResult(done=6, failed=1)
    assert [record.name for record in caplog.records if record.name.startswith("http")] == []
