# SPDX-License-Identifier: Apache-2.0
"""``/v2/topics`` and below, but messages and streams (contract 13)."""

from zq.broker import Broker
from zq.http.named import Collection, Item, Purge, Stats


class TopicCollection(Collection):
    """``/v2/topics``"""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker.topics, "topic")


class TopicItem(Item):
    """``/v2/topics/{topic}``"""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker.topics, "topic", broker.limits.max_queue_metadata)


class TopicStats(Stats):
    """``/v2/topics/{topic}/stats``"""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker.topics, "topic")


class TopicPurge(Purge):
    """``/v2/topics/{topic}/purge``"""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker.topics, "topic")
