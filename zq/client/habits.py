# SPDX-License-Identifier: Apache-2.0
"""How a queue is consumed, as far as its server allows."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from zq.client.calls import Call
from zq.client.values import Delivery
from zq.wire.settling import Released


class Limits(Struct):
    """Those of a server's limits that consumers keep to."""

    max_wait: int
    max_messages_per_claim_or_pop: int
    max_message_delay: int


LIMITS: Final = Call(method="GET", path="/v2/limits", read=lambda answer: msgspec.json.decode(answer.body, type=Limits))


class Habits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a queue is consumed. Seconds, but ``batch``, messages in a claim, and ``count``, in all.

    ``most_delay`` bounds the back-off.
    """

    queue: str
    wait: float = 20
    batch: int = 10
    ttl: int = 300
    grace: int | None = None
    until_empty: bool = False
    count: Annotated[int, Meta(ge=1)] | None = None
    backoff: Annotated[int, Meta(ge=0)] = 5
    most_delay: int = 900

    def within(self, limits: Limits) -> "Habits":
        """The same, as far as a server with these limits allows."""
        return replace(
            self,
            wait=min(self.wait, limits.max_wait) if not self.until_empty else self.wait,
            batch=min(self.batch, limits.max_messages_per_claim_or_pop),
            most_delay=min(self.most_delay, limits.max_message_delay),
        )

    def after_failure(self, delivery: Delivery) -> Released:
        """Gives a message back for longer each time that it was handed out."""
        doublings = min(max(delivery.claim_count, 1) - 1, 20)
        return Released(delivery.id, min(self.backoff * 2**doublings, self.most_delay))
