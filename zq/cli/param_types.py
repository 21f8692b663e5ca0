# SPDX-License-Identifier: Apache-2.0
"""Parameter types of options: bounded numbers, times, and JMESPath expressions.

Help texts show the bounds. If a maximum is a limit of the server, the help text shows the server's default limit, and
only the server enforces the limit.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import click

from zq.model.limits import MIN_TTL, Limits

# Maximum of all numbers. In seconds, it is about thirty years.
MAX_NUMBER: Final = 1_000_000_000
# The server's default limits.
SERVERS: Final = Limits()


class Count(click.IntRange):
    """An integer within bounds, which the help text shows."""

    name = "number"

    def __init__(self, minimum: int, maximum: int = MAX_NUMBER, servers: int | None = None) -> None:
        """Create the type. The help text shows ``servers``, the server's maximum, instead of ``maximum``."""
        super().__init__(minimum, maximum)
        self._bounds = describe_bounds(minimum, servers or maximum)
        self._shown = self._bounds if minimum > 1 or servers or maximum < MAX_NUMBER else ""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return int(super().convert(value, None, None))
        except click.BadParameter:
            self.fail(f"it must be an integer, {self._bounds}, not {str(value)[:40]!r}.", param, ctx)

    def _describe_range(self) -> str:
        return self._shown


class Seconds(click.FloatRange):
    """A number of seconds with a minimum, which the help text shows."""

    name = "seconds"

    def __init__(self, minimum: float) -> None:
        super().__init__(minimum)
        self._bounds = describe_bounds(minimum, MAX_NUMBER)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(super().convert(value, None, None))
        except click.BadParameter:
            number = -1.0
        if not 0 <= number <= MAX_NUMBER:  # also true for NaN
            self.fail(f"it must be a number of seconds, {self._bounds}, not {str(value)[:40]!r}.", param, ctx)
        return number

    def _describe_range(self) -> str:
        return self._bounds if self.min else ""


def describe_bounds(minimum: float, maximum: float) -> str:
    return f"{minimum:,} or more" if maximum == MAX_NUMBER else f"{minimum:,} to {maximum:,}"


class Moment(click.DateTime):
    """A date or time. A time without a time zone is local."""

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
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
        """Compile the expression to a function that queries a result."""
        import jmespath
        from jmespath.exceptions import JMESPathError

        try:
            found: Callable[[Any], Any] = jmespath.compile(value).search
        except JMESPathError as error:
            self.fail(f"{str(error).splitlines()[0].rstrip(':')}.", param, ctx)
        return found


# Message ttl in seconds.
MESSAGE_TTL: Final = Count(MIN_TTL, servers=SERVERS.max_message_ttl)
# Message delay in seconds.
DELAY: Final = Count(0, servers=SERVERS.max_message_delay)
# Claim ttl in seconds.
CLAIM_TTL: Final = Count(MIN_TTL, servers=SERVERS.max_claim_ttl)
# Seconds for which messages outlive their claim.
GRACE: Final = Count(MIN_TTL, servers=SERVERS.max_claim_grace)
# Seconds for which a claim or pop waits for messages.
WAIT: Final = Count(0, servers=SERVERS.max_wait)
# Number of messages per claim or pop.
BATCH: Final = Count(1, servers=SERVERS.max_messages_per_claim_or_pop)
