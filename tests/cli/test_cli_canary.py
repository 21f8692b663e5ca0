# SPDX-License-Identifier: Apache-2.0
"""``zq canary`` against a real server: its counts, its exported metrics, and the losses that it detects."""

import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from msgspec import Raw

from tests.cli.conftest import Process, Zq
from tests.client.misbehaving import Proxy, Trouble
from tests.servers import ZqServer, ask, free_port, wait_for
from zq.cli import canary
from zq.cli.canary import EXPIRY_MARGIN, TTL, Canary, CanaryMetrics, Ledger, describe_foreign
from zq.client import Client, Message
from zq.errors import NotAuthorized

QUICK = ("--queue", "canary", "--interval", "0.05")


@contextmanager
def started(zq: Zq, *words: str, code: int = 0) -> Iterator[tuple[Process, list[Any]]]:
    """Run a canary in the block, and yield the process and a list that has the printed lines afterwards."""
    lines: list[Any] = []
    with zq.start("canary", *QUICK, *words) as process:
        yield process, lines
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=60)
        assert process.returncode == code, errors
        lines += [json.loads(line) for line in out.splitlines()]


def metric(port: int, name: str) -> float:
    """Return the value of a metric, or -1 if the metric cannot be read."""
    with suppress(Exception):
        page = ask(f"http://127.0.0.1:{port}", "GET", "/metrics").body.decode()
        return next(float(line.split()[-1]) for line in page.splitlines() if line.startswith(f"{name} "))
    return -1


def test_a_canary_of_a_sound_server_finds_no_loss(zq: Zq) -> None:
    """Each message is delivered and deleted within the run, and the queue is empty."""
    (line,) = zq("canary", *QUICK, "--duration", "2")
    assert line["posted"] == line["received"] > 10
    assert [line[name] for name in ("lost", "late", "duplicates", "redelivered", "pending", "errors")] == [0] * 6
    assert 0 < line["p50"] <= line["p99"]
    assert zq("queue", "stats", "canary")[0]["total"] == 0


def test_a_canary_finds_what_another_consumer_deletes(zq: Zq) -> None:
    """The other consumer simulates a server that loses acknowledged messages."""
    ledger = Ledger(0.5)
    with (
        Client(zq.env["ZQ_URL"], project=zq.project) as client,
        Client(zq.env["ZQ_URL"], project=zq.project) as thief,
        ThreadPoolExecutor(2) as pool,
    ):
        runner = Canary(client.queue("canary"), ledger, 0.02, CanaryMetrics(ledger, None))
        work = [pool.submit(runner.produce), pool.submit(runner.consume)]
        try:
            wait_for(lambda: thief.queue("canary").pop(1, wait=1) and ledger.missing_count, 30, "a message is lost")
        finally:
            runner.stop()
        for thread in work:
            thread.result()
    assert ledger.counts["lost"] == ledger.counts["posted"] - ledger.counts["received"] > 0


def test_a_canary_exports_its_counts_until_sigterm(zq: Zq) -> None:
    port = free_port()
    with started(zq, "--port", str(port)) as (_, lines):
        wait_for(lambda: metric(port, "zq_canary_received_total") > 5, 30, "messages are delivered")
        assert metric(port, "zq_canary_lost_total") == metric(port, "zq_canary_missing") == 0
        assert metric(port, "zq_canary_unverified") == 0
        assert metric(port, 'zq_canary_seconds_count{step="delivery"}') > 0
        assert metric(port, 'zq_canary_seconds_count{step="post"}') > 0
        assert metric(port, 'zq_canary_seconds_count{step="delete"}') > 0
        assert metric(port, "zq_canary_pending") >= 0
    assert lines[-1]["lost"] == lines[-1]["pending"] == 0


def test_a_canary_survives_an_outage_and_errors_of_the_server(zq: Zq, running: ZqServer) -> None:
    with Proxy(running.url).serving() as proxy:
        zq.env["ZQ_URL"] = proxy.url
        with started(zq, "--retry", "0") as (_, lines):
            wait_for(lambda: len(proxy.seen) > 20, 30, "the canary works")
            proxy.fails_from = before = len(proxy.seen)
            wait_for(lambda: len(proxy.seen) > before + 10, 30, "the server rejects requests")
            proxy.fails_from = None
            proxy.troubles.extend([Trouble(passes=False, status=500)] * 4)
            after = len(proxy.seen)
            wait_for(lambda: len(proxy.seen) > after + 20, 30, "the server responds again")
    assert lines[-1]["errors"] > 0
    assert lines[-1]["lost"] == lines[-1]["duplicates"] == lines[-1]["pending"] == 0


def posted(ledger: Ledger, now: float) -> int:
    """Record a message that the server acknowledges immediately, and return its number."""
    number = ledger.begin(now)
    ledger.acknowledge(number, now)
    return number


def claim_nothing(ledger: Ledger, now: float, stored: frozenset[int] = frozenset()) -> set[int]:
    """Record a claim without messages, and look for the overdue messages, of which the queue contains ``stored``."""
    ledger.record_claim([], now)
    overdue = ledger.find_overdue(now)
    ledger.verify(overdue, {*stored})
    return overdue


def claim_each_second(ledger: Ledger, begin: int, end: int) -> None:
    """Record claims without messages, one in each second from `begin` to `end`."""
    for now in range(begin, end + 1):
        claim_nothing(ledger, now)


def test_a_failed_deletion_is_followed_by_no_duplicate() -> None:
    """The canary expects a redelivery after the claim if the deletion has failed."""
    ledger = Ledger(10)
    number = ledger.begin(0.0)
    assert ledger.record_claim([number], 1.0) == [1.0]
    assert ledger.record_claim([number], 61.0) == []
    assert (ledger.counts["redelivered"], ledger.counts["duplicates"]) == (1, 0)
    ledger.delete(number)
    ledger.record_claim([number], 62.0)
    assert ledger.counts["duplicates"] == 1


def test_a_redelivery_after_the_patience_is_a_duplicate() -> None:
    """The server may have deleted the message although the deletion seemed to fail."""
    ledger = Ledger(10)
    number = posted(ledger, 0.0)
    ledger.record_claim([number], 0.0)
    claim_each_second(ledger, 1, 10)
    ledger.record_claim([number], 10.5)
    claim_each_second(ledger, 11, 21)
    ledger.record_claim([number], 22.0)
    assert (ledger.counts["redelivered"], ledger.counts["duplicates"]) == (1, 1)


def test_a_lost_message_may_arrive_late() -> None:
    """A late message no longer counts as missing. A message whose post failed never counts as lost."""
    ledger = Ledger(10)
    first = posted(ledger, 0.0)
    ledger.fail(ledger.begin(0.0), 0.0)
    claim_each_second(ledger, 0, 10)
    assert (ledger.counts["lost"], ledger.pending_count) == (0, 1)
    claim_nothing(ledger, 10.5)
    assert (ledger.counts["lost"], ledger.missing_count, ledger.pending_count) == (1, 1, 0)
    ledger.record_claim([first], 12.0)
    assert (ledger.counts["late"], ledger.missing_count) == (1, 0)


def test_failed_claims_do_not_hide_a_loss() -> None:
    """No message is delivered in ten hours, and of every 100 seconds the claims of the first 10 fail."""
    ledger = Ledger(120)
    for now in range(36_000):
        posted(ledger, now)
        if now % 100 >= 10:
            claim_nothing(ledger, now)
    assert ledger.counts["lost"] == 36_000 - ledger.pending_count
    assert ledger.pending_count < 200


def test_an_outage_does_not_consume_patience() -> None:
    """A pause between claims counts as at most three seconds."""
    ledger = Ledger(10)
    ledger.record_claim([], 0.0)
    posted(ledger, 0.0)
    claim_each_second(ledger, 1000, 1007)
    assert ledger.counts["lost"] == 0
    claim_each_second(ledger, 1008, 1008)
    assert ledger.counts["lost"] == 1


def test_a_claim_that_ends_a_pause_loses_no_message_that_it_delivers() -> None:
    ledger = Ledger(2)
    ledger.record_claim([], 0.0)
    ledger.record_claim([posted(ledger, 0.0)], 200.0)
    assert ledger.find_overdue(200.0) == set()
    assert (ledger.counts["received"], ledger.counts["lost"], ledger.counts["late"]) == (1, 0, 0)


def test_an_overdue_message_in_the_queue_is_not_lost_and_is_overdue_again_later() -> None:
    """A claim whose response did not arrive hides it. It is unverified until it is delivered or not in the queue."""
    ledger = Ledger(10)
    first, second = posted(ledger, 0.0), posted(ledger, 0.0)
    claim_each_second(ledger, 0, 10)
    assert ledger.unverified_count == 0
    assert claim_nothing(ledger, 11.0, frozenset({first, second})) == {first, second}
    assert (ledger.counts["lost"], ledger.pending_count, ledger.unverified_count) == (0, 2, 2)
    claim_each_second(ledger, 12, 21)
    ledger.record_claim([first], 21.5)
    assert (ledger.counts["received"], ledger.counts["late"], ledger.unverified_count) == (1, 0, 1)
    assert claim_nothing(ledger, 22.0) == {second}
    assert (ledger.counts["lost"], ledger.pending_count, ledger.unverified_count) == (1, 0, 0)


def test_a_message_that_cannot_be_looked_for_stays_overdue_until_it_may_have_expired() -> None:
    ledger = Ledger(10)
    number = posted(ledger, 0.0)
    for now in range(12):
        ledger.record_claim([], now)
    assert ledger.find_overdue(11) == ledger.find_overdue(12) == {number}
    assert (ledger.counts["lost"], ledger.pending_count, ledger.unverified_count) == (0, 1, 1)
    ledger.record_claim([], TTL + EXPIRY_MARGIN + 1)
    assert (ledger.counts["expired"], ledger.pending_count, ledger.unverified_count) == (1, 0, 0)


class Hiding(Proxy):
    """A proxy through which the server gets all claims, but no response to a claim arrives."""

    purges = False

    def ask(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, list[Any], bytes]:
        answer = super().ask(method, path, headers, body)
        if method != "PUT" or "/claims/" not in path:
            return answer
        if self.purges:
            plain = {name: value for name, value in headers.items() if name.lower() != "content-length"}
            assert super().ask("POST", "/v2/queues/canary/purge", plain, b"")[0] == 204
        return 500, [], b""


@pytest.mark.parametrize(
    ("purges", "rejects", "code", "sentence"),
    [
        (False, False, 10, "Messages that were not delivered, but are not known to be lost: "),
        (False, True, 10, "Messages that were not delivered, but are not known to be lost: "),
        (True, False, 9, "Lost messages: "),
    ],
)
def test_a_canary_that_stops_during_errors_reports_a_loss_only_if_the_messages_are_not_in_the_queue(
    zq: Zq, running: ZqServer, monkeypatch: pytest.MonkeyPatch, purges: bool, rejects: bool, code: int, sentence: str
) -> None:
    """The claims hide the messages until the canary gives up. With ``rejects``, the queue cannot be read either."""
    monkeypatch.setattr(canary, "Ledger", lambda _patience: Ledger(0.5))
    hiding = Hiding(running.url)
    hiding.purges, hiding.fails_from = purges, 10 if rejects else None
    with hiding.serving() as proxy:
        zq.env["ZQ_URL"] = proxy.url
        result = zq.run("canary", *QUICK, "--duration", "1", "--retry", "0")
    assert result.exit_code == code, result.output
    assert sentence in result.stderr
    line = json.loads(result.stdout.splitlines()[-1])
    assert (line["lost"] > 0, line["pending"] > 0, line["unverified"] > 0) == (purges, not purges, not purges)


def test_a_canary_without_permission_to_list_reports_no_loss(zq: Zq) -> None:
    ledger = Ledger(0.5)
    with Client(zq.env["ZQ_URL"], project=zq.project) as client:
        queue = client.queue("canary")

        def reject(**_: Any) -> Any:
            raise NotAuthorized("No.")

        queue.list = reject  # type: ignore[method-assign, assignment]
        runner = Canary(queue, ledger, 0.02, CanaryMetrics(ledger, None))
        posted(ledger, time.monotonic())
        runner._verify(-1)
    assert (ledger.counts["lost"], ledger.pending_count, ledger.unverified_count) == (0, 1, 1)


@pytest.mark.parametrize(("age", "expired"), [(TTL - EXPIRY_MARGIN, 0), (TTL, 0), (TTL + 2 * EXPIRY_MARGIN, 1)])
def test_a_message_that_expires_in_an_outage_is_not_lost(age: int, expired: int) -> None:
    """A failed post counts as neither lost nor expired."""
    ledger = Ledger(10)
    ledger.record_claim([], 0.0)
    number = posted(ledger, 0.0)
    ledger.fail(ledger.begin(0.0), 0.0)
    claim_each_second(ledger, age, age + 20)
    assert (ledger.counts["lost"], ledger.counts["expired"], ledger.pending_count) == (0, expired, 1 - expired)
    if not expired:
        ledger.record_claim([number], age + 21)
        assert (ledger.counts["received"], ledger.counts["duplicates"]) == (1, 0)


def test_a_message_that_no_canary_has_posted_is_left_alone(zq: Zq) -> None:
    """The command exits, and the message is ready again."""
    zq("post", "canary", "work")
    refusal = zq.run("canary", *QUICK, "--duration", "30")
    assert refusal.exit_code == 4
    assert "Use a queue that only this canary uses." in refusal.stderr
    assert [message["body"] for message in zq("list", "canary")][:1] == ["work"]


def test_a_rejected_credential_ends_the_canary_with_another_code_than_a_loss(zq: Zq, running: ZqServer) -> None:
    with Proxy(running.url).serving() as proxy:
        proxy.plan(*[Trouble(passes=False, status=403)] * 10)
        zq.env["ZQ_URL"] = proxy.url
        assert zq.run("canary", *QUICK, "--duration", "30").exit_code == 5


def test_a_loss_has_its_own_exit_code(zq: Zq, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "missing_count", 1234)
    result = zq.run("canary", *QUICK, "--duration", "0")
    assert (result.exit_code, result.stderr) == (9, "zq: Lost messages: 1,234.\n")


@pytest.mark.parametrize(
    ("run", "age", "is_foreign"), [("own", 0, False), ("other", 10, False), ("other", 8, False), ("other", 7, True)]
)
def test_a_younger_message_of_another_canary_is_foreign(run: str, age: int, is_foreign: bool) -> None:
    """An older message is from an earlier run. The age is rounded."""
    message = Message(id="1", href="", ttl=TTL, age=age, raw=Raw(json.dumps({"canary": run, "number": 1}).encode()))
    assert bool(describe_foreign(message, "own", 10.0)) is is_foreign


def test_one_of_two_canaries_on_a_queue_ends(zq: Zq) -> None:
    with zq.start("canary", *QUICK) as first, zq.start("canary", *QUICK) as second:
        wait_for(lambda: first.poll() or second.poll(), 30, "a canary ends")
        ended = first if first.poll() is not None else second
        assert ended.returncode == 4
        assert "a message of another running canary" in ended.communicate()[1]


def test_the_first_minute_leaves_messages_of_an_earlier_run(zq: Zq) -> None:
    """The earlier run may still be active."""
    zq("post", "canary", '{"canary": "earlier", "number": 1}')
    (line,) = zq("canary", *QUICK, "--duration", "0.5")
    assert line["posted"] == line["received"] > 1
    assert zq("queue", "stats", "canary")[0]["claimed"] == 1


def test_a_port_that_is_taken_is_rejected(zq: Zq, running: ZqServer) -> None:
    assert "in use" in zq.refused(1, "canary", "--queue", "canary", "--port", str(running.port))


@pytest.mark.parametrize(("option", "value"), [("--interval", "0"), ("--patience", "89"), ("--patience", "1801")])
def test_options_are_bounded(zq: Zq, option: str, value: str) -> None:
    assert f"Invalid value for '{option}'" in zq.refused(2, "canary", "--queue", "canary", option, value)
