# SPDX-License-Identifier: Apache-2.0
"""The command ``zq doctor``, which checks the server, the credential and the queues of a project."""

import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from itertools import islice
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

import click

from zq import __version__, diagnosis
from zq.cli.profiles import is_loopback
from zq.cli.session import Command, Session, pass_session
from zq.client import Client, ListedResource
from zq.client.calls import Call, Response, read_object
from zq.clock import local_time
from zq.diagnosis import DAY, Check, Finding, fail, judge_certificate, judge_clock, ok, skip, warn
from zq.errors import NotAuthenticated, NotAuthorized, ProjectInactive, Unavailable, ZqError
from zq.wire.answers import Depth

# The doctor warns if a credential expires within this number of days.
CREDENTIAL_DAYS: Final = 7
# Timeout of a connection attempt in seconds.
TIMEOUT: Final = 10.0
# Maximum seconds to post a message to the temporary queue, claim it and delete it.
MAX_MESSAGE_SECONDS: Final = 1.0
# Ttl of the test message in seconds.
MESSAGE_TTL: Final = 60
# The doctor warns if this share of a quota is used.
HIGH_QUOTA_SHARE: Final = 0.8
# Maximum number of queues that are examined.
MAX_QUEUES: Final = 100
# The doctor warns if a message has waited for this number of seconds and the queue has no consumer.
MAX_READY_AGE: Final = 900
# Policy rules by what a caller with the rule may do.
ABILITIES: Final = {
    "messages:create": "post",
    "claims:create": "claim",
    "queues:create": "create queues",
    "queues:delete": "delete queues",
    "queues:stats": "observe queues",
}
REACH: Final = "reach"


@click.command("doctor", cls=Command)
@pass_session
def doctor(session: Session) -> int:
    """Check the server, the credential and the queues, and show how to fix problems.

    The checks post a message to a temporary queue and claim it. The exit code is 0 if there are no
    problems, 1 if there are warnings, and 2 if there are failures. For more checks, run zq-server doctor on a server's
    machine.
    """
    session.configure(attempts=1)
    results = []
    for result in diagnosis.run(Doctor(session.client, session.connection.url).checks()):
        if session.out.uses_tables:
            click.echo(result.line)
        else:
            session.out.line(result)
        results.append(result)
    return diagnosis.exit_code(results)


class Doctor:
    """The checks of one server and project."""

    def __init__(self, client: Client, url: str) -> None:
        self._client = client
        self._url = url

    def checks(self) -> Iterator[Check]:
        yield Check(REACH, self.check_reach)
        for name, run in (
            ("tls", self.check_tls),
            ("readiness", self.check_readiness),
            ("clock", self.check_clock),
            ("store clock", self.check_store_clock),
            ("credential", self.check_credential),
            ("permissions", self.check_permissions),
            ("version", self.check_version),
            ("limits", self.check_limits),
            ("quotas", self.check_quotas),
            ("message", self.check_message),
            ("backlog", self.check_backlog),
            ("dead letters", self.check_dead_letters),
            ("servers", self.check_servers),
        ):
            yield Check(name, run, needs=REACH)

    def _get(self, path: str) -> Response:
        response: Response = self._client.transport.run(Call(method="GET", path=path, read=lambda response: response))
        return response

    @cached_property
    def _me(self) -> dict[str, Any]:
        return self._client.me()

    @cached_property
    def _queues(self) -> list[tuple[ListedResource, Depth]]:
        listed = islice(self._client.queues(detailed=True), MAX_QUEUES)
        return [(queue, self._client.queue(queue.name).depth()) for queue in listed]

    @property
    def _among(self) -> str:
        """The words " of the first 100" for a finding, if only the first 100 queues were checked; otherwise ""."""
        return f" of the first {MAX_QUEUES}" if len(self._queues) == MAX_QUEUES else ""

    def check_reach(self) -> Finding:
        began = time.monotonic()
        try:
            health = self._client.transport.run(Call(method="GET", path="/healthz", read=read_object))
        except ZqError as error:
            return fail(str(error), "Check the URL, and that the server is running.")
        if health != {"status": "ok"}:
            return fail("The program at the URL is not a zq server.", "Check the URL.")
        return ok(f"The server answers in {1000 * (time.monotonic() - began):.0f} ms.")

    def check_tls(self) -> Finding:
        parts = urlsplit(self._url)
        if parts.scheme != "https":
            if is_loopback(parts.hostname or ""):
                return ok("Requests stay on this machine, so they need no TLS.")
            return warn(f"Requests to {parts.hostname} are not encrypted.", "Serve TLS and use an https URL.")
        from zq.client.certificates import read_expiry  # importing httpx is slow

        left = read_expiry(self._url, TIMEOUT) - local_time()
        return judge_certificate(left, "The certificate", "Renew it on the server.")

    def check_readiness(self) -> Finding:
        try:
            self._get("/readyz")
        except Unavailable as error:
            return fail(f"The server is not ready. {error}", "On its machine, run zq-server doctor.")
        return ok("The server is ready.")

    def check_clock(self) -> Finding:
        from email.utils import parsedate_to_datetime  # a slow import

        began = local_time()
        date = self._get("/healthz").headers.get("Date")
        if date is None:
            return skip("The server or a proxy sends no Date header.")
        # The header has whole seconds.
        return judge_clock((began + local_time()) / 2 - parsedate_to_datetime(date).timestamp() - 0.5, "the server")

    def check_store_clock(self) -> Finding:
        offset = abs(self._client.figures().clock_offset)
        found = f"The clocks of the server and of its store are {offset:.1f} seconds apart."
        if offset > diagnosis.MAX_SYNCHRONISED_OFFSET:
            return warn(found, "Synchronise both clocks with a time service that slews, such as chrony.")
        return ok(found)

    def check_credential(self) -> Finding:
        try:
            if self._me["auth"] == "none":
                return ok("The server does not authenticate callers.")
        except NotAuthenticated as error:
            return fail(str(error), "Store a valid token with zq login.")
        identity = self._client.whoami()
        scopes = "all scopes" if identity["scopes"] is None else " ".join(identity["scopes"])
        found = f"The credential of project {identity['project']} has {scopes}"
        if identity["expires"] is None:
            return ok(f"{found} and does not expire.")
        days = (datetime.fromisoformat(identity["expires"]).timestamp() - local_time()) / DAY
        found += f" and expires in {days:.0f} days."
        return warn(found, "Replace it with zq token rotate.") if days < CREDENTIAL_DAYS else ok(found)

    def check_permissions(self) -> Finding:
        rules = self._me["rules"]
        allowed = [ability for rule, ability in ABILITIES.items() if rule in rules]
        if not {"post", "claim"} & {*allowed}:
            return warn("The caller may neither post nor claim.", "Use a token with the scope produce or consume.")
        return ok(f"The caller may {', '.join(allowed)}.")

    def check_version(self) -> Finding:
        version = self._me["version"]
        found = f"The server runs zq {version}, and this client is zq {__version__}."
        same = version.split(".")[:2] == __version__.split(".")[:2]
        return ok(found) if same else warn(found, "Use the same minor version for server and client.")

    def check_limits(self) -> Finding:
        limits = self._client.limits()
        return ok(
            f"A post may have {limits['max_messages_per_post']:,} messages and {limits['max_messages_post_size']:,} "
            f"bytes, a claim {limits['max_messages_per_claim_or_pop']:,} messages."
        )

    def check_quotas(self) -> Finding:
        quota = self._client.quota()
        used = quota.used
        shares = {name: used[name] / limit for name, limit in quota.limits.items() if limit and name in used}
        near = [f"{name} {share:.0%}" for name, share in shares.items() if share >= HIGH_QUOTA_SHARE]
        if near:
            found = f"Quotas are nearly exhausted: {', '.join(near)}."
            advice = "Delete what is not needed, or let an administrator raise the quota."
            return fail(found, advice) if max(shares.values()) >= 1 else warn(found, advice)
        return ok("No quota is nearly exhausted.")

    def check_message(self) -> Finding:
        missing = [name for rule, name in ABILITIES.items() if rule not in self._me["rules"]]
        if missing:
            return skip(f"The caller may not {', '.join(missing)}.")
        queue, began = self._client.queue(f"zq-doctor-{uuid4().hex[:12]}"), time.monotonic()
        advice = "On the server's machine, run zq-server doctor."
        try:
            try:
                id = queue.post("zq doctor", ttl=MESSAGE_TTL)
                claimed = queue.claim(1)
                queue.settle(claimed.id, delete="*")
            finally:
                with suppress(ZqError):
                    queue.delete()
        except ZqError as error:
            # The scopes of the token exclude the temporary queue, or an administrator has stopped the project.
            if type(error) in (NotAuthorized, ProjectInactive):
                return skip(str(error))
            return fail(f"A message could not be posted, claimed and deleted. {error}", advice)
        if [message.id for message in claimed.messages] != [id]:
            return fail("A posted message was not claimed.", advice)
        seconds = time.monotonic() - began
        found = f"A message was posted, claimed and deleted in {1000 * seconds:.0f} ms."
        return warn(found, advice) if seconds > MAX_MESSAGE_SECONDS else ok(found)

    def check_backlog(self) -> Finding:
        waiting = {
            queue.name: depth.oldest_ready_seconds
            for queue, depth in self._queues
            if depth.oldest_ready_seconds > MAX_READY_AGE and not depth.claimed
        }
        if not waiting:
            return ok(f"No queue{self._among} has old messages without a consumer.")
        name = max(waiting, key=lambda name: waiting[name])
        found = (
            f"Queues without a consumer{self._among}: {len(waiting)}. In {name}, a message has waited "
            f"{waiting[name]:,.0f} seconds."
        )
        return warn(found, "Start consumers, or purge the queues.")

    def check_dead_letters(self) -> Finding:
        names = {(queue.metadata or {}).get("_dead_letter_queue") for queue, _ in self._queues}
        found = {queue.name: depth.backlog for queue, depth in self._queues if queue.name in names and depth.backlog}
        if not found:
            return ok(f"No queue{self._among} has dead letters.")
        counts = ", ".join(f"{name} ({count:,})" for name, count in found.items())
        return warn(f"Dead letters wait in {counts}.", "Find the cause with zq dlq list, then redrive or delete them.")

    def check_servers(self) -> Finding:
        servers = self._client.servers()
        versions = sorted({server.version for server in servers})
        if len(versions) > 1:
            return warn(f"The servers run different versions: {', '.join(versions)}.", "Finish the upgrade.")
        streams, max_streams = (sum(getattr(server, name) for server in servers) for name in ("streams", "max_streams"))
        running = f", running zq {versions[0]}" if versions else ""
        return ok(f"Server processes: {len(servers)}{running}. Open streams: {streams:,} of {max_streams:,}.")
