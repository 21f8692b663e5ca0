# SPDX-License-Identifier: Apache-2.0
"""What a credential is for: scopes as ``produce+consume:queue/jobs.**`` (tenancy 2).

A scope names verbs, a kind of names, and a glob of names as ``match`` of a stream has it. A credential without scopes
is for the whole project, which ``None`` stands for; one with scopes is for what any of them allows.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from functools import cache, lru_cache
from typing import Final

from zq.errors import Invalid
from zq.model.topics import Pattern

# Scopes of one credential.
MOST_SCOPES: Final = 20
# Bytes of all of them together.
MOST_BYTES: Final = 2000
# Pairs of states that a comparison of two globs visits; where these do not suffice, it cannot be decided.
MOST_STATES: Final = 300
# Names that one credential's scopes remember.
MOST_REMEMBERED: Final = 1000
# A letter that stands for all that no glob names.
OTHER: Final = "\0"
RULE: Final = (
    "A scope must be verbs, a colon and a glob of names, as produce+consume:queue/jobs.**; the verbs are produce, "
    "consume, observe and manage, or *, and before the glob may stand queue/, topic/ or work/"
)


class Verb(StrEnum):
    """What a scope allows: each route and each target of a request falls under one of them."""

    PRODUCE = "produce"
    CONSUME = "consume"
    OBSERVE = "observe"
    MANAGE = "manage"

    # As of any text: that of an enumeration is a call, and each request looks its verb up.
    __hash__ = str.__hash__


class Kind(StrEnum):
    """What names are of: ``work`` are stages, fences, producers and their commits."""

    QUEUE = "queue"
    TOPIC = "topic"
    WORK = "work"

    __hash__ = str.__hash__


# A glob of the names of queues and topics, as long as the longest name of a queue.
GLOB: Final = re.compile(r"[A-Za-z0-9_.*-]{1,80}", re.ASCII)
_FORM: Final = re.compile(rf"(\*|[a-z+]+):(?:({'|'.join(Kind)})/)?([^/:]+)", re.ASCII)


class Scope:
    """One scope. Raises ``Invalid``."""

    def __init__(self, text: str) -> None:
        form = _FORM.fullmatch(text)
        if form is None or GLOB.fullmatch(form[3]) is None or "***" in form[3]:
            raise Invalid(f"{RULE}; it is {text[:80]!r}.")
        named = form[1].split("+")
        if form[1] != "*" and (not set(named) <= set(Verb) or len(set(named)) < len(named)):
            raise Invalid(f"{RULE}; it is {text[:80]!r}.")
        self.text = text
        self.verbs = frozenset(Verb if form[1] == "*" else map(Verb, named))
        self.kinds = frozenset([Kind(form[2])] if form[2] else [Kind.QUEUE, Kind.TOPIC])
        self.glob = Pattern(form[3])


class Scopes:
    """All scopes of one credential, at least one. Equal texts are one object: see ``parse``."""

    def __init__(self, texts: Sequence[str]) -> None:
        """Raises ``Invalid``."""
        if not 1 <= len(texts) <= MOST_SCOPES:
            raise Invalid(f"scopes must name 1 to {MOST_SCOPES} values; it names {len(texts)}.")
        if sum(len(text.encode()) for text in texts) > MOST_BYTES:
            raise Invalid(f"scopes must be at most {MOST_BYTES} bytes together.")
        self.texts = tuple(texts)
        self._scopes = [Scope(text) for text in texts]
        self._widest = sorted(self._scopes, key=lambda scope: len(scope.glob.text))
        """Those first that decide most, at the least cost."""
        self.allows: Callable[[Verb, Kind, str], bool] = lru_cache(maxsize=MOST_REMEMBERED)(self._allows)
        """Whether one of them allows the verb on this name; remembered, for each request asks."""

    def _allows(self, verb: Verb, kind: Kind, name: str) -> bool:
        return any(scope.glob.fits(name) for scope in self._of(verb, kind))

    def covers(self, verb: Verb, kind: Kind, glob: str) -> bool:
        """Whether one of them allows the verb on every name of the glob; no, where that cannot be decided."""
        inner = Pattern(glob)
        return any(covers(scope.glob, inner) for scope in self._of(verb, kind))

    def meets(self, verb: Verb, kind: Kind, glob: str) -> bool:
        """Whether one of them may allow the verb on a name of the glob; yes, where that cannot be decided."""
        other = Pattern(glob)
        return any(overlap(scope.glob, other) for scope in self._of(verb, kind))

    def include(self, others: "Scopes | None") -> bool:
        """Whether they allow all that ``others`` allow: a credential must not make one that exceeds it."""
        if others is None:
            return False
        known = cache(covers)  # the same globs for each verb and kind
        return all(
            any(known(own.glob, scope.glob) for own in self._of(verb, kind))
            for scope in others._scopes
            for verb in scope.verbs
            for kind in scope.kinds
        )

    def everywhere(self, verb: Verb) -> bool:
        """Whether they allow the verb on everything of the project."""
        return all(self.covers(verb, kind, "**") for kind in Kind)

    def _of(self, verb: Verb, kind: Kind) -> Iterable[Scope]:
        return (scope for scope in self._widest if verb in scope.verbs and kind in scope.kinds)


@lru_cache(maxsize=1024)
def _parsed(texts: tuple[str, ...]) -> Scopes:
    return Scopes(texts)


def parse(texts: Sequence[str] | None) -> Scopes | None:
    """What a credential's record or claim names as its scopes; None for one without. Raises ``Invalid``."""
    return None if texts is None or not texts else _parsed(tuple(texts))


def exceed(asked: Scopes | None, own: Scopes | None) -> bool:
    """Whether ``asked`` allow anything that ``own`` do not, or may do so. None: the whole project."""
    return own is not None and not own.include(asked)


def covers(outer: Pattern, inner: Pattern) -> bool:
    """Whether every name that ``inner`` matches is one that ``outer`` matches; no, where that cannot be decided."""
    return outer.text in ("**", inner.text) or _reaches(outer, inner, lambda out, into: into and not out) is False


def overlap(one: Pattern, other: Pattern) -> bool:
    """Whether a name matches both; yes, where that cannot be decided."""
    return _reaches(one, other, lambda first, second: first and second) is not False


def _reaches(one: Pattern, other: Pattern, wanted: Callable[[bool, bool], bool]) -> bool | None:
    """Whether there is a text of which ``wanted`` holds, told who matches it; None if that cannot be decided.

    Follows all ways through both globs at once: letters that neither names are alike, so that few are tried.
    """
    letters = (set(one.text) | set(other.text) | {".", OTHER}) - {"*"}
    begin = (one.begin, other.begin)
    seen, waiting = {begin}, [begin]
    while waiting:
        first, second = waiting.pop()
        if wanted(one.ends(first), other.ends(second)):
            return True
        for letter in letters:
            pair = (one.step(first, letter), other.step(second, letter))
            if pair not in seen and pair[1]:  # what the second cannot match is wanted by nobody
                seen.add(pair)
                waiting.append(pair)
        if len(seen) > MOST_STATES:
            return None
    return False
