# SPDX-License-Identifier: Apache-2.0
"""The checks of ``zq doctor`` and ``zq-server doctor``: their findings, their order and their output."""

import time
from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import Final, Literal

from msgspec import Struct

from zq.errors import NotAuthorized, NotBuilt, NotFound, StartRefused, Unavailable
from zq.logs import without_secrets

Status = Literal["ok", "warn", "fail", "skip"]
# Exit codes by status.
EXIT_CODES: Final[dict[Status, int]] = {"ok": 0, "skip": 0, "warn": 1, "fail": 2}

# Seconds between two clocks above which a doctor warns, and above which ``/readyz`` fails.
MAX_SYNCHRONISED_OFFSET: Final = 2.0
MAX_READY_OFFSET: Final = 60.0
DAY: Final = 86_400
# Days before its expiry at which a certificate must be renewed.
CERTIFICATE_DAYS: Final = 14
# Number of measured round trips, and their duration in seconds from which a doctor warns.
ROUND_TRIPS: Final = 20
MAX_ROUND_TRIP: Final = 0.05

# Advice for a check that raises an error.
CORRECT_REFUSAL: Final = "Correct this: until then, the server does not start."
SEE_LOGS: Final = "See the logs of the server and of its store."
CORRECT_CAUSE: Final = "Correct the cause, or run the command as the user of the server, and repeat the check."


class Finding(Struct, frozen=True):
    """The outcome of a check. If the check found a problem (``warn`` or ``fail``), ``advice`` explains what to do."""

    status: Status
    found: str
    advice: str = ""

    def __post_init__(self) -> None:
        if bool(self.advice) != (self.status in ("warn", "fail")):
            raise ValueError("A finding has advice if and only if its status is warn or fail.")


def ok(found: str) -> Finding:
    return Finding("ok", found)


def warn(found: str, advice: str) -> Finding:
    return Finding("warn", found, advice)


def fail(found: str, advice: str) -> Finding:
    return Finding("fail", found, advice)


def skip(reason: str) -> Finding:
    return Finding("skip", reason)


def judge_clock(offset: float, name: str) -> Finding:
    """Return a finding about the difference between this machine's clock and another clock.

    ``offset`` is the difference in seconds. ``name`` is the product with the other clock, such as "Redis".
    """
    distance = abs(offset)
    found = f"The clocks of this machine and of {name} are {distance:.1f} seconds apart."
    advice = "Synchronise both clocks with a time service that slews, such as chrony."
    if distance > MAX_READY_OFFSET:
        return fail(found, advice)
    return warn(found, advice) if distance > MAX_SYNCHRONISED_OFFSET else ok(found)


def judge_certificate(left: float, name: str, advice: str) -> Finding:
    """Return a finding about the expiry of a certificate.

    ``left`` is the time until the expiry in seconds. ``advice`` explains how to renew the certificate.
    """
    if left <= 0:
        return fail(f"{name} has expired.", advice)
    found = f"{name} expires in {left / DAY:.0f} days."
    return warn(found, advice) if left < CERTIFICATE_DAYS * DAY else ok(found)


def judge_round_trip(call: Callable[[], object], name: str) -> Finding:
    """Measure ``ROUND_TRIPS`` round trips to a store, and return a finding about the longest one.

    ``name`` is the store's product name.
    """
    longest = max(measure(call, ROUND_TRIPS))
    found = f"The longest of {ROUND_TRIPS} round trips to {name} took {1000 * longest:.1f} ms."
    if longest > MAX_ROUND_TRIP:
        return warn(found, "Run the server closer to its store, or give the store more resources.")
    return ok(found)


def measure(call: Callable[[], object], count: int, limit: float = inf) -> list[float]:
    """Call a function ``count`` times, or until ``limit`` seconds have passed. Return the durations, sorted."""
    durations: list[float] = []
    while len(durations) < count and sum(durations) < limit:
        began = time.perf_counter()
        call()
        durations.append(time.perf_counter() - began)
    return sorted(durations)


class Check(Struct, frozen=True):
    """A check of the command ``doctor``. ``needs`` is the name of another check, or "".

    If the needed check has failed or was skipped, this check is skipped.
    """

    name: str
    run: Callable[[], Finding]
    needs: str = ""


class Result(Finding, frozen=True, kw_only=True):
    """The finding of a check together with the check's name, for output."""

    check: str

    @property
    def line(self) -> str:
        """The result as a line of text."""
        return f"{self.status:5} {self.check}: {self.found} {self.advice}".rstrip()


def run(checks: Iterable[Check], unknown: Status = "warn") -> Iterator[Result]:
    """Run the checks in order and yield their results. Secrets are removed from the texts.

    A check has failed if it raises ``StartRefused`` or ``Unavailable``. It is skipped if it raises ``NotAuthorized``,
    ``NotFound`` or ``NotBuilt``. If a check raises any other error, its result has the status ``unknown``.
    """
    statuses: dict[str, Status] = {}
    for check in checks:
        missing = check.needs and statuses.get(check.needs) in ("fail", "skip")
        finding = (
            skip(f"Not checked, because the check {check.needs} did not succeed.") if missing else _run(check, unknown)
        )
        statuses[check.name] = finding.status
        found, advice = without_secrets(finding.found), without_secrets(finding.advice)
        yield Result(finding.status, found, advice, check=check.name)


def _run(check: Check, unknown: Status) -> Finding:
    try:
        return check.run()
    except (StartRefused, Unavailable) as error:
        return fail(str(error), CORRECT_REFUSAL if isinstance(error, StartRefused) else SEE_LOGS)
    except (NotAuthorized, NotFound, NotBuilt) as error:
        return skip(str(error))
    except OSError as error:
        reason = f"{error.filename or 'The system'}: {error.strerror or error}."
    except Exception as error:  # noqa: BLE001 (one broken check must not hide the findings of the others)
        reason = f"{type(error).__name__}: {error}"
    return Finding(unknown, f"The check could not be completed: {reason}", CORRECT_CAUSE)


def exit_code(results: Iterable[Result]) -> int:
    """Return the exit code for the worst status."""
    return max((EXIT_CODES[result.status] for result in results), default=0)
