# SPDX-License-Identifier: Apache-2.0
"""Scopes of credentials, such as ``produce+consume:queue/jobs.**`` (tenancy contract, section 2).

A scope consists of verbs, an optional kind of object, and a glob of names. A credential permits everything that any of
its scopes permits. A credential without scopes (``None``) is valid for the whole project.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from functools import cache, lru_cache
from typing import Final

from zq.errors import Invalid
from zq.model.topics import Pattern

# Maximum number of scopes of a credential.
MAX_SCOPES: Final = 20
# Maximum total size in bytes of a credential's scopes.
MAX_BYTES: Final = 2000
# Maximum number of state pairs visited in a comparison of two globs. Beyond it, the comparison is undecided.
MAX_STATES: Final = 300
# Maximum number of cached decisions per credential.
MAX_CACHED: Final = 1000
# A letter that represents all letters that occur in neither glob.
OTHER: Final = "\0"
RULE: Final = (
    "A scope must have the form VERBS:PATTERN, such as produce+consume:queue/jobs.**. The verbs are produce, consume, "
    "observe and manage, or * for all. The pattern may begin with queue/, topic/ or work/."
)


class Verb(StrEnum):
    """An action that a scope permits."""

    PRODUCE = "produce"
    CONSUME = "consume"
    OBSERVE = "observe"
    MANAGE = "manage"

    # The hash of an enumeration member is a slow Python call, and every request looks up its verb.
    __hash__ = str.__hash__


class Kind(StrEnum):
    """A kind of named object. ``work`` covers stages, fences, producers and commits."""

    QUEUE = "queue"
    TOPIC = "topic"
    WORK = "work"

    __hash__ = str.__hash__


# A glob of queue or topic names, at most as long as the longest queue name.
GLOB: Final = re.compile(r"[A-Za-z0-9_.*-]{1,80}", re.ASCII)
_FORM: Final = re.compile(rf"(\*|[a-z+]+):(?:({'|'.join(Kind)})/)?([^/:]+)", re.ASCII)


class Scope:
    """One parsed scope. The constructor raises ``Invalid`` if the text is not a scope."""

    def __init__(self, text: str) -> None:
        form = _FORM.fullmatch(text)
        if form is None or GLOB.fullmatch(form[3]) is None or "***" in form[3]:
            raise Invalid(f"{text[:80]!r} is not a scope. {RULE}")
        named = form[1].split("+")
        if form[1] != "*" and (not set(named) <= set(Verb) or len(set(named)) < len(named)):
            raise Invalid(f"{text[:80]!r} is not a scope. {RULE}")
        self.text = text
        self.verbs = frozenset(Verb if form[1] == "*" else map(Verb, named))
        self.kinds = frozenset([Kind(form[2])] if form[2] else [Kind.QUEUE, Kind.TOPIC])
        self.glob = Pattern(form[3])


class Scopes:
    """The scopes of one credential, which has at least one scope.

    The constructor raises ``Invalid`` if a string is not a valid scope.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        if not 1 <= len(texts) <= MAX_SCOPES:
            raise Invalid(f"scopes must contain 1 to {MAX_SCOPES} scopes, not {len(texts)}.")
        if sum(len(text.encode()) for text in texts) > MAX_BYTES:
            raise Invalid(f"scopes must have at most {MAX_BYTES} bytes in total.")
        self.texts = tuple(texts)
        self._scopes = [Scope(text) for text in texts]
        self._widest = sorted(self._scopes, key=lambda scope: len(scope.glob.text))
        """The scopes in order of length, because short globs are cheap and match most names."""
        self.allows: Callable[[Verb, Kind, str], bool] = lru_cache(maxsize=MAX_CACHED)(self._allows)
        """Returns whether a scope permits the verb on this name. Cached, because every request calls it."""

    def _allows(self, verb: Verb, kind: Kind, name: str) -> bool:
        return any(scope.glob.fits(name) for scope in self._of(verb, kind))

    def covers(self, verb: Verb, kind: Kind, glob: str) -> bool:
        """Return whether a scope permits the verb on every name that matches ``glob``.

        If the globs are too complex to compare, return ``False``.
        """
        inner = Pattern(glob)
        return any(covers(scope.glob, inner) for scope in self._of(verb, kind))

    def overlaps(self, verb: Verb, kind: Kind, glob: str) -> bool:
        """Return whether a scope permits the verb on at least one name that matches ``glob``.

        If the globs are too complex to compare, return ``True``.
        """
        other = Pattern(glob)
        return any(overlap(scope.glob, other) for scope in self._of(verb, kind))

    def allow_all_of(self, others: "Scopes | None") -> bool:
        """Return whether these scopes permit everything that ``others`` permit."""
        if others is None:
            return False
        known = cache(covers)  # the globs repeat for each verb and kind
        return all(
            any(known(own.glob, scope.glob) for own in self._of(verb, kind))
            for scope in others._scopes
            for verb in scope.verbs
            for kind in scope.kinds
        )

    def allow_everywhere(self, verb: Verb) -> bool:
        """Return whether the scopes permit the verb on all objects of the project."""
        return all(self.covers(verb, kind, "**") for kind in Kind)

    def _of(self, verb: Verb, kind: Kind) -> Iterable[Scope]:
        return (scope for scope in self._widest if verb in scope.verbs and kind in scope.kinds)


@lru_cache(maxsize=1024)
def _parsed(texts: tuple[str, ...]) -> Scopes:
    return Scopes(texts)


def parse(texts: Sequence[str] | None) -> Scopes | None:
    """Parse the scopes of a credential. Return ``None`` if the credential has no scopes.

    Raises ``Invalid`` if a string is not a valid scope.
    """
    return None if texts is None or not texts else _parsed(tuple(texts))


def scopes_exceed(requested: Scopes | None, granted: Scopes | None) -> bool:
    """Return whether ``requested`` permits more than ``granted``; ``True`` if the globs are too complex to compare."""
    return granted is not None and not granted.allow_all_of(requested)


def covers(outer: Pattern, inner: Pattern) -> bool:
    """Return whether ``outer`` matches every name that ``inner`` matches.

    If the patterns are too complex to compare, return ``False``.
    """
    return outer.text in ("**", inner.text) or _reaches(outer, inner, lambda out, into: into and not out) is False


def overlap(one: Pattern, other: Pattern) -> bool:
    """Return whether any name matches both patterns. Return ``True`` if the patterns are too complex to compare."""
    return _reaches(one, other, lambda first, second: first and second) is not False


def _reaches(one: Pattern, other: Pattern, wanted: Callable[[bool, bool], bool]) -> bool | None:
    """Return whether there is a name that ``other`` matches and for which ``wanted`` returns true.

    The arguments of ``wanted`` are whether ``one`` matches the name, and whether ``other`` matches the name. If the
    patterns are too complex to compare, return ``None``.
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
            if pair not in seen and pair[1]:  # texts that the second pattern cannot match are never wanted
                seen.add(pair)
                waiting.append(pair)
        if len(seen) > MAX_STATES:
            return None
    return False
