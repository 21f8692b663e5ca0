# SPDX-License-Identifier: Apache-2.0
"""The owner of a store in an object store, which takes over the store into a local directory and then serves it."""

import fcntl
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, NamedTuple
from uuid import uuid4

from msgspec.structs import asdict

from zq.errors import Deposed, NotBuilt, StartRefused, Unavailable
from zq.model import Seconds
from zq.model.expiry import Expiry
from zq.model.stats import Measure, Snapshot
from zq.storage.object.checkpoints import Checkpointer, CheckpointRules, Manifest, download
from zq.storage.object.epochs import (
    Head,
    Opening,
    Proof,
    RestorePoints,
    Span,
    TakeoverLost,
    check_layout,
    depose,
    extend_chain,
    fence_name,
    newest_opened,
    open_epoch,
    read,
    win_election,
)
from zq.storage.object.following import Standby, StandbyCopy
from zq.storage.object.objects import Objects
from zq.storage.object.offline import StoreFormat
from zq.storage.object.restoring import acknowledged_position, close_log, close_log_by_position, read_chain
from zq.storage.object.shipping import Shipper
from zq.storage.object.store import ShippedStore
from zq.storage.ordered.startup import uptime
from zq.storage.rocksdb import Directory
from zq.storage.rocksdb.files import Damage
from zq.storage.rocksdb.space import SpaceGuard
from zq.storage.rocksdb.store import Store

LOG = logging.getLogger(__name__)
SIMULTANEOUS_TAKEOVER: Final = (
    "Another server took over the store at the same time. Restart this server, or start it as a standby."
)
LOST_TAKEOVER: Final = "Another server took over the store first. This server keeps waiting as a standby."
REFUSED: Final = (
    "Another server owns the store: {}. Stop it, or, if it has failed, start a server with [storage:object] takeover = "
    "wait. While a server owns the store, a command works only on the server's machine and with the server's "
    "configuration, which must contain [server] control."
)
WAITING: Final = "Waiting until the owner of the store stops or no longer responds: %s."
NO_SNAPSHOT: Final = (
    "A store in an object store needs no backup: zq-server restore --at restores it as of a point in time."
)
# Seconds between two checks whether the owner is alive.
CHECK_INTERVAL: Final = 1.0


class TakeoverTerms(NamedTuple):
    """The terms of a takeover.

    Attributes:
        lease: Seconds for which a successful ownership check stays valid.
        takeover: The action while the current owner may be alive: ``wait`` until it has stopped or timed out,
            ``refuse`` to start, or take over ``now``.
        owner_timeout: Seconds without a heartbeat after which ``wait`` assumes that the owner has stopped.
        by_position: Whether the new owner's log uses fencing by position; see ``restoring``.
    """

    lease: float = 10.0
    takeover: str = "wait"
    owner_timeout: float = 30.0
    by_position: bool = False


class LocalDirectory:
    """A locked local directory that stores the name of its last owner."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] | None = None
        self.former = ""
        """The name of the directory's last owner, which has certainly stopped."""

    def take(self, owner: str) -> None:
        """Lock the directory, record ``owner`` as the owner's name, and delete the directory's content."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = self.path.with_name(f"{self.path.name}.owner").open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise StartRefused(f"The directory {self.path} is in use by another process.") from error
        file.seek(0)
        self._file, self.former = file, file.read()
        file.truncate(0)
        file.write(owner)
        file.flush()
        shutil.rmtree(self.path, ignore_errors=True)

    def unlock(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class Owner(Directory):
    """The owner of the store and its local directory.

    The content of the directory is never trusted, so each opening of the store is a new takeover.
    """

    def __init__(
        self,
        objects: Objects,
        path: Path,
        shape: StoreFormat,
        expiry: Expiry,
        stamped: str,
        trimmed: str,
        *,
        name: str,
        terms: TakeoverTerms,
        rules: CheckpointRules,
        ship: Callable[[Objects, Proof, int], Shipper],
        now: Callable[[], float],
    ) -> None:
        """Create the owner without taking over the store."""
        super().__init__(path, shape.families, ("never", 0), expiry, stamped, trimmed, SpaceGuard(path, 0))
        self._layout = shape.layout
        self._admit = shape.admit
        self._objects = objects
        self._directory = LocalDirectory(path)
        self._name = f"{name}:{uuid4().hex[:8]}"
        self._terms = terms
        self._rules = rules
        self._ship = ship
        self._now = now
        self._proof: Proof | None = None
        self._restored = 0.0
        """The duration of the last restore in seconds."""

    def _make(self, filtered: str) -> Store:
        if self._proof is not None and self._proof.fenced:  # a deposed server must not depose its successor in turn
            raise Deposed
        standby, patience = self._standby(), self._terms.owner_timeout
        try:
            self._directory.take(self._name)
            while True:
                epoch = self._win_turn(standby, patience)
                try:
                    return self._take_over(standby, epoch, filtered)
                except TakeoverLost as taken:
                    self._fall_behind(taken)
                # Two servers whose restores take longer than this would otherwise depose each other for ever.
                patience *= 2
                standby = self._standby()
        except BaseException as error:
            standby.drop()
            self._directory.unlock()
            if isinstance(error, OSError):
                raise Unavailable from error
            raise

    def _standby(self) -> Standby:
        return Standby(self._objects, self._path, lambda: ShippedStore(self._path, self._families, "", Damage()))

    def _fall_behind(self, cause: Exception | None = None) -> None:
        """Handle a takeover by another server: log a warning, or raise ``Deposed``.

        A warning suffices if the option ``takeover`` is ``wait`` and this server has not owned the store yet.
        """
        if self._terms.takeover != "wait" or self._proof is not None:
            raise Deposed(SIMULTANEOUS_TAKEOVER) from cause
        LOG.warning(LOST_TAKEOVER)

    def _win_turn(self, standby: Standby, patience: float) -> int:
        """Wait until this server may take over the store, win an election, and return the election's number.

        If the option ``takeover`` is not ``now``, servers that have won earlier elections have precedence. Wait up to
        ``patience`` seconds for each of these servers to open its epoch. If one of them opens its epoch, start again or
        raise ``Deposed``; see ``_fall_behind``.
        """
        while True:
            former = self._wait_for_turn(standby)
            number = win_election(self._objects)
            if self._terms.takeover == "now" or not any(
                self._is_served(rival, patience) for rival in range(former + 1, number)
            ):
                return number
            self._objects.put(fence_name(number), b"")  # so that no rival waits for this server to open its epoch
            self._fall_behind()

    def _is_served(self, epoch: int, patience: float) -> bool:
        """Wait up to ``patience`` seconds for the epoch to open, and return whether it has opened."""
        deadline = uptime() + patience
        while uptime() < deadline:
            try:
                if read(self._objects, f"open/{epoch}", Opening) is not None:
                    return True
                if self._objects.exists(fence_name(epoch)):
                    return False
            except Unavailable as error:
                LOG.warning("Cannot check whether another server has taken over the store: %s", error)
                deadline = uptime() + patience
            time.sleep(min(CHECK_INTERVAL, patience))
        return False

    def _take_over(self, standby: Standby, epoch: int, filtered: str) -> Store:
        """Take over the store, open the epoch, and return the local store."""
        store: ShippedStore | None = None
        try:
            copy = standby.stop()
            former, opening = depose(self._objects, epoch)
            fenced = uptime()
            kept = read(self._objects, f"head/{former}", Head) or opening or RestorePoints()
            copy = self._choose_copy(copy, kept)
            self._admit(self._path)
            store = ShippedStore(self._path, self._families, filtered, self._damage)
            position, chain = self._replay(store, copy.position, former, opening, kept, epoch)
            self._restored = uptime() - fenced
            if opening is not None and opening.by_position:
                fenced = uptime()
            began = self._build_opening(kept, chain)
            open_epoch(self._objects, epoch, began)
            if opening is not None and not self._has_stopped(opening, kept):
                time.sleep(max(0.0, fenced + self._terms.lease - uptime()))
            self._serve(store, epoch, position, began, copy.manifest)
        except BaseException:
            if store is not None:
                store.close_unflushed()
            raise
        return store

    @contextmanager
    def snapshot(self, moment: Seconds) -> Iterator[Snapshot]:
        raise NotBuilt(NO_SNAPSHOT)
        yield  # makes the method a generator, as the base class requires

    def check(self) -> None:
        super().check()
        if isinstance(store := self._opened, ShippedStore):
            store.check()

    def measures(self) -> Iterator[Measure]:
        yield from super().measures()
        if isinstance(store := self._opened, ShippedStore):
            yield from store.measures()
        yield Measure("object_restore_seconds", self._restored)
        for (verb, code), number in self._objects.requests.counted().items():
            yield Measure("object_requests_total", number, (("verb", verb), ("code", code)))

    def _wait_for_turn(self, standby: Standby) -> int:
        """Wait until this server may take over the store, and return the newest opened epoch."""
        since, seen, epoch = uptime(), None, 0
        while True:
            try:
                epoch, opening = newest_opened(self._objects, epoch)
                if self._proof is not None and epoch > self._proof.epoch:
                    raise Deposed
                if opening is not None:
                    check_layout(opening, self._layout)
                if self._terms.takeover == "now":
                    return epoch
                head = read(self._objects, f"head/{epoch}", Head)
            except Unavailable as error:
                if seen is None:
                    raise
                LOG.warning("Cannot check whether the owner of the store is alive: %s", error)
                since = uptime()  # the owner may have sent a heartbeat in the meantime
                time.sleep(CHECK_INTERVAL)
                continue
            stopped = opening is None or self._has_stopped(opening, head)
            if opening is not None and (not stopped or seen is not None):
                self._reject(opening)
                standby.follow(epoch, opening, head)
            if stopped or (seen == (epoch, head) and uptime() > since + self._terms.owner_timeout):
                return epoch
            if seen is None:
                LOG.warning(WAITING, opening.owner if opening else "")
            if seen != (epoch, head):
                since, seen = uptime(), (epoch, head)
            time.sleep(CHECK_INTERVAL)

    def _reject(self, opening: Opening) -> None:
        if self._terms.takeover == "refuse":
            raise StartRefused(REFUSED.format(opening.owner))

    def _has_stopped(self, opening: Opening, head: RestorePoints | None) -> bool:
        """Return whether the owner of an epoch has certainly stopped.

        This is certain if the owner released the store, or if the owner used the local directory that this server has
        locked.
        """
        if opening.owner in (self._directory.former, self._name):
            return True
        return isinstance(head, Head) and head.released >= 0

    def _choose_copy(self, copy: StandbyCopy | None, kept: RestorePoints) -> StandbyCopy:
        """Return the standby copy. If the newest checkpoint in ``kept`` is newer, replace the copy with the checkpoint.

        A copy older than the checkpoint is unsuitable, because the log may no longer contain the records that follow
        the copy. If there is neither a copy nor a checkpoint, the result has no data and the position 0.
        """
        newest = kept.checkpoints[-1].position if kept.checkpoints else 0
        if copy is not None and copy.position >= newest:
            return copy
        shutil.rmtree(self._path, ignore_errors=True)
        return StandbyCopy(
            newest, download(self._objects, kept.checkpoints[-1], self._path) if kept.checkpoints else None
        )

    def _replay(
        self, store: ShippedStore, base: int, former: int, opening: Opening | None, kept: RestorePoints, epoch: int
    ) -> tuple[int, list[Span]]:
        """Replay the log after the position ``base`` into the store, and close the log of the epoch ``former``.

        Return the last position of the log, and the list of the log's valid parts for the opening record of ``epoch``.

        Args:
            former: The former owner's epoch.
            opening: The opening record of ``former``, or None if the store is new.
            kept: The data that is available for a restore, according to the former owner.
            epoch: The epoch of this server.
        """
        if opening is None:
            return 0, []
        for record in read_chain(self._objects, base, opening.chain):
            store.restore(record)
        base = max([base, *(span.last for span in opening.chain)])
        if opening.by_position:
            last = close_log_by_position(self._objects, former, base, acknowledged_position(kept), store.restore, epoch)
        else:
            last = close_log(self._objects, former, base, acknowledged_position(kept), store.restore)
        return last, extend_chain(opening.chain, Span(former, last, opening.by_position), kept.removed)

    def _build_opening(self, kept: RestorePoints, chain: list[Span]) -> Opening:
        return Opening(
            owner=self._name,
            moment=int(self._now() * 1000),
            chain=chain,
            removed=kept.removed,
            checkpoints=kept.checkpoints,
            unsettled=kept.unsettled,
            by_position=self._terms.by_position,
            layout=self._layout,
        )

    def _serve(self, store: ShippedStore, epoch: int, position: int, began: Opening, manifest: Manifest | None) -> None:
        proof = self._proof = Proof(self._objects, epoch, self._terms.lease, uptime)
        proof.check_fence()
        shipper = self._ship(self._objects, proof, position)
        folder = self._path.with_name(f"{self._path.name}.checkpoint")
        kept = {name: value for name, value in asdict(began).items() if name in RestorePoints.__struct_fields__}
        checkpointer = Checkpointer(
            self._objects, proof, shipper, store, folder, Head(**kept), began.chain, manifest, self._rules, self._now
        )
        checkpointer.start()
        proof.start()
        shipper.start()
        store.serve(proof, shipper, checkpointer, self._directory.unlock)
        LOG.info("This server now owns the store, with epoch %d, from position %d.", epoch, position)
