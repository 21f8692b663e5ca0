# SPDX-License-Identifier: Apache-2.0
"""Self-test of the history checker: the engine on a store in memory passes, and each mutant of it is found.

Each run has a second or two of threads on the storage verbs, with ttls of fractions of a second. A race may not occur
in such a short run; such a fault gets a few runs, and must be found in one.
"""

import pytest

from tests.campaign.histories import mutants
from tests.campaign.histories.checker import FINISHER, check_history
from tests.campaign.histories.history import FAILED, OK, UNKNOWN, Call, New, Seen
from tests.campaign.histories.load import BRISK, BRISK_SPEED, Shift, finish, labour, prepare
from tests.campaign.histories.mutants import EngineInMemory, Mutant
from tests.campaign.histories.targets import StorageTarget
from tests.campaign.histories.violations import Violation
from tests.rotation import rotated
from zq.model import QueueRef

SECONDS = 1.2
RUNS = 3
QUEUE = QueueRef("acme", "work")

FAULTS = {
    # the planted fault: words of the violation that must report it
    mutants.NonAtomicClaim: "was held by two claims at once",
    mutants.NonAtomicPop: "was popped twice",
    mutants.CounterRace: "was missed by a reader by marker",
    mutants.SharedCounter: "was missed by a reader by marker",
    mutants.DeafDelete: "came back after it was removed",
    mutants.Undead: "came back after it had expired",
    mutants.Impatient: "before its time",
    mutants.TornPost: "is missing from a post that was stored",
    mutants.RefusedPost: "is there although its post failed",
    mutants.LostPost: "is lost",
    mutants.LostRelease: "cannot be claimed",
    mutants.LateRelease: "was held by two claims at once",
    mutants.LateDelete: "was deleted under another's claim",
    mutants.LateRenewal: "was renewed after it had ended",
    mutants.LateHandle: "was deleted under another's claim",
    mutants.DeafHandle: "came back after it was removed",
    mutants.Backwards: "which was posted later",
    mutants.PieceByPiece: "stands amid the post of",
    mutants.LastInFirstOut: "which is behind it",
    mutants.LeakyTenants: "was shown in",
    mutants.CarelessId: "is lost",
    mutants.DoubleCount: "claims; there were",
}


def violations_of(mutant: Mutant | None) -> list[Violation]:
    """Return the violations in a short history of the engine, or of a mutant of it."""
    with StorageTarget(EngineInMemory(mutant), BRISK_SPEED) as target:
        prepare(target)
        calls = labour(target, BRISK, Shift(SECONDS))
        calls += finish(target, BRISK)
    return check_history(calls)


def test_the_engine_passes() -> None:
    """Otherwise the other tests would prove nothing."""
    found = violations_of(None)
    assert not found, "\n".join(map(str, found))


@pytest.mark.parametrize("fault", rotated(list(FAULTS), 2), ids=lambda fault: fault.__name__)
def test_a_mutant_is_found(fault: Mutant) -> None:
    """The violation describes the planted fault."""
    found: list[str] = []
    for _ in range(RUNS):
        found = [violation.sentence for violation in violations_of(fault)]
        if any(FAULTS[fault] in sentence for sentence in found):
            return
    pytest.fail(f"not found: {fault.__doc__} Instead: {found[:5]}")


def call(
    verb: str, start: float, end: float, names: str = "", outcome: str = OK, worker: str = "someone", **more: object
) -> Call:
    """Return a call on messages named by letters: a post adds them, and a claim, pop or page returns them."""
    full = [f"acme/work/p/{letter}" for letter in names]
    if verb == "delete":
        more["name"] = full[0]
    made = Call(verb, QUEUE, worker, start, end, outcome, **more)
    made.posted = tuple(New(name, 100) for name in full) if verb == "post" else ()
    made.seen = tuple(Seen(name, name) for name in full) if verb in ("claim", "pop", "page") else ()
    return made


def listing(start: float, end: float, names: str, reader: str = "r", worker: str = "someone") -> Call:
    """Return a page that is not full."""
    return call("page", start, end, names, limit=20, reader=reader, worker=worker)


def drained(*moments: tuple[int, str, str]) -> list[Call]:
    """Return the finisher's calls: at each time it lists the first letters, and then claims the second letters."""
    calls = []
    for at, listed, taken in moments:
        calls.append(listing(at, at + 0.1, listed, f"listing at {at}", FINISHER))
        calls.append(call("claim", at + 0.2, at + 0.3, taken, worker=FINISHER, claim=f"f{at}", ttl=60, limit=20))
    return calls


POST = call("post", 0, 1, "ab")
FIRST = call("claim", 2, 3, "a", claim="1", ttl=10)

POSSIBLE = {
    "a claim as soon as the former may have lapsed": [FIRST, call("claim", 11, 12.5, "a", claim="2", ttl=10)],
    "a claim while the former is being released": [
        FIRST,
        call("release", 4, 6, claim="1"),
        call("claim", 4, 5, "a", claim="2", ttl=10),
    ],
    "a claim after a release without answer": [
        FIRST,
        call("release", 4, 5, outcome=UNKNOWN, claim="1"),
        call("claim", 6, 7, "a", claim="2", ttl=10),
    ],
    "a renewal of many that began to lapse": [
        call("claim", 2, 3, "ab", claim="1", ttl=10),
        call("renew", 11, 13, claim="1", ttl=10),
        call("claim", 12, 13, "a", claim="2", ttl=10),
    ],
    "a page and a delete side by side": [call("delete", 2, 4, "a"), listing(3, 5, "ab")],
    "a delete without answer that did nothing": [call("delete", 2, 3, "a", UNKNOWN), listing(4, 5, "ab")],
    "a delete without answer that worked": [call("delete", 2, 3, "a", UNKNOWN), listing(4, 5, "b")],
    "a pop without answer that took one": [call("pop", 2, 3, outcome=UNKNOWN, limit=1), listing(4, 5, "b")],
    "a post without answer that was not stored": [call("post", 2, 3, "cd", UNKNOWN), listing(4, 5, "ab")],
    "a pop without answer that took one after the listing": [
        call("pop", 2, 3, outcome=UNKNOWN, limit=1),
        *drained((4, "ab", "b"), (5, "b", "")),
    ],
    "a claim without answer that took one after the last listing": [
        call("claim", 2, 3, outcome=UNKNOWN, limit=1),
        *drained((4, "ab", "b")),
    ],
    "a late holder whose message is gone": [
        FIRST,
        call("pop", 14, 15, "a"),
        call("delete", 16, 17, "a", claim="1"),
    ],
    "a page of what a claim has lengthened the life of, and given back": [
        call("claim", 50, 51, "a", claim="1", ttl=60, grace=60),
        call("release", 52, 53, claim="1"),
        listing(150, 151, "a"),
    ],
    "a claim that began before the end of what a delete met as expired": [
        call("claim", 98, 104, "a", claim="1", ttl=10),
        call("delete", 102, 103, "a"),
        listing(105, 106, "a"),
    ],
}
IMPOSSIBLE = {
    "was held by two claims at once": [FIRST, call("claim", 10, 11, "a", claim="2", ttl=10)],
    "was popped while it was claimed": [FIRST, call("pop", 4, 5, "a")],
    "The holder of acme/work/p/a was refused": [FIRST, call("delete", 4, 5, "a", FAILED, claim="1")],
    "was deleted under a claim that had ended": [FIRST, call("delete", 14, 15, "a", claim="1")],
    "came back after it was removed": [call("delete", 2, 3, "a"), listing(4, 5, "ab")],
    "came back after it had expired": [listing(102, 103, "ab")],
    "is lost": [call("pop", 2, 3, outcome=UNKNOWN, limit=1), listing(4, 5, "")],
    "is missing from a post that was stored": [
        call("post", 2, 3, "cd", UNKNOWN),
        listing(4, 5, "abd"),
        listing(6, 7, ""),
    ],
    "was shown twice to one reader": [listing(2, 3, "ab"), listing(4, 5, "b")],
    "was missed by a reader by marker": [listing(2, 3, "b"), listing(4, 5, "ab", reader="another")],
    "which was posted later": [listing(2, 3, "ba")],
    "was never posted": [listing(2, 3, "abx")],
    "a is listed and nobody holds it, but it cannot be claimed": [
        call("pop", 2, 3, outcome=UNKNOWN, limit=1),
        call("claim", 2, 3, outcome=UNKNOWN, limit=1),
        *drained((14, "ab", "b"), (15, "ab", "")),
    ],
    "b is listed and nobody holds it, but it cannot be claimed": [
        call("pop", 2, 3, outcome=UNKNOWN, limit=1),
        *drained((4, "ab", ""), (14, "ab", "")),
    ],
}


@pytest.mark.parametrize("what", POSSIBLE)
def test_a_possible_history_has_no_violation(what: str) -> None:
    """The checker accepts histories that are only just possible."""
    assert [str(violation) for violation in check_history([POST, *POSSIBLE[what]])] == []


@pytest.mark.parametrize("sentence", IMPOSSIBLE)
def test_an_impossible_history_is_reported(sentence: str) -> None:
    """Each history is the smallest that proves the violation."""
    assert sentence in "\n".join(violation.sentence for violation in check_history([POST, *IMPOSSIBLE[sentence]]))
