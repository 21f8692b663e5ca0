# SPDX-License-Identifier: Apache-2.0
"""Duration of failed posts and number of lost messages when a store's server is replaced: see api-ref/backup.md.

``python -m bench.failover [case …]``; by default all cases. Six threads post to one zq server all the time.
"""

import argparse
import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from pymongo.errors import PyMongoError

from tests.campaign.faults.failovers import (
    DEADLINE,
    QUEUE,
    ClusterGroup,
    Group,
    Outcome,
    Posts,
    SentinelGroup,
    admin,
    judged,
    outcome,
)
from tests.servers import ZqServer, every_message, wait_for
from tests.stores import MongoServer

RUNS = 3


def report(name: str, outcome: Outcome) -> None:
    sys.stdout.write(
        f"{name:34} acknowledged {outcome.acknowledged:6}  lost {outcome.lost:4}  longest without one "
        f"{outcome.outage:5.1f} s  answered otherwise {outcome.failed:4}, for {outcome.failing:4.1f} s\n"
    )
    sys.stdout.flush()


def during(uri: str, server: ZqServer, act: Callable[[], object]) -> Outcome:
    """Post while ``act`` changes the store, until posts succeed again."""
    posts = Posts(server.url)
    with posts.running():
        posts.go_on()
        act()
        time.sleep(2)
        posts.go_on()
    return judged(uri, posts)


def ordered(group: Group) -> None:
    former = group.master
    wait_for(group.order, DEADLINE, "the order is taken")
    wait_for(lambda: group.master is not former, DEADLINE, "there is a new master")


def killed(group: Group) -> None:
    former = group.master
    former.kill()
    wait_for(lambda: group.master is not former, DEADLINE, "there is a new master")


def of_group(
    name: str, make: Callable[[], Group], act: Callable[[Group], None], config: str = "", bound: int = 0
) -> None:
    """Run a case on a group of servers.

    ``config``: the server's configuration, ``bound``: min-replicas-to-write of every Redis.
    """
    for _ in range(RUNS):
        with make() as group:
            for redis in group.servers:
                with admin(redis) as client:
                    client.config_set("min-replicas-to-write", bound)
            with ZqServer(group.uri, config=config or None) as server:
                report(name, during(group.uri, server, lambda group=group: act(group)))


class MongoSet:
    """A replica set of three."""

    def __init__(self, stack: ExitStack) -> None:
        self.servers = [MongoServer(replica_set="rs0") for _ in range(3)]
        for server in self.servers:
            stack.callback(server.close)
            server.launch()
        members = [{"_id": at, "host": server.address} for at, server in enumerate(self.servers)]
        wait_for(lambda: self._initiated(members), DEADLINE, "the set is made")
        wait_for(lambda: self.primary() is not None, DEADLINE, "there is a primary")
        self.uri = f"mongodb://{','.join(server.address for server in self.servers)}/zq?replicaSet=rs0"

    def primary(self) -> MongoServer | None:
        for server in self.servers:
            with server.client() as client, contextlib.suppress(PyMongoError):
                if client.admin.command("hello")["isWritablePrimary"]:
                    return server
        return None

    def step_down(self) -> None:
        primary = self.primary()
        assert primary is not None
        with primary.client() as client, contextlib.suppress(PyMongoError):
            client.admin.command("replSetStepDown", 60)

    def kill(self) -> None:
        primary = self.primary()
        assert primary is not None
        primary.kill(signal.SIGKILL)

    def _initiated(self, members: list[dict[str, object]]) -> bool:
        with self.servers[0].client() as client, contextlib.suppress(PyMongoError):
            client.admin.command("replSetInitiate", {"_id": "rs0", "members": members})
            return True
        return False


@contextlib.contextmanager
def mongodb() -> Iterator[MongoSet]:
    with ExitStack() as stack:
        yield MongoSet(stack)


def of_mongodb(name: str, act: Callable[[MongoSet], None]) -> None:
    for _ in range(RUNS):
        with mongodb() as store, ZqServer(store.uri) as server:
            report(name, during(store.uri, server, lambda store=store: act(store)))


def of_embedded(name: str) -> None:
    """Kill all processes and restart them at once, like a supervisor."""
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory() as folder, ZqServer(f"rocksdb://{folder}/store") as server:
            posts = Posts(server.url)
            with posts.running():
                posts.go_on()
                server.kill()
                server.start()
                posts.go_on()
            found = [int(message["body"]) for message in every_message(server.url, QUEUE.name)]
            report(name, outcome(found, posts))


WAIT = "[storage:redis]\nwait_replicas = 1\n"
CASES: dict[str, Callable[[str], None]] = {
    "sentinel-order": lambda name: of_group(name, SentinelGroup, ordered),
    "sentinel-order-wait": lambda name: of_group(name, SentinelGroup, ordered, WAIT),
    "sentinel-order-wait-2-replicas": lambda name: of_group(name, lambda: SentinelGroup(replicas=2), ordered, WAIT),
    "sentinel-order-min": lambda name: of_group(name, SentinelGroup, ordered, bound=1),
    "sentinel-order-min-2-replicas": lambda name: of_group(name, lambda: SentinelGroup(replicas=2), ordered, bound=1),
    "sentinel-kill": lambda name: of_group(name, SentinelGroup, killed),
    "sentinel-kill-wait-2-replicas": lambda name: of_group(name, lambda: SentinelGroup(replicas=2), killed, WAIT),
    "cluster-order": lambda name: of_group(name, ClusterGroup, ordered),
    "mongodb-step-down": lambda name: of_mongodb(name, MongoSet.step_down),
    "embedded-kill": of_embedded,
    "mongodb-kill": lambda name: of_mongodb(name, MongoSet.kill),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], metavar="case", help=", ".join(CASES))
    for name in parser.parse_args().cases or CASES:
        CASES[name](name)


if __name__ == "__main__":
    main()
