# SPDX-License-Identifier: Apache-2.0
"""Responses of ``/v2/figures…`` and ``/v2/servers``, as structs; see ``zq.wire.answers``."""

from typing import Generic, TypeAlias

from msgspec import UNSET, Struct, UnsetType, field

from zq.model import Seconds
from zq.wire.answers import Count, Links, Time

# The values of a time series, oldest first. A value is null if it is unknown.
Column: TypeAlias = list[float | None]


class CurrentDepth(Struct, frozen=True, kw_only=True):
    """The number of messages in a queue, or in all queues.

    Attributes:
        oldest_ready: Seconds since the oldest ready message became ready.
        at_least: True if a count has reached the server's limit, so the actual number may be higher.
    """

    ready: Count
    delayed: Count
    claimed: Count
    oldest_ready: Seconds | None
    at_least: bool


class CurrentTotals(CurrentDepth, frozen=True, kw_only=True):
    """The current depth and rates of all visible queues.

    Attributes:
        in: Posted messages per second.
        out: Finished messages per second.
    """

    in_: float | None = field(name="in")
    out: float | None


class FiguresRow(CurrentDepth, frozen=True, kw_only=True):
    """The message counts and rates of a queue.

    Attributes:
        in: Posted messages per second.
        out: Finished messages per second.
        growth: Growth of the backlog in messages per second, over the last one to two minutes.
        dead: Messages in the dead-letter queue; null if the caller may not read that queue.
        recent: Ready messages at the end of each half minute, for the last ten minutes.
    """

    name: str
    in_: float | None = field(name="in")
    out: float | None
    growth: float | None
    dead_letter_queue: str | None
    dead: Count | None
    paused: str | None
    recent: Column | None


class TopicRow(Struct, frozen=True):
    """The message rates of a topic.

    Attributes:
        in: Published messages per second.
    """

    name: str
    in_: float | None = field(name="in")


class FiguresPage(Struct, Generic[Time], frozen=True, kw_only=True):
    """A page of queues or topics, with their message counts and rates.

    Attributes:
        complete: True if all queues of the store were counted.
        total: Number of queues or topics on all pages.
    """

    as_of: Time
    complete: bool
    total: Count
    queues: list[FiguresRow] | UnsetType = UNSET
    topics: list[TopicRow] | UnsetType = UNSET
    links: Links


class DepthSeries(Struct, frozen=True):
    ready: Column
    delayed: Column
    claimed: Column
    oldest_ready: Column


class RateSeries(Struct, frozen=True):
    """Time series of message rates, in messages per second."""

    posted: Column
    claimed: Column
    finished: Column
    lapsed: Column


class TimeSeries(Struct, Generic[Time], frozen=True, kw_only=True):
    """Time series of message counts and rates.

    Attributes:
        step: Seconds between two points.
        since: Time of the first point.
        servers: Number of servers that have reported within half a minute.
    """

    step: Count
    since: Time
    as_of: Time
    servers: Count


class Points(TimeSeries[Time], Generic[Time], frozen=True, kw_only=True):
    """The time series and the current depth of a queue."""

    depth: DepthSeries
    rates: RateSeries
    now: CurrentDepth


class QuotaUse(Struct, frozen=True):
    name: str
    used: float
    limit: float


class TopQueues(Struct, frozen=True):
    """The top queues by several criteria, such as backlog, and the quotas that are nearly exhausted."""

    oldest: list[FiguresRow]
    deepest: list[FiguresRow]
    growing: list[FiguresRow]
    dead_letters: list[FiguresRow]
    quotas: list[QuotaUse]


class Overview(TimeSeries[Time], Generic[Time], frozen=True, kw_only=True):
    """The message counts and rates of a project.

    Attributes:
        depth: Null if the caller may not see all queues.
        rates: Null if the caller may not see all queues.
        complete: True if all queues of the store were counted.
        total: Number of queues.
        clock_offset: Seconds by which the server's clock is ahead of the store's clock.
        sweep_lag: Seconds for which the oldest expired message has been waiting for removal; null if unknown.
    """

    depth: DepthSeries | None
    rates: RateSeries | None
    complete: bool
    total: Count
    now: CurrentTotals
    lists: TopQueues
    clock_offset: float
    sweep_lag: float | None


class Server(Struct, Generic[Time], frozen=True):
    """The status report of a server process.

    Attributes:
        server: Host and port, which are the same for all processes of a server.
        requests: Requests per second.
        p95: 95th percentile of the response time in seconds; null without requests.
        clock_offset: Seconds by which the server's clock is ahead of the store's clock.
        sweep_lag: Seconds for which the oldest expired message has been waiting for removal; null if unknown.
    """

    server: str
    process: Count
    since: Time
    as_of: Time
    version: str
    store: str
    engine: str
    requests: float
    p95: Seconds | None
    waiters: Count
    max_waiters: Count
    streams: Count
    max_streams: Count
    clock_offset: float
    sweep_lag: float | None


class Servers(Struct, Generic[Time], frozen=True):
    servers: list[Server[Time]]
