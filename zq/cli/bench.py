# SPDX-License-Identifier: Apache-2.0
"""The command ``zq bench``, which measures the throughput and latency of posts, claims and deletions."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final
from uuid import uuid4

import click

from zq.cli.param_types import Count
from zq.cli.progress import progress_bar
from zq.cli.session import Command, Session, pass_session
from zq.client import Queue

# Percentiles of the response time in the table.
PERCENTILES: Final = (50, 90, 99, 100)
# Columns of the table.
COLUMNS: Final = ("verb", "requests", "messages", "rate", *(f"p{part}" for part in PERCENTILES))


@click.command("bench", cls=Command)
@click.option(
    "--messages", "count", type=Count(1, 10_000_000), default=2000, help="Total number of messages (default 2,000)."
)
@click.option("--batch", type=Count(1, 10_000), default=1, help="Messages per request (default 1).")
@click.option("--concurrency", type=Count(1, 100), default=4, help="Concurrent requests (default 4).")
@click.option("--size", type=Count(0, 100_000_000), default=256, metavar="BYTES", help="Body size (default 256).")
@pass_session
def bench(session: Session, count: int, batch: int, concurrency: int, size: int) -> None:
    """Measure posts, claims and deletions in a temporary queue.

    Rates are messages per second. p50 … p100 are percentiles of the response time in milliseconds.
    """
    queue = session.queue(f"zq-bench-{uuid4().hex[:12]}")
    limits = session.client.limits()
    batch = min(batch, limits["max_messages_per_post"])
    claim_size = min(batch, limits["max_messages_per_claim_or_pop"])
    body = "x" * size
    counts = [min(batch, count - before) for before in range(0, count, batch)]
    posts = [partial(post, queue, body, one) for one in counts]
    claims: list[tuple[str, list[str]]] = []
    try:
        rows = [measure("post", posts, concurrency)]
        rounds = -(-count // claim_size)
        rows.append(measure("claim", [lambda: claim(queue, claim_size, claims)] * rounds, concurrency))
        rows.append(measure("delete", [partial(delete, queue, *one) for one in claims], concurrency))
    finally:
        queue.delete()
    session.out.rows(COLUMNS, rows, lambda row: [row[column] for column in COLUMNS])


def post(queue: Queue, body: str, count: int) -> int:
    return len(queue.post_batch([body] * count))


def claim(queue: Queue, limit: int, claims: list[tuple[str, list[str]]]) -> int:
    """Claim messages, append the claim and its message ids to ``claims``, and return the number of messages."""
    claimed = queue.claim(limit)
    if claimed.messages:
        claims.append((claimed.id, [message.id for message in claimed.messages]))
    return len(claimed.messages)


def delete(queue: Queue, name: str, messages: list[str]) -> int:
    return queue.settle(name, delete=messages).deleted


def measure(verb: str, requests: Sequence[Callable[[], int]], concurrency: int) -> dict[str, Any]:
    """Run requests concurrently. Return a table row with the operation (``verb``), its throughput and its latency."""
    begun = time.perf_counter()
    with progress_bar(verb, len(requests)) as bar, ThreadPoolExecutor(concurrency, "zq-bench") as pool:
        results = list(report_progress(bar, pool.map(run_timed, requests)))
    took = time.perf_counter() - begun
    messages = sum(count for count, _ in results)
    spans = sorted(span for _, span in results)
    figures = {f"p{part}": round(percentile(spans, part) * 1000, 2) for part in PERCENTILES}
    return {"verb": verb, "requests": len(spans), "messages": messages, "rate": round(messages / took), **figures}


def report_progress(
    bar: Callable[[float, int], None], results: Iterator[tuple[int, float]]
) -> Iterator[tuple[int, float]]:
    messages = 0
    for number, result in enumerate(results, 1):
        messages += result[0]
        bar(number, messages)
        yield result


def run_timed(request: Callable[[], int]) -> tuple[int, float]:
    """Run a request. Return its number of messages and its duration in seconds."""
    begun = time.perf_counter()
    count = request()
    return count, time.perf_counter() - begun


def percentile(spans: list[float], part: int) -> float:
    """Return the percentile ``part`` (0 to 100) of sorted durations, or 0 for an empty list."""
    return spans[max(0, -(-len(spans) * part // 100) - 1)] if spans else 0.0
