# SPDX-License-Identifier: Apache-2.0
"""The checks of ``zq doctor`` and ``zq-server doctor``: their findings, their order and their output."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal

from msgspec import Struct

from zq.errors import StartRefused, ZqError
from zq.logs import without_secrets

Status = Literal["ok", "warn", "fail", "skip"]
# Exit codes by status.
EXIT_CODES: Final[dict[Status, int]] = {"ok": 0, "skip": 0, "warn": 1, "fail": 2}

# Seconds between two clocks from which a doctor warns, and from which ``/readyz`` fails.
NEAR: Final = 2.0
MAX_OFFSET: Final = 60.0
# Number of measured round trips, and their duration in seconds from which a doctor warns.
ROUND_TRIPS: Final = 20
MAX_ROUND_TRIP: Final = 0.05


class Finding(Struct, frozen=True):
    """The outcome of a check.

    Attributes:
        found: A sentence about the checked thing; for "skip", the reason why it was not checked.
        advice: A sentence about the solution; "" if there is no problem.
    """

    status: Status
    found: str
    advice: str = ""


def ok(found: str) -> Finding:
    return Finding("ok", found)


def warn(found: str, advice: str) -> Finding:
    return Finding("warn", found, advice)


def fail(found: str, advice: str = "") -> Finding:
    return Finding("fail", found, advice)


def skip(reason: str) -> Finding:
    return Finding("skip", reason)


def judge_clock(offset: float, name: str) -> Finding:
    """Judge the seconds by which this machine's clock is ahead of the clock that ``name`` names, such as "Redis"."""
    distance = abs(offset)
    found = f"The clocks of this machine and of {name} are {distance:.1f} seconds apart."
    advice = "Synchronise both clocks with a time service that slews, such as chrony."
    return fail(found, advice) if distance > MAX_OFFSET else warn(found, advice) if distance > NEAR else ok(found)


def judge_round_trip(call: Callable[[], object], name: str) -> Finding:
    """Judge the longest of some round trips to the store that ``name`` names."""
    longest = max(measure(call, ROUND_TRIPS))
    found = f"The longest of {ROUND_TRIPS} round trips to {name} took {1000 * longest:.1f} ms."
    if longest > MAX_ROUND_TRIP:
        return warn(found, "Run the server closer to its store, or give the store more resources.")
    return ok(found)


def measure(call: Callable[[], object], count: int) -> list[float]:
    """Call a function ``count`` times. Return the durations in seconds, sorted."""
    durations = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        durations.append(time.perf_counter() - began)
    return sorted(durations)


class Check(Struct, frozen=True):
    """A check of a doctor.

    Attributes:
        needs: Name of an earlier check. If its status is "fail" or "skip", this check is skipped.
    """

    name: str
    run: Callable[[], Finding]
    needs: str = ""


class Result(Struct, frozen=True):
    """The finding of a check, for output. The fields are those of ``Finding``."""

    check: str
    status: Status
    found: str
    advice: str

    @property
    def line(self) -> str:
        """The result as a line of text."""
        return f"{self.status:5} {self.check}: {self.found} {self.advice}".rstrip()


def run(checks: Iterable[Check]) -> Iterator[Result]:
    """Run the checks in order and yield their results without secrets.

    A check that raises ``StartRefused`` has failed. A check that raises any other error is skipped.
    """
    statuses: dict[str, Status] = {}
    for check in checks:
        missing = check.needs and statuses.get(check.needs) in ("fail", "skip")
        finding = skip(f"The check {check.needs} must pass first.") if missing else _run(check)
        statuses[check.name] = finding.status
        yield Result(check.name, finding.status, without_secrets(finding.found), without_secrets(finding.advice))


def _run(check: Check) -> Finding:
    try:
        return check.run()
    except StartRefused as refusal:
        return fail(str(refusal))
    except ZqError as error:
        return skip(str(error))
    except OSError as error:
        return skip(f"{error.filename or 'The system'}: {error.strerror or error}.")
    except Exception as error:  # noqa: BLE001 (one broken check must not hide the findings of the others)
        return skip(f"The check failed with {type(error).__name__}: {error}")


def exit_code(results: Iterable[Result]) -> int:
    """Return the exit code for the worst status."""
    return max((EXIT_CODES[result.status] for result in results), default=0)
