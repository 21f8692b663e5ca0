# SPDX-License-Identifier: Apache-2.0
"""Parameter types of options: numbers that clocks and counters can hold, and moments with a time zone.

Helps name the bounds. An upper bound that is the server's is that of a server with default settings; only the server
refuses what is beyond it.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import click

from zq.limits import MIN_TTL, Limits

# The largest number of anything; as seconds, some thirty years.
MAX_NUMBER: Final = 1_000_000_000
# The limits of a server with default settings, which helps name.
SERVERS: Final = Limits()


class Count(click.IntRange):
    """A whole number."""

    name = "number"

    def __init__(self, least: int, most: int = MAX_NUMBER, servers: int | None = None) -> None:
        """``servers``: the server's bound, which the help names."""
        super().__init__(least, most)
        self._bounds = described(least, servers or most)
        self._shown = self._bounds if least > 1 or servers or most < MAX_NUMBER else ""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number."""
        try:
            return int(super().convert(value, None, None))
        except click.BadParameter:
            self.fail(f"it must be a whole number, {self._bounds}; it is {str(value)[:40]!r}.", param, ctx)

    def _describe_range(self) -> str:
        return self._shown


class Seconds(click.FloatRange):
    """A number of seconds, up to a billion."""

    name = "seconds"

    def __init__(self, least: float) -> None:
        super().__init__(least)
        self._bounds = described(least, MAX_NUMBER)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        try:
            number = float(super().convert(value, None, None))
        except click.BadParameter:
            number = -1.0
        if not 0 <= number <= MAX_NUMBER:  # so NaN is refused, too
            self.fail(f"it must be a number of seconds, {self._bounds}; it is {str(value)[:40]!r}.", param, ctx)
        return number

    def _describe_range(self) -> str:
        return self._bounds if self.min else ""


def described(least: float, most: float) -> str:
    """Bounds in words."""
    return f"{least:,} or more" if most == MAX_NUMBER else f"{least:,} to {most:,}"


class Moment(click.DateTime):
    """A day or a time; local unless it has a zone."""

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """The name of the value in helps."""
        return "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """The moment, with a time zone."""
        try:
            moment: datetime = super().convert(value, None, None)
        except click.BadParameter:
            self.fail(
                f"{value!r} is no time, as in 2026-05-31, 2026-05-31T14:30 or 2026-05-31T14:30:00+02:00.", param, ctx
            )
        try:
            return moment.astimezone()
        except (OverflowError, ValueError):
            self.fail(f"{value} is too far away.", param, ctx)


class Expression(click.ParamType[Callable[[Any], Any]]):
    """What JMESPath makes of a value."""

    name = "expression"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Callable[[Any], Any]:
        """A function of a result."""
        import jmespath
        from jmespath.exceptions import JMESPathError

        try:
            found: Callable[[Any], Any] = jmespath.compile(value).search
        except JMESPathError as error:
            self.fail(f"{str(error).splitlines()[0].rstrip(':')}.", param, ctx)
        return found


# Seconds that a message lives.
MESSAGE_TTL: Final = Count(MIN_TTL, servers=SERVERS.max_message_ttl)
# Seconds before a message can be claimed.
DELAY: Final = Count(0, servers=SERVERS.max_message_delay)
# Seconds that a claim lives.
CLAIM_TTL: Final = Count(MIN_TTL, servers=SERVERS.max_claim_ttl)
# Seconds that messages outlive their claim.
GRACE: Final = Count(MIN_TTL, servers=SERVERS.max_claim_grace)
# Seconds that a claim or pop waits.
WAIT: Final = Count(0, servers=SERVERS.max_wait)
# Messages of one claim or pop.
BATCH: Final = Count(1, servers=SERVERS.max_messages_per_claim_or_pop)
