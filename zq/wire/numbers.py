# SPDX-License-Identifier: Apache-2.0
"""Range check of numbers in JSON: integers must fit in 64 signed bits, others in a double (contract section 1.6).

Server, client, command line and Spark share this check, so that every consumer can decode the messages.
"""

import json
from collections.abc import Iterable, Mapping
from math import inf, isfinite
from typing import Any, Final, NoReturn

import msgspec

from zq.errors import InvalidBody

# Maximum integer in a body; the minimum is ``-MAX_BODY_NUMBER - 1``.
MAX_BODY_NUMBER: Final = 2**63 - 1
# Maps all digits to 0 and E to e, so that one search finds a long number.
_SHAPES: Final = bytes.maketrans(b"123456789E", b"000000000e")
# The shortest integer beyond 64 bits has 19 digits.
_LONG_NUMBER: Final = b"0" * 19
# Every fourth byte of such a number, at any offset, yields at least this many digits.
_LONG_NUMBER_SAMPLE: Final = b"0" * 4
# A shorter number can exceed a double only if its exponent has at least three digits.
_LARGE_EXPONENT: Final = b"0e000"
_LARGE_SIGNED_EXPONENT: Final = b"0e+000"
# Maximum number of steps of a path in an error, and maximum length of a step.
_MAX_STEPS: Final = 4
_MAX_KEY: Final = 64


class _Members(list[tuple[str, Any]]):
    """The members of a JSON object as a list, because a dictionary would drop members with equal names."""


def check_numbers(raw: bytes, field: str = "") -> None:
    """Raise ``InvalidBody`` for the first number out of range in a valid JSON document."""
    shapes = raw.translate(_SHAPES)
    is_long = _LONG_NUMBER_SAMPLE in shapes[::4] and _LONG_NUMBER in shapes
    has_large_exponent = _LARGE_EXPONENT in shapes or _LARGE_SIGNED_EXPONENT in shapes
    if is_long or (has_large_exponent and not _decodes(raw)):
        _reject_numbers(raw, field)


def checked_json(value: object, field: str = "") -> bytes:
    """Encode a value as JSON.

    Raises ``InvalidBody`` if the value contains NaN or an infinity. Raises msgspec's error if the type of a value is
    not supported.
    """
    encoded = msgspec.json.encode(value)
    if b"null" in encoded:
        check_finite(value, field)
    return encoded


def check_finite(value: object, field: str = "") -> None:
    """Raise ``InvalidBody`` if the value contains NaN or an infinity, which msgspec would encode as null."""
    # Embedded raw JSON cannot contain NaN or an infinity.
    plain = msgspec.to_builtins(value, enc_hook=lambda _: None)
    if (found := _first_bad(plain, field)) is not None:
        path, number = found
        raise InvalidBody(f"{path or 'The body'} is {number}, which JSON cannot represent: send null or a string.")


def _decodes(raw: bytes) -> bool:
    try:
        msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True


def _reject_numbers(raw: bytes, field: str) -> None:
    def integer(digits: str) -> int | float:
        # Python rejects integers with thousands of digits, so long integers are not converted.
        number = int(digits) if len(digits) < 30 else inf
        return number if -MAX_BODY_NUMBER - 1 <= number <= MAX_BODY_NUMBER else inf

    try:
        document = json.loads(raw, parse_int=integer, parse_constant=_reject_constant, object_pairs_hook=_Members)
    except RecursionError as error:
        raise InvalidBody("The body is nested too deeply.") from error
    if (found := _first_bad(document, field)) is not None:
        raise InvalidBody(
            f"{found[0] or 'The body'} contains a number out of range: integers must fit in 64 bits (signed), "
            "other numbers in a double."
        )


def _reject_constant(name: str) -> NoReturn:
    raise InvalidBody(f"{name} is not valid JSON.")


def _first_bad(document: object, field: str) -> tuple[str, float] | None:
    waiting: list[tuple[tuple[str, ...], object]] = [((field,) if field else (), document)]
    while waiting:
        steps, value = waiting.pop()
        if isinstance(value, float):
            if not isfinite(value):
                return _path(steps), value
        elif not isinstance(value, str):
            waiting += reversed([((*steps, step), child) for step, child in _children(value)])
    return None


def _children(value: object) -> Iterable[tuple[str, object]]:
    if isinstance(value, _Members):
        return [(f".{name}", child) for name, child in value]
    if isinstance(value, Mapping):
        return [(f".{name}", child) for name, child in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return [(f"[{index}]", child) for index, child in enumerate(value)]
    return ()


def _path(steps: tuple[str, ...]) -> str:
    """Format a path for an error message.

    The path ends at ``body``, because errors must not reveal a message's content.
    """
    shown = steps[: steps.index(".body") + 1] if ".body" in steps else steps
    return "".join(step[:_MAX_KEY] for step in shown[:_MAX_STEPS]).removeprefix(".")
