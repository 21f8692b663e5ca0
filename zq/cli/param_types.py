# SPDX-License-Identifier: Apache-2.0
"""Parameter types of options: bounded numbers, times with a time zone, and JMESPath expressions.

Help texts show the bounds. Upper bounds of the server assume default settings; only the server enforces its own.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import click

from zq.limits import MIN_TTL, Limits

# Maximum of all numbers; as seconds, some thirty years.
MAX_NUMBER: Final = 1_000_000_000
# The default server limits, which help texts show.
SERVERS: Final = Limits()


class Count(click.IntRange):
    """An integer within bounds."""

    name = "number"

    def __init__(self, least: int, most: int = MAX_NUMBER, servers: int | None = None) -> None:
        """Initialize; ``servers`` is the server's upper bound, which the help shows."""
        super().__init__(least, most)
        self._bounds = described(least, servers or most)
        self._shown = self._bounds if least > 1 or servers or most < MAX_NUMBER else ""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse the integer."""
        try:
            return int(super().convert(value, None, None))
        except click.BadParameter:
            self.fail(f"it must be an integer, {self._bounds}, not {str(value)[:40]!r}.", param, ctx)

    def _describe_range(self) -> str:
        return self._shown


class Seconds(click.FloatRange):
    """A number of seconds, up to a billion."""

    name = "seconds"

    def __init__(self, least: float) -> None:
        super().__init__(least)
        self._bounds = described(least, MAX_NUMBER)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse the number."""
        try:
            number = float(super().convert(value, None, None))
        except click.BadParameter:
            number = -1.0
        if not 0 <= number <= MAX_NUMBER:  # the comparison refuses NaN, too
            self.fail(f"it must be a number of seconds, {self._bounds}, not {str(value)[:40]!r}.", param, ctx)
        return number

    def _describe_range(self) -> str:
        return self._bounds if self.min else ""


def described(least: float, most: float) -> str:
    """Return the bounds as text."""
    return f"{least:,} or more" if most == MAX_NUMBER else f"{least:,} to {most:,}"


class Moment(click.DateTime):
    """A date, or a time that is local unless it has a time zone."""

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return the placeholder of the value in help texts."""
        return "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Parse the time and add a time zone."""
        try:
            moment: datetime = super().convert(value, None, None)
        except click.BadParameter:
            self.fail(
                f"{value!r} is not a time such as 2026-05-31, 2026-05-31T14:30 or 2026-05-31T14:30:00+02:00.",
                param,
                ctx,
            )
        try:
            return moment.astimezone()
        except (OverflowError, ValueError):
            self.fail(f"{value} is out of range.", param, ctx)


class Expression(click.ParamType[Callable[[Any], Any]]):
    """A JMESPath expression."""

    name = "expression"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Callable[[Any], Any]:
        """Return a function that applies the expression to a result."""
        import jmespath
        from jmespath.exceptions import JMESPathError

        try:
            found: Callable[[Any], Any] = jmespath.compile(value).search
        except JMESPathError as error:
            self.fail(f"{str(error).splitlines()[0].rstrip(':')}.", param, ctx)
        return found


# Ttl of a message in seconds.
MESSAGE_TTL: Final = Count(MIN_TTL, servers=SERVERS.max_message_ttl)
# Delay of a message in seconds.
DELAY: Final = Count(0, servers=SERVERS.max_message_delay)
# Ttl of a claim in seconds.
CLAIM_TTL: Final = Count(MIN_TTL, servers=SERVERS.max_claim_ttl)
# Seconds for which messages outlive their claim.
GRACE: Final = Count(MIN_TTL, servers=SERVERS.max_claim_grace)
# Seconds for which a claim or pop waits.
WAIT: Final = Count(0, servers=SERVERS.max_wait)
# Number of messages of a claim or pop.
BATCH: Final = Count(1, servers=SERVERS.max_messages_per_claim_or_pop)
