# SPDX-License-Identifier: Apache-2.0
"""Machines whose store moves to another store in the middle of an example, as ``zq-server migrate`` moves it."""

from abc import abstractmethod
from collections.abc import Collection

from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tests.model.documents import RecordMachine
from tests.model.machine import StoreMachine
from tests.model.pair import Holder
from zq.clock import ManualClock
from zq.conformance.builders import configure
from zq.model.expiry import Expiry
from zq.serving.migration.command import migrate
from zq.serving.migration.procedure import Options
from zq.serving.migration.record import release
from zq.serving.migration.stores import Store
from zq.storage import connect
from zq.storage.api import Storage

# The time of a store may be this many seconds ahead of the machine's clock.
AHEAD = 10**9


class Timed:
    """A store whose time is the time of a machine. The time of a store must not go backwards."""

    def __init__(self, storage: Storage, clock: ManualClock) -> None:
        self._storage = storage
        self._clock = clock

    def __getattr__(self, name: str) -> object:
        return getattr(self._storage, name)

    def now(self) -> float:
        return self._clock.now()


class MovingHolder(Holder):
    """A store that can move projects to another store. The holder then continues on that store."""

    def __init__(self, uri: str, other_uri: str) -> None:
        super().__init__(uri, {})
        self.other_uri = other_uri
        self.other = connect(other_uri)
        self._first_uri = uri

    def returned(self) -> "MovingHolder":
        """Return to the first store, so that Hypothesis repeats an example on the same stores."""
        if self.uri != self._first_uri:
            self.swap()
        return self

    def move(self, projects: Collection[str]) -> None:
        now = self.clock.now()
        known = [project for project in projects if self.storage.parcels.export(project, "", 1, now).items]
        if known:
            timed = (Timed(storage, self.clock) for storage in (self.storage, self.other))
            stores = map(Store, timed, (self.uri, self.other_uri))
            lines: list[str] = []
            options = Options(sorted(known), drop_stages=True, watch=-AHEAD)
            code = migrate(*stores, options, lines.append)
            for storage in (self.storage, self.other):
                release(storage.documents, now)
            assert code == 0, "\n".join(lines)
        self.swap()
        configure(self.storage, Expiry())

    def swap(self) -> None:
        self.storage, self.other = self.other, self.storage
        self.uri, self.other_uri = self.other_uri, self.uri


class Moving(RuleBasedStateMachine):
    """A machine whose store moves once in each example."""

    holder: MovingHolder
    has_moved = False

    @abstractmethod
    def agree_on_everything(self) -> None: ...

    @abstractmethod
    def owners(self) -> set[str]:
        """Return the projects of the example."""

    def forget(self) -> None:
        """Remove everything from the model that a migration does not move."""

    @precondition(lambda self: not self.has_moved)
    @rule()
    def move_store(self) -> None:
        self.has_moved = True
        self.holder.move(self.owners())
        self.forget()
        self.agree_on_everything()


class MovingStoreMachine(StoreMachine, Moving):
    """Queues in a store that moves: claims end at their time without a holder, and stages are dropped."""

    def owners(self) -> set[str]:
        return {queue.project for queue in self.queues}

    def forget(self) -> None:
        self.oracle.stages.clear()
        for queue in self.queues:
            self.holder.other.queues.delete(queue)
            for entry in self.oracle.queues.get(queue, []):
                entry.claim = ""


class MovingRecordMachine(RecordMachine, Moving):
    """Documents in a store that moves, such as tokens and subscriptions."""

    def owners(self) -> set[str]:
        return set(self.projects)
