# SPDX-License-Identifier: Apache-2.0
"""The Python client of zq: ``Client`` for threads, ``AsyncClient`` for asyncio. Reference: ``api-ref/client.md``."""

from zq.client.calls import Retries
from zq.client.clients import AsyncClient, Client
from zq.client.handles import AsyncQueue, AsyncTopic, Queue, Topic
from zq.client.posting import PostStopped
from zq.client.values import (
    Claim,
    DeadDelivery,
    Delivery,
    Draft,
    Event,
    Finished,
    Gap,
    Listed,
    LiveClaim,
    Located,
    Message,
    MessagePage,
    RedriveDryRun,
    Redriven,
    ReplayDryRun,
    Stats,
    UndecodableBody,
    Worked,
)
from zq.wire.answers import Depth, JobCommit, JobFence, JobStage
from zq.wire.attributes import TypedValue
from zq.wire.extensions import Buried, Moved, Released
from zq.wire.subscriptions import ProjectSubscription, Subscribed, Subscription

__all__ = [
    "AsyncClient",
    "AsyncQueue",
    "AsyncTopic",
    "Buried",
    "Claim",
    "Client",
    "DeadDelivery",
    "Delivery",
    "Depth",
    "Draft",
    "Event",
    "Finished",
    "Gap",
    "JobCommit",
    "JobFence",
    "JobStage",
    "Listed",
    "LiveClaim",
    "Located",
    "Message",
    "MessagePage",
    "Moved",
    "PostStopped",
    "ProjectSubscription",
    "Queue",
    "RedriveDryRun",
    "Redriven",
    "Released",
    "ReplayDryRun",
    "Retries",
    "Stats",
    "Subscribed",
    "Subscription",
    "Topic",
    "TypedValue",
    "UndecodableBody",
    "Worked",
]
