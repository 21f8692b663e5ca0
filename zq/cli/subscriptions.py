# SPDX-License-Identifier: Apache-2.0
"""The commands ``zq subscription`` and ``zq deliveries``."""

import sys
from collections.abc import Callable
from itertools import islice
from typing import Any

import click
import msgspec

from zq.cli.history import REDRIVE_BATCH
from zq.cli.messages import Ids, limit_option
from zq.cli.names import name_argument
from zq.cli.output import as_text
from zq.cli.param_types import Count
from zq.cli.session import Group, Session, pass_session
from zq.client import DeadDelivery, Queue, Subscription, Topic
from zq.model.limits import MAX_IDS

subscription_group = Group("subscription", help="Manage HTTP and mail subscriptions to queues and topics.")
deliveries_group = Group("deliveries", help="Manage failed and pending deliveries of a subscription.")
source_argument = name_argument("source", "queues", metavar="QUEUE")
topic_option = click.option("--topic", is_flag=True, help="Use the topic named QUEUE instead of a queue.")
id_argument = click.argument("subscription", metavar="SUBSCRIPTION")


class JsonObject(click.ParamType[dict[str, Any]]):
    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        try:
            return msgspec.json.decode(value, type=dict[str, Any])
        except msgspec.MsgspecError:
            self.fail(f"{value!r} is not a JSON object.", param, ctx)


def terms_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that describe a subscription."""
    ttl = click.option("--ttl", type=Count(60), metavar="SECONDS", help="Subscription TTL.")
    return ttl(
        click.option(
            "--options", type=JsonObject(), metavar="JSON", help='Options, such as {"post_headers": {"X-A": "b"}}.'
        )(command)
    )


def source_handle(session: Session, name: str, topic: bool) -> Queue | Topic:
    return session.client.topic(name) if topic else session.queue(name)


@subscription_group.command("create")
@source_argument
@click.argument("subscriber")
@terms_options
@topic_option
@pass_session
def create(
    session: Session, source: str, subscriber: str, ttl: int | None, options: dict[str, Any] | None, topic: bool
) -> None:
    """Subscribe the URI SUBSCRIBER to the messages of QUEUE.

    Deliveries begin when the subscriber has confirmed the subscription. For a new subscription, zq shows the secret for
    verifying webhook signatures.
    """
    made = source_handle(session, source, topic).subscribe(subscriber, ttl=ttl, options=options)
    session.out.result({"id": made.id, **({"secret": made.secret} if made.secret else {})})


@subscription_group.command("list")
@source_argument
@limit_option(100, ", 0 = all")
@topic_option
@pass_session
def list_all(session: Session, source: str, limit: int, topic: bool) -> None:
    """List the subscriptions of QUEUE."""
    found = list(islice(source_handle(session, source, topic).subscriptions(), limit or None))
    if not found:
        session.check_exists(source, "topics" if topic else "queues")
    columns = ("id", "subscriber", "confirmed", "age", "ttl")
    session.out.rows(columns, found, lambda one: [getattr(one, column) for column in columns])


@subscription_group.command("show")
@source_argument
@id_argument
@topic_option
@pass_session
def show(session: Session, source: str, subscription: str, topic: bool) -> None:
    """Show a subscription. Header values are shown as ***."""
    session.out.result(members(source_handle(session, source, topic).subscription(subscription)))


def members(one: Subscription) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(one)
    return found


@subscription_group.command("update")
@source_argument
@id_argument
@click.option("--subscriber", metavar="URI", help="New subscriber, which must confirm the subscription.")
@terms_options
@topic_option
@pass_session
def update(
    session: Session,
    source: str,
    subscription: str,
    subscriber: str | None,
    ttl: int | None,
    options: dict[str, Any] | None,
    topic: bool,
) -> None:
    """Change a subscription and show it."""
    if subscriber is None and ttl is None and options is None:
        raise click.UsageError("Give at least one of --subscriber, --ttl and --options.")
    handle = source_handle(session, source, topic)
    handle.update_subscription(subscription, subscriber=subscriber, ttl=ttl, options=options)
    session.out.result(members(handle.subscription(subscription)))


@subscription_group.command("delete")
@source_argument
@click.argument("subscriptions", nargs=-1, required=True, metavar="SUBSCRIPTION...")
@topic_option
@pass_session
def delete(session: Session, source: str, subscriptions: Ids, topic: bool) -> None:
    """Delete subscriptions with their pending deliveries."""
    handle = source_handle(session, source, topic)
    for one in subscriptions:
        handle.unsubscribe(one)
        session.out.result({"id": one, "deleted": True})


@subscription_group.command("confirm")
@source_argument
@id_argument
@click.option("--not", "refused", is_flag=True, help="Reject the subscription instead of confirming it.")
@topic_option
@pass_session
def confirm(session: Session, source: str, subscription: str, refused: bool, topic: bool) -> None:
    """Confirm a subscription on behalf of the subscriber.

    If the server requires authentication and confirmation, you must be an administrator.
    """
    source_handle(session, source, topic).confirm_subscription(subscription, not refused)
    session.out.result({"id": subscription, "confirmed": not refused})


@subscription_group.command("test")
@source_argument
@id_argument
@topic_option
@pass_session
def test(session: Session, source: str, subscription: str, topic: bool) -> None:
    """Send the test message {"test": true} to this subscriber only."""
    message = source_handle(session, source, topic).test_subscription(subscription)
    session.out.result({"id": subscription, "message": message})


@subscription_group.command("secret")
@source_argument
@id_argument
@topic_option
@pass_session
def secret(session: Session, source: str, subscription: str, topic: bool) -> None:
    """Create a new webhook secret. For one day, deliveries are signed with both secrets."""
    session.out.result(
        {"id": subscription, "secret": source_handle(session, source, topic).rotate_secret(subscription)}
    )


@deliveries_group.command("list")
@source_argument
@id_argument
@limit_option(100, ", 0 = all")
@click.option("--waiting", is_flag=True, help="List pending deliveries instead of failed deliveries.")
@topic_option
@pass_session
def list_dead(session: Session, source: str, subscription: str, limit: int, waiting: bool, topic: bool) -> None:
    """List failed or pending deliveries."""
    handle = source_handle(session, source, topic)
    all = handle.waiting_deliveries(subscription) if waiting else handle.dead_deliveries(subscription)
    found = islice(all, limit or None)
    session.out.rows(("id", "message", "attempts", "reason", "body"), found, cells)


def cells(one: DeadDelivery) -> list[object]:
    return [one.id, one.message_id, one.attempts, one.reason, as_text(one.body)]


@deliveries_group.command("redrive")
@source_argument
@id_argument
@click.option("--limit", type=Count(1), help="Maximum number of deliveries (default: all).")
@topic_option
@pass_session
def redrive(session: Session, source: str, subscription: str, limit: int | None, topic: bool) -> None:
    """Retry failed deliveries. The count of attempts starts again from zero."""
    handle, moved = source_handle(session, source, topic), 0
    while True:
        batch_limit = REDRIVE_BATCH if limit is None else min(REDRIVE_BATCH, limit - moved)
        done = handle.redrive_deliveries(subscription, limit=batch_limit)
        moved += done.moved
        if not done.moved or not done.remaining or moved == limit:
            break
    session.out.result({"id": subscription, "moved": moved, "remaining": done.remaining})


@deliveries_group.command("delete")
@source_argument
@id_argument
@click.argument("deliveries", nargs=-1, metavar="[ID]...")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation (the default without a terminal).")
@topic_option
@pass_session
def drop(session: Session, source: str, subscription: str, deliveries: Ids, yes: bool, topic: bool) -> None:
    """Delete failed deliveries by id, or all failed deliveries."""
    handle = source_handle(session, source, topic)
    if not deliveries and not yes and sys.stdin.isatty():
        click.confirm(f"Delete all failed deliveries of {subscription}?", abort=True, err=True)
    for first in range(0, len(deliveries), MAX_IDS):
        handle.drop_deliveries(subscription, deliveries[first : first + MAX_IDS])
    if not deliveries:
        handle.drop_deliveries(subscription)
    session.out.result({"id": subscription, "dropped": len(deliveries) or "all"})
