# SPDX-License-Identifier: Apache-2.0
"""Commands for messages and claims, from ``zq list`` to ``zq release``."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Literal

import click
import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import asdict, replace

from zq.cli.names import check_not_missing, name_argument
from zq.cli.output import as_builtins
from zq.cli.param_types import BATCH, CLAIM_TTL, DELAY, GRACE, MESSAGE_TTL, WAIT, Count
from zq.cli.session import Command, Session, pass_session
from zq.client import BuryTerms, LiveClaim, MoveTerms, ReleaseTerms, UndecodableBody
from zq.client.values import NO_BODY
from zq.errors import MessageNotFound

queue_argument = name_argument("queue", "queues")
claim_argument = click.argument("claim")
ttl_option = click.option("--ttl", type=MESSAGE_TTL, metavar="SECONDS", help="Message TTL.")
delay_option = click.option("--delay", type=DELAY, metavar="SECONDS", help="Seconds until the message can be claimed.")
wait_option = click.option(
    "--wait", type=WAIT, default=0, metavar="SECONDS", help="Seconds to wait for the first message."
)
Ids = tuple[str, ...]


def limit_option(default: int, more: str = "") -> Callable[[Any], Any]:
    """Return a decorator that adds the option ``--limit``.

    ``more`` is inserted into the help text, for example ", 0 = all". If ``more`` is not empty, the option accepts 0.
    """
    text = f"Maximum number of results{more} (default {default})."
    return click.option("--limit", type=Count(0) if more else BATCH, default=default, help=text)


def parse_body(text: str, as_text: bool = False) -> Raw:
    """Convert an argument to a message body.

    If ``as_text`` is true, or if the argument is not valid JSON, the body is a string. Otherwise, the body is the JSON
    value. Raises ``UsageError`` if ``as_text`` is false and the argument begins like a JSON object or array but is not
    valid JSON.
    """
    if not as_text:
        try:
            return msgspec.json.decode(text, type=Raw)
        except msgspec.DecodeError as error:
            if text.lstrip().startswith(("{", "[")):
                sentence = f"The body looks like JSON but does not parse: {error}. Use --text to post it as text."
                raise click.UsageError(sentence) from error
    return Raw(msgspec.json.encode(text))


@click.command("list", cls=Command)
@queue_argument
@limit_option(100, ", 0 = all")
@click.option("--claimed", is_flag=True, help="Include claimed messages.")
@click.option("--delayed", is_flag=True, help="Include delayed messages.")
@click.option(
    "--state",
    type=click.Choice(["ready", "delayed", "claimed"]),
    help="List only messages in this state, in the order in which consumers claim them.",
)
@click.option("--starts", is_flag=True, help="Show only the start of each body.")
@pass_session
def list_messages(
    session: Session, queue: str, limit: int, claimed: bool, delayed: bool, state: Any, starts: bool
) -> None:
    """List the messages of a queue in the order of posting."""
    if state is not None and (claimed or delayed):
        raise click.UsageError("--claimed and --delayed cannot be combined with --state.")
    bodies: Literal["start", "whole"] = "start" if starts else "whole"
    found = session.queue(queue).list(claimed=claimed, delayed=delayed, state=state, bodies=bodies)
    session.out.messages(check_not_missing(session, queue, islice(found, limit or None)))


@click.command("find", cls=Command)
@click.argument("message", metavar="ID")
@pass_session
def find(session: Session, message: str) -> None:
    """Find a live or finished message by id in all queues of the project."""
    located = session.client.find(message)
    try:
        members = as_builtins(located.message)
    except UndecodableBody:
        members = as_builtins(replace(located.message, raw=NO_BODY)) | {"body": located.message.raw}
    session.out.result({"queue": located.queue, "state": located.state, **members})


@click.command("get", cls=Command)
@queue_argument
@click.argument("messages", nargs=-1, required=True, metavar="ID...")
@pass_session
def get(session: Session, queue: str, messages: Ids) -> None:
    """Show messages by id."""
    handle = session.queue(queue)
    found = [handle.get(messages[0])] if len(messages) == 1 else handle.get_many(messages)
    session.out.messages(found, full=True)
    if missing := sorted({*messages} - {message.id for message in found}):
        raise MessageNotFound(f"{queue} does not have these messages: {', '.join(missing)}.")


@click.command("pop", cls=Command)
@queue_argument
@limit_option(1)
@wait_option
@pass_session
def pop(session: Session, queue: str, limit: int, wait: int) -> None:
    """Receive messages and delete them in one step."""
    session.out.messages(check_not_missing(session, queue, session.queue(queue).pop(limit, wait=wait)), full=True)


@click.command("claim", cls=Command)
@queue_argument
@limit_option(10)
@click.option("--ttl", type=CLAIM_TTL, metavar="SECONDS", help="Claim TTL.")
@click.option(
    "--grace", type=GRACE, metavar="SECONDS", help="Minimum time from the end of the claim to the expiry of a message."
)
@wait_option
@click.option(
    "--name",
    metavar="NAME",
    help="Claim id of your choice, with a dot. If the claim already exists, zq returns the existing claim.",
)
@pass_session
def claim(
    session: Session, queue: str, limit: int, ttl: int | None, grace: int | None, wait: int, name: str | None
) -> None:
    """Claim messages, which you then settle, move or release."""
    claimed = session.queue(queue).claim(limit, ttl=ttl, grace=grace, wait=wait, name=name)
    session.out.messages(check_not_missing(session, queue, claimed.messages), claim=claimed.id)


@click.command("claims", cls=Command)
@name_argument("queue", "queues", required=False)
@limit_option(100, ", 0 = all")
@pass_session
def list_claims(session: Session, queue: str | None, limit: int) -> None:
    """List the live claims of a queue, or of all queues, with their holders."""
    found = session.client.claims() if queue is None else session.queue(queue).claims()
    shown = islice(found, limit or None)

    def cells(claim: LiveClaim) -> Sequence[object]:
        left = max(0, claim.ttl - claim.age)
        return claim.queue, claim.id, claim.agent, claim.client, claim.messages, claim.age, left

    columns = ("queue", "id", "agent", "client", "messages", "age", "ends in")
    session.out.rows(columns, shown if queue is None else check_not_missing(session, queue, shown), cells)


@click.command("settle", cls=Command)
@queue_argument
@claim_argument
@click.option(
    "--all", "everything", is_flag=True, help="Delete all messages of the claim that are not named by another option."
)
@click.option("--delete", multiple=True, metavar="ID", help="Id of a message to delete; repeatable.")
@click.option(
    "--release", "released", multiple=True, metavar="ID", help="Id of a message to release after --delay; repeatable."
)
@click.option(
    "--bury",
    "buried",
    multiple=True,
    metavar="ID",
    help="Id of a message to move to the dead-letter queue; repeatable.",
)
@delay_option
@click.option("--reason", default="buried by hand", metavar="TEXT", help="Reason stored with buried messages.")
@pass_session
def settle(
    session: Session,
    queue: str,
    claim: str,
    everything: bool,
    delete: Ids,
    released: Ids,
    buried: Ids,
    delay: int | None,
    reason: str,
) -> None:
    """Settle messages of a claim atomically."""
    if not (everything or delete or released or buried):
        raise click.UsageError("Name messages with --delete, --release or --bury, or use --all.")
    after = UNSET if delay is None else delay
    done = session.queue(queue).settle(
        claim,
        delete="*" if everything else delete,
        release=[ReleaseTerms(message, after) for message in released],
        bury=[BuryTerms(message, reason) for message in buried],
    )
    session.out.result(asdict(done))


@click.command("move", cls=Command)
@queue_argument
@claim_argument
@click.argument("messages", nargs=-1, required=True, metavar="ID...")
@click.option("--to", "target", required=True, metavar="QUEUE", help="Target queue.")
@click.option("--body", help="New body: JSON, or text if it is not JSON.")
@click.option("--text", is_flag=True, help="Send the new body as text, even if it looks like JSON.")
@ttl_option
@delay_option
@pass_session
def move(
    session: Session,
    queue: str,
    claim: str,
    messages: Ids,
    target: str,
    body: str | None,
    text: bool,
    ttl: int | None,
    delay: int | None,
) -> None:
    """Move claimed messages to another queue atomically."""
    content = UNSET if body is None else parse_body(body, as_text=text)
    terms = (content, UNSET if ttl is None else ttl, UNSET if delay is None else delay)
    moved = [MoveTerms(message, target, *terms) for message in messages]
    session.out.result(asdict(session.queue(queue).settle(claim, move=moved)))


@click.command("release", cls=Command)
@queue_argument
@claim_argument
@click.argument("messages", nargs=-1, metavar="[ID]...")
@delay_option
@pass_session
def release(session: Session, queue: str, claim: str, messages: Ids, delay: int | None) -> None:
    """Release some or all messages of a claim."""
    if not messages:
        session.queue(queue).get_claim(claim)  # raises an error for an unknown claim, which ``release`` does not
        session.queue(queue).release(claim, delay=delay)
        session.out.result({"claim": claim, "released": True})
        return
    after = UNSET if delay is None else delay
    back = [ReleaseTerms(message, after) for message in messages]
    session.out.result(asdict(session.queue(queue).settle(claim, release=back)))
