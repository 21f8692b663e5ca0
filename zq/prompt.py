# SPDX-License-Identifier: Apache-2.0
"""Work on a thread that serves many: what would hold it says so, and is begun anew on another thread.

An engine runs a request between ``begin`` and ``end`` on the thread that reads all its connections. Whatever is about
to take long there calls ``may_take_long``, which ends the request as long as it has changed nothing. What only waits
for a disk does not wait at all: it becomes a ``Debt``, and the engine sends the answer once that is paid. On all other
threads these functions do nothing.
"""

import threading
from collections.abc import Callable

from msgspec import Struct


class TakesLong(Exception):
    """The request has changed nothing, and is to be begun anew on a thread of its own."""


class Debt(Struct):
    """What must be done before a request is answered. ``pay`` returns when it is, and may raise ``Unavailable``;
    ``release`` is called once afterwards, however that ended."""

    pay: Callable[[], object]
    release: Callable[[], object] | None = None


class _Request(threading.local):
    """The request that this thread serves promptly, if it does."""

    on = False
    changed = False
    debt: Debt | None = None


_request = _Request()


def begin() -> None:
    """This thread serves a request promptly until ``end``."""
    _request.on, _request.changed, _request.debt = True, False, None


def end() -> Debt | None:
    """It has been served, but for what is returned."""
    debt = _request.debt
    _request.on, _request.debt = False, None
    return debt


def may_take_long() -> None:
    """What follows may take long. Raises ``TakesLong`` where others would be held and nothing was changed."""
    if _request.on and not _request.changed:
        raise TakesLong


def changed() -> None:
    """The request has changed something: it cannot be begun anew."""
    if _request.on:
        _request.changed = True


def owe(pay: Callable[[], object]) -> bool:
    """Have this done before the answer, on another thread; False where the caller may as well do it itself.

    Of several the last is done, which must do for all: see ``Store.wait_durable``.
    """
    if not _request.on:
        return False
    if _request.debt is None:
        _request.debt = Debt(pay)
    else:
        _request.debt.pay = pay
    return True


def release_when_paid(release: Callable[[], object]) -> bool:
    """Call ``release`` when what this request owes is paid; False if it owes nothing for which nobody waits yet."""
    debt = _request.debt
    if debt is None or debt.release is not None:
        return False
    debt.release = release
    return True
