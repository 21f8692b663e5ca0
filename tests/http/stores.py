# SPDX-License-Identifier: Apache-2.0
"""Failing stores: an unavailable store, a store with a bug, and a store that a test must not access."""

import time
from collections.abc import Callable
from typing import NoReturn

from zq.errors import Unavailable


class BrokenStore:
    """A store whose every verb raises the error that ``error`` creates."""

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
    """Return the error of an unavailable store. Its cause, a driver's error, may appear only in the log."""
    error = Unavailable("The store is unavailable now. Try again later.")
    error.__cause__ = ConnectionError("password=secret@10.0.0.7:27017")
    return error


def bug() -> RuntimeError:
    """Return an unexpected error."""
    return RuntimeError("secret")


def untouched() -> AssertionError:
    """Return the error for an access to the store by a request that must be refused before."""
    return AssertionError("the store was asked")
