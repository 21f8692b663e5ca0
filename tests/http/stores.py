# SPDX-License-Identifier: Apache-2.0
"""Stores that cannot: one that does not answer, one with a bug, one that nobody may ask."""

import time
from collections.abc import Callable
from typing import NoReturn

from zq.errors import Unavailable


class BrokenStore:
    """Every verb of every controller raises what ``error`` makes."""

    is_prompt = False

    def __init__(self, error: Callable[[], Exception]) -> None:
        self._error = error

    @property
    def queues(self) -> "BrokenStore":
        return self

    @property
    def messages(self) -> "BrokenStore":
        return self

    @property
    def claims(self) -> "BrokenStore":
        return self

    @property
    def history(self) -> "BrokenStore":
        return self

    @property
    def transactions(self) -> "BrokenStore":
        return self

    @property
    def topics(self) -> "BrokenStore":
        return self

    @property
    def documents(self) -> "BrokenStore":
        return self

    def now(self) -> float:
        return time.time()

    def listen(self, listener: object) -> None:
        pass

    def __getattr__(self, verb: str) -> Callable[..., NoReturn]:
        def refuse(*args: object, **kwargs: object) -> NoReturn:
            raise self._error()

        return refuse


def down() -> Unavailable:
    """A store that does not answer, told in a driver's words; the cause must stay in the log."""
    error = Unavailable("The store is unavailable now. Try again later.")
    error.__cause__ = ConnectionError("password=secret@10.0.0.7:27017")
    return error


def bug() -> RuntimeError:
    """What nobody foresaw."""
    return RuntimeError("secret")


def untouched() -> AssertionError:
    """The request had to be refused before the store was asked."""
    return AssertionError("the store was asked")
