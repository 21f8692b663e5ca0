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
    FinishedMessage,
    Gap,
    ListedResource,
    LiveClaim,
    LocatedMessage,
    Message,
    MessagePage,
    RedriveDryRun,
    RedriveResult,
    ReplayDryRun,
    Stats,
    UndecodableBody,
    WorkResult,
)
from zq.wire.answers import Depth, JobCommit, JobFence, JobStage
from zq.wire.attributes import TypedValue
from zq.wire.extensions import BuryTerms, MoveTerms, ReleaseTerms
from zq.wire.subscriptions import ProjectSubscription, SubscribeResult, Subscription

__all__ = [
    "AsyncClient",
    "AsyncQueue",
    "AsyncTopic",
    "BuryTerms",
    "Claim",
    "Client",
    "DeadDelivery",
    "Delivery",
    "Depth",
    "Draft",
    "Event",
    "FinishedMessage",
    "Gap",
    "JobCommit",
    "JobFence",
    "JobStage",
    "ListedResource",
    "LiveClaim",
    "LocatedMessage",
    "Message",
    "MessagePage",
    "MoveTerms",
    "PostStopped",
    "ProjectSubscription",
    "Queue",
    "RedriveDryRun",
    "RedriveResult",
    "ReleaseTerms",
    "ReplayDryRun",
    "Retries",
    "Stats",
    "SubscribeResult",
    "Subscription",
    "Topic",
    "TypedValue",
    "UndecodableBody",
    "WorkResult",
]
