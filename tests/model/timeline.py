# SPDX-License-Identifier: Apache-2.0
"""A base for the state machines without queues: time in steps, exact expiry times, and maintenance."""

from abc import abstractmethod
from itertools import count

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.model.pair import EXPIRIES, STEPS, Holder
from zq.conformance.builders import configure
from zq.model.expiry import Expiry, Steps

EXAMPLES = count()


class Timeline(RuleBasedStateMachine):
    """A store with two new projects whose names differ by a slash."""

    def __init__(self, holder: Holder) -> None:
        super().__init__()
        self.holder = holder
        example = next(EXAMPLES)
        self.projects = [f"t{example}", f"t{example}/"]

    @property
    def now(self) -> float:
        return self.holder.clock.now()

    @abstractmethod
    def ends(self) -> set[float]:
        """Return all times at which data expire."""

    @abstractmethod
    def agree_on_everything(self) -> None:
        """Compare the store and the model in every field."""

    @rule(seconds=STEPS)
    def tick(self, seconds: float) -> None:
        self.holder.clock.advance(seconds)

    @precondition(lambda self: max(self.ends(), default=0) > self.now)
    @rule(pick=st.integers(0, 5), offset=st.sampled_from([-0.001, 0, 0, 0.001]))
    def tick_to(self, pick: int, offset: float) -> None:
        """Advance to one of the next times at which the state changes, or to the millisecond before or after it."""
        moments = sorted(moment for moment in self.ends() if moment > self.now)
        self.holder.clock.advance(max(0, round(moments[min(pick, len(moments) - 1)] + offset - self.now, 3)))

    @initialize(options=EXPIRIES)
    def configure(self, options: Expiry) -> None:
        """Choose the expiry options of this example."""
        configure(self.holder.storage, options)

    @rule(size=st.sampled_from([1, 3, 1000]), most=st.sampled_from([2, 100_000]))
    def maintain(self, size: int, most: int) -> None:
        """Run maintenance at any pace, which must not change any visible state."""
        assert self.holder.storage.maintain(self.now, None, Steps(size, most)) >= 0
        self.agree_on_everything()

    def teardown(self) -> None:
        """Compare everything at the end of an example."""
        self.agree_on_everything()
