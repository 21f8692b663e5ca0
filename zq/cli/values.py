# SPDX-License-Identifier: Apache-2.0
"""Kinds of values that options take: numbers that clocks and counters can hold, and moments with a time zone."""

from datetime import datetime
from typing import Any, Final

import click

MOST: Final = 1_000_000_000
"""Of anything; as seconds, some thirty years."""


class Count(click.IntRange):
    """A whole number; the help does not show its upper bound."""

    def __init__(self, least: int, most: int = MOST) -> None:
        super().__init__(least)
        self._most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number."""
        number = int(super().convert(value, param, ctx))
        if number > self._most:
            self.fail(f"{number} is more than {self._most:,}.", param, ctx)
        return number


class Seconds(click.FloatRange):
    """A number of seconds, up to a billion."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        number = float(super().convert(value, param, ctx))
        if not number <= MOST:  # what is no number is not, either
            self.fail(f"{number} is not up to {MOST:,}.", param, ctx)
        return number


class Moment(click.DateTime):
    """A day or a time; local unless it has a zone."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """With a time zone."""
        moment: datetime = super().convert(value, param, ctx)
        try:
            return moment.astimezone()
        except (OverflowError, ValueError):
            self.fail(f"{value} is too far away.", param, ctx)
