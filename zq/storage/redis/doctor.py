# SPDX-License-Identifier: Apache-2.0
"""Read-only health checks of Redis or Valkey for the command ``zq-server doctor``."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from redis.exceptions import ResponseError

from zq.diagnosis import Check, Finding, fail, judge_clock, judge_round_trip, ok, skip, warn
from zq.errors import Unavailable
from zq.model import Seconds
from zq.storage.options import RedisOptions
from zq.storage.redis import address, layout, network, startup
from zq.storage.redis.client import Client, ReadRequest
from zq.storage.redis.maintenance import BUCKETS

# The fields of ``INFO`` of one server.
Facts = Mapping[str, str]
# Used share of ``maxmemory`` from which the doctor warns, like in the alert ``ZqStoreNearItsLimit``.
NEAR_LIMIT: Final = 0.85
# Fields that are "err" after a failed write of the server's files.
WRITE_STATUSES: Final = ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status")


@contextmanager
def diagnose(uri: str, now: Callable[[], Seconds], **options: Any) -> Iterator[Sequence[Check]]:
    """Provide the health checks of a Redis store within a ``with`` block; see ``zq.storage.diagnose``."""
    chosen = RedisOptions(**options)
    where = address.parse(uri)
    client = Client(network.reach(where, chosen.timeout), chosen.timeout)
    try:
        startup.inspect(client, where)
        servers = [startup.parse_info(reply) for reply in run_on_each_server(client, b"INFO")]
        yield (
            Check("store version", partial(check_version, servers)),
            Check("store memory", partial(check_memory, servers)),
            Check("eviction", partial(check_eviction, servers)),
            Check("persistence", partial(check_persistence, servers, client)),
            Check("replicas", partial(check_replicas, servers, chosen.wait_replicas)),
            Check("store clock", partial(check_clock, client, now)),
            Check("round trip", partial(judge_round_trip, lambda: read_time(client), "Redis")),
        )
    finally:
        client.close()


def run_on_each_server(client: Client, *command: bytes) -> Sequence[Any]:
    """Run a command on each server, and return the replies."""
    return client.read_pipelined([ReadRequest(key, command) for key in client.pick_per_server(BUCKETS)])


def check_version(servers: Sequence[Facts]) -> Finding:
    names = {
        f"Valkey {facts['valkey_version']}" if "valkey_version" in facts else f"Redis {facts['redis_version']}"
        for facts in servers
    }
    found = f"{len(servers)} server{'s' * (len(servers) > 1)}: {', '.join(sorted(names))}, layout {layout.VERSION}."
    return ok(found) if len(names) == 1 else warn(found, "Upgrade all servers to the same version.")


def check_memory(servers: Sequence[Facts]) -> Finding:
    shares = [int(facts["used_memory"]) / limit for facts in servers if (limit := int(facts["maxmemory"]))]
    if len(shares) < len(servers):
        return warn(
            "Redis has no memory limit, so the kernel kills it when the machine's memory is full.",
            "Set maxmemory to at most 95 % of the machine's memory. At the limit, only posts fail.",
        )
    found = f"Redis uses {max(shares):.0%} of its memory limit."
    advice = "Raise maxmemory, or shorten ttls. At the limit, Redis rejects posts."
    return warn(found, advice) if max(shares) > NEAR_LIMIT else ok(found)


def check_eviction(servers: Sequence[Facts]) -> Finding:
    policies = {facts["maxmemory_policy"] for facts in servers}
    found = f"maxmemory-policy is {', '.join(sorted(policies))}."
    if any(policy.startswith("allkeys") for policy in policies):
        return warn(found, "Set noeviction. With a memory limit, Redis would delete messages, and zq does not start.")
    return ok(found)


def check_persistence(servers: Sequence[Facts], client: Client) -> Finding:
    failed = {name for facts in servers for name in WRITE_STATUSES if facts.get(name, "ok") != "ok"}
    if failed:
        return fail(
            f"Redis could not write its files ({', '.join(sorted(failed))}).", "See the log and the disk of Redis."
        )
    if any(facts["aof_enabled"] != "1" for facts in servers):
        return warn(
            "The append-only file is off, so a restart of Redis loses acknowledged messages.", "Set appendonly yes."
        )
    try:
        policies = {policy.decode() for _, policy in run_on_each_server(client, b"CONFIG", b"GET", b"appendfsync")}
    except Unavailable as error:
        if isinstance(error.__cause__, ResponseError):
            return skip("The append-only file is on, but this user may not read appendfsync with CONFIG GET.")
        raise
    found = f"The append-only file is on, with appendfsync {', '.join(sorted(policies))}."
    if "no" in policies:
        return warn(found, "Set appendfsync everysec or always: a power failure loses many acknowledged messages.")
    return ok(found)


def check_replicas(servers: Sequence[Facts], min_replicas: int) -> Finding:
    replica_count = min(int(facts["connected_slaves"]) for facts in servers)
    found = f"Connected replicas of {'a master' if len(servers) > 1 else 'the master'}: {replica_count}."
    if replica_count < min_replicas:
        return fail(found, f"[storage:redis] wait_replicas is {min_replicas}, so changes fail. Start more replicas.")
    if not replica_count:
        return warn(found, "If its machine fails, the messages are unavailable. Add a replica.")
    return ok(found)


def check_clock(client: Client, now: Callable[[], Seconds]) -> Finding:
    began = now()
    seconds, micros = read_time(client)
    return judge_clock((began + now()) / 2 - int(seconds) - int(micros) / 1_000_000, "Redis")


def read_time(client: Client) -> tuple[bytes, bytes]:
    seconds, micros = client.command(layout.VERSION_KEY, b"TIME")
    return seconds, micros
