# SPDX-License-Identifier: Apache-2.0
"""Cost of a sweep, which depends on the expired messages and not on the live ones, compared with a full scan (S-B3)."""

import argparse
import time
from statistics import median

from bson.datetime_ms import DatetimeMS
from pymongo import MongoClient

from bench.expiry.crowd import FOR_GOOD, POST, QUEUE, opened, post, store
from zq.model import ListFilter, Seconds
from zq.model.expiry import Expiry, Steps
from zq.storage.api import Storage
from zq.storage.ordered import layout
from zq.storage.ordered.storage import OrderedStorage

# Seconds between the expiry times of the messages of two rounds.
APART = 1000
EVERYTHING = ListFilter(claimed=True, delayed=True)
PAGE = 1000


def run(arguments: argparse.Namespace) -> None:
    print(f"\n| {arguments.store}: living | expired | sweep ms | deletes/s | empty sweep ms | full scan ms | ratio |")
    print("|---|---|---|---|---|---|---|")
    for living in arguments.living:
        with store(arguments.store) as (uri, _), opened(uri, Expiry(delete_on_read=False)) as storage:
            measure(storage, uri, living, arguments.rounds)


def measure(storage: Storage, uri: str, living: int, rounds: int) -> None:
    """Print a row of the table: before each round 1 % of the messages expire, spread over the queue."""
    now = storage.now()
    load(storage, living, rounds, now)
    swept, empty, scanned, gone = [], [], [], 0
    for number in range(1, rounds + 1):
        moment = now + APART * number
        if number == 1:
            scanned.append(timed(lambda: full_scan(storage, uri, moment))[0])  # noqa: B023
        took, gone = timed(lambda: storage.maintain(moment, None, Steps(1000, 1 << 40)))  # noqa: B023
        swept.append(took)
        empty.append(timed(lambda: storage.maintain(moment))[0])  # noqa: B023
    took = median(swept)
    print(
        f"| {living:,} | {gone:,} | {took * 1e3:.1f} | {gone / took:,.0f} | {median(empty) * 1e3:.2f} "
        f"| {median(scanned) * 1e3:,.0f} | {median(scanned) / took:.1f} |",
        flush=True,
    )


def load(storage: Storage, living: int, rounds: int, now: Seconds) -> None:
    """Post messages: to each hundred live ones, one that expires before the first round, one before the second, …"""
    pattern = [FOR_GOOD] * 100 + [APART * number for number in range(1, rounds + 1)]
    pattern *= 5 * POST // 100
    while living > 0:
        post(storage, QUEUE, pattern[: living * (100 + rounds) // 100], now)
        living -= 5 * POST


def timed(work):
    """Call `work` and return the seconds that it took, and its result."""
    began = time.perf_counter()
    answer = work()
    return time.perf_counter() - began, answer


def full_scan(storage: Storage, uri: str, now: Seconds) -> int:
    """Return the number of expired messages by reading all messages, without deleting any."""
    if isinstance(storage, OrderedStorage):
        moment = layout.ms(now)
        with storage._handle as (records, _):
            found = records.scan("messages", b"", b"\xff" * 16)
            return sum(layout.decode_record(value).expires <= moment for _, value in found)
    if uri.startswith("mongodb"):
        with MongoClient(uri) as client:
            messages = client.get_default_database()["messages"]
            return messages.count_documents({"e": {"$lte": DatetimeMS(layout.ms(now))}}, hint=[("$natural", 1)])
    marker, count, page = 0, 0, None
    while page is None or page.items:
        # At a time at which all messages are live, so that each is read.
        page = storage.messages.list(QUEUE, marker, PAGE, EVERYTHING, now - APART)
        count += sum(message.expires <= now for message in page.items)
        marker = int(page.next or 0)
    return count
