# SPDX-License-Identifier: Apache-2.0
"""The history checker, with one function for each rule and its law (``laws.md``).

A rule reports a violation only if ``violations`` excludes every valid explanation: a violation is proof, but no
violation is not.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf

from tests.campaign.histories.history import FAILED, OK, Call, Seen, home
from tests.campaign.histories.violations import TOLERANCE, History, Violation
from zq.model import QueueRef

# The worker that lists and drains every queue when all others have stopped.
FINISHER = "finisher"


def check_history(calls: Sequence[Call]) -> list[Violation]:
    """Return all violations of the laws in the history."""
    history = History(calls)
    strange = list(strangers(history))
    if strange:
        return strange  # no other rule can judge messages that were never posted
    rules = (holders, late_holders, ghosts, too_early, half_posts, gaps, order, stuck, quiet_order, counts)
    return [violation for rule in rules for violation in rule(history)]


def strangers(history: History) -> Iterator[Violation]:
    """Yield responses with messages that were not posted or belong to another project or queue (L7, L8)."""
    for name, calls in history.sightings.items():
        if name not in history.posts:
            yield Violation("L7", f"{name} was never posted.", (calls[0],))
        for call in calls:
            if home(name) != call.queue:
                yield Violation("L8", f"{name} was shown in {'/'.join(call.queue)}.", (call,))


def holders(history: History) -> Iterator[Violation]:
    """Yield messages that two consumers had at the same time (L2, L3)."""
    for holding in history.by_claim.values():
        yield from holding.wrong
    for name, holdings in history.holdings.items():
        for at, one in enumerate(holdings):
            for other in holdings[at + 1 :]:
                if other.call.end < one.surely_until(name) and one.call.end < other.surely_until(name):
                    yield Violation("L2", f"{name} was held by two claims at once.", (one.call, other.call))
            for call in history.removals.get(name, ()):
                if call.verb == "pop" and one.call.start <= call.end < one.surely_until(name):
                    yield Violation("L2", f"{name} was popped while it was claimed.", (one.call, call))
    for name, calls in history.removals.items():
        pops = [call for call in calls if call.verb == "pop"]
        if len(pops) > 1:
            yield Violation("L3", f"{name} was popped twice.", tuple(pops))


def late_holders(history: History) -> Iterator[Violation]:
    """Yield deletions of a message under the claim of another consumer or an expired claim (L2)."""
    for name, calls in history.removals.items():
        for call in calls:
            if call.verb != "delete" or call.outcome != OK:
                continue
            for holding in history.holdings.get(name, ()):
                foreign = holding.call.claim != call.claim
                if foreign and holding.call.end < call.start and call.end < holding.surely_until(name):
                    yield Violation("L2", f"{name} was deleted under another's claim.", (holding.call, call))
            own = history.by_claim.get(call.claim)
            if own and call.start > own.at_latest and was_there(history, name, call):
                yield Violation("L2", f"{name} was deleted under a claim that had ended.", (own.call, call))


def was_there(history: History, name: str, delete: Call) -> bool:
    """Return whether only this deletion can have removed the message."""
    others = [call for call in history.removals[name] if call is not delete]
    others += history.unsure.get(("pop", delete.queue), ())
    return delete.end < history.expires_at_earliest(name) and all(call.start > delete.end for call in others)


def ghosts(history: History) -> Iterator[Violation]:
    """Yield responses with messages that were removed or expired before the request (L3).

    Deleting an expired message removes nothing, and a claim that began earlier may still be in flight and revive the
    message.
    """
    for name, calls in history.sightings.items():
        removals = [call for call in history.removals.get(name, ()) if call.outcome == OK]
        sure = [call for call in removals if call.verb == "pop" or history.surely_lived(name, call)]
        gone = min(sure, key=lambda call: call.end, default=None)
        expired = history.expires_at_latest(name)
        last = calls[-1]
        if gone and last.start > gone.end:
            yield Violation("L3", f"{name} came back after it was removed.", (gone, last))
        if last.start > expired:
            yield Violation("L3", f"{name} came back after it had expired.", (history.posts[name], last))


def too_early(history: History) -> Iterator[Violation]:
    """Yield delayed messages that were claimed, popped or listed as ready too early (L4)."""
    for name, calls in history.sightings.items():
        due = history.posts[name].start + history.terms[name].delay - TOLERANCE
        for call in calls:
            if call.end < due and not call.reader:
                verb = {"claim": "claimed", "pop": "popped", "page": "listed as free"}[call.verb]
                sentence = f"{name} was {verb} {due - call.end:.3f} s before its time."
                yield Violation("L4", sentence, (history.posts[name], call))


def half_posts(history: History) -> Iterator[Violation]:
    """Yield messages of failed posts (L7). A partly stored post appears as a gap."""
    for name, calls in history.sightings.items():
        if history.posts[name].outcome == FAILED:
            yield Violation("L7", f"{name} is there although its post failed.", (history.posts[name], calls[0]))


def gaps(history: History) -> Iterator[Violation]:
    """Yield messages that a complete walk by markers did not show exactly once (L1, L6, L7).

    A message that no later response shows is lost, or was in the lost response of a pop.
    """
    names = defaultdict(list)
    for name in history.posts:
        names[home(name)].append(name)
    missed: dict[str, Violation] = {}
    lost: dict[QueueRef, dict[str, Violation]] = defaultdict(dict)
    for walk in history.walks.values():
        shown: dict[str, Call] = {}
        for page in walk:
            for message in page.seen:
                if message.name in shown:
                    calls = (shown[message.name], page)
                    yield Violation("L6", f"{message.name} was shown twice to one reader by marker.", calls)
                shown[message.name] = page
        for name, end in passed_over(history, names[walk[0].queue], walk, shown):
            post = history.posts[name]
            later = next((call for call in history.sightings.get(name, ()) if call.start > end.start), None)
            if later:
                missed[name] = Violation("L6", f"{name} was missed by a reader by marker.", (post, end, later))
            else:
                law, fate = ("L1", "lost") if post.outcome == OK else ("L7", "missing from a post that was stored")
                lost[post.queue].setdefault(name, Violation(law, f"{name} is {fate}.", (post, end)))
    yield from missed.values()
    for queue, violations in lost.items():
        if len(violations) > sum(call.limit for call in history.unsure.get(("pop", queue), ())):
            yield from violations.values()


def passed_over(
    history: History, names: Sequence[str], walk: Sequence[Call], shown: dict[str, Call]
) -> Iterator[tuple[str, Call]]:
    """Yield the messages that a walk should have shown, each with the page that should have shown it.

    A page that is not full is the end of the queue. It or an earlier page must have each message that was stored before
    the request and cannot have been removed before the response.
    """
    ends = [page for page in walk if len(page.seen) < page.limit]
    starts = [page.start for page in ends]
    for name in names:
        at = bisect_left(starts, history.stored_by(name))
        if at == len(ends) or ends[at].end >= history.gone_at_earliest(name):
            continue
        if name not in shown or shown[name].start > ends[at].start:
            yield name, ends[at]


def order(history: History) -> Iterator[Violation]:
    """Yield messages that a walk shows out of their producer's order (L5), or posts interrupted by others (L7)."""
    numbers: dict[str, tuple[str, int, int]] = {}
    counted: dict[tuple[str, QueueRef], int] = defaultdict(int)
    for call in history.calls:
        if call.verb == "post":
            counted[call.worker, call.queue] += 1
            for at, new in enumerate(call.posted):
                numbers[new.name] = (call.worker, counted[call.worker, call.queue], at)
    for walk in history.walks.values():
        last: dict[str, str] = {}
        before = ""
        for name in (message.name for page in walk for message in page.seen):
            producer, number, place = numbers[name]
            former = last.get(producer)
            if former and numbers[former][1:] >= (number, place):
                if numbers[former][1] == number or history.posts[name].outcome == OK:
                    calls = (history.posts[name], history.posts[former], walk[0])
                    yield Violation("L5", f"{name} stands behind {former}, which was posted later.", calls)
            elif former and numbers[former][1] == number and former != before:
                calls = (history.posts[name], history.posts[before], walk[0])
                yield Violation("L7", f"{before} stands amid the post of {name}.", calls)
            last[producer] = before = name


def stuck(history: History) -> Iterator[Violation]:
    """Yield listed messages that cannot be claimed although all claims have ended (L1).

    A call with a lost response may explain them: a pop after the listing, or a claim after the last listing; the
    finisher would have released earlier claims.
    """
    drains = [call for call in history.calls if call.worker == FINISHER and call.verb == "claim"]
    ends: dict[QueueRef, float] = {call.queue: call.end for call in drains}
    drained = {message.name for call in drains for message in call.seen}
    pages = [page for walk in history.walks.values() for page in walk if page.worker == FINISHER]
    last = {page.queue: page for page in pages}
    found: dict[QueueRef, dict[str, Violation]] = defaultdict(dict)
    for page in pages:
        for name in [message.name for message in page.seen if message.name not in drained]:
            if ends.get(page.queue, inf) < history.gone_at_earliest(name):
                sentence = f"{name} is listed and nobody holds it, but it cannot be claimed."
                found[page.queue].setdefault(name, Violation("L1", sentence, (page,)))
    for queue, violations in found.items():
        first = min(violation.calls[0].start for violation in violations.values())
        late = history.late("pop", queue, first) + history.late("claim", queue, last[queue].start)
        if len(violations) > late:
            yield from violations.values()


def quiet_order(history: History) -> Iterator[Violation]:
    """Yield messages that a single consumer of a quiet queue claimed out of order (L5).

    The rule covers messages that keep their position: posted without delay, and never claimed or always released before
    the claim expired.
    """
    ranks: dict[str, int] = {}
    for walk in history.walks.values():
        if walk[0].worker == FINISHER:
            names = [message.name for page in walk for message in page.seen]
            ranks = {name: at for at, name in enumerate(names)} | ranks  # the first listing counts
    behind: dict[QueueRef, tuple[Call, Seen]] = {}
    for call in history.calls:
        if call.worker != FINISHER or call.verb != "claim" or history.unsure.get(("claim", call.queue)):
            continue
        for message in call.seen:
            earlier = [holding for holding in history.holdings[message.name] if holding.call is not call]
            moved = history.terms[message.name].delay or not all(holding.gave_back for holding in earlier)
            if moved or message.name not in ranks:
                continue
            former = behind.get(call.queue)
            if former and ranks[former[1].name] > ranks[message.name]:
                sentence = f"{message.name} was claimed after {former[1].name}, which is behind it."
                yield Violation("L5", sentence, (former[0], call))
            behind[call.queue] = (call, message)


def counts(history: History) -> Iterator[Violation]:
    """Yield wrong claim counts, if the target reports them (extensions 1, "States")."""
    for name, holdings in history.holdings.items():
        told = [(holding.call, count_of(name, holding.call)) for holding in holdings]
        possible = len(told) + len(history.unsure.get(("claim", home(name)), ()))
        for call, count in told:
            if count > possible:
                yield Violation("counts", f"{name} counts {count} claims; there were {possible}.", (call,))
        for (one, before), (other, after) in pairwise(told):
            if one.end < other.start and -1 < after <= before:
                yield Violation("counts", f"{name} counts {after} claims after {before}.", (one, other))


def count_of(name: str, call: Call) -> int:
    return next(message.count for message in call.seen if message.name == name)
