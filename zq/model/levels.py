# SPDX-License-Identifier: Apache-2.0
"""The level of a store, which determines what servers of different versions may write (operations contract, section 8).

The level is the number of a data format. If a version of zq writes data that earlier versions cannot read, it adds a
level to ``VERSIONS``. It also opens stores of the previous level, and then writes only data of that level. When all
servers run the new version, the administrator raises the level with ``zq-server upgrade --finish``.

Every driver stores the level, and checks it before it changes the store.
"""

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct

from zq import __version__
from zq.errors import StartRefused

# The first version of zq with each level, from level 1 on.
VERSIONS: Final = ("0.1",)


class StoreLevel(Struct, frozen=True):
    """The level of a store.

    Attributes:
        level: The highest level that servers write.
        required: The level that a server must support to open the store. It is greater than ``level`` only after
            ``zq-server upgrade --finish`` has begun and before it has succeeded.
        version: The version of zq that has set the level.
    """

    level: int = 1
    required: int = 1
    version: str = VERSIONS[0]


_decoder: Final = msgspec.json.Decoder(StoreLevel)
# Returns the record of a new store, which is None for level 1. May raise ``StartRefused`` to prevent a new store.
Initial = Callable[[], bytes | None]


def supported() -> int:
    """Return the highest level that this version of zq supports."""
    return len(VERSIONS)


def encode(level: StoreLevel) -> bytes:
    return msgspec.json.encode(level)


def decode(stored: bytes | None) -> StoreLevel:
    """Decode the stored level of a store. If ``stored`` is None, the store has level 1."""
    if stored is None:
        return StoreLevel()
    try:
        return _decoder.decode(stored)
    except msgspec.MsgspecError as error:
        raise StartRefused(
            f"zq {__version__} cannot read the level of the store. Use a newer version of zq, or restore a backup."
        ) from error


def initial() -> bytes | None:
    """Return the level to store in a new store, encoded, or None if nothing must be stored.

    A new store has the highest level that this version of zq supports. Level 1 is not stored.
    """
    return encode(StoreLevel(supported(), supported(), __version__)) if supported() > 1 else None


def former() -> StoreLevel:
    """Return the level before the highest level that this version of zq supports."""
    level = supported() - 1
    return StoreLevel(level, level, VERSIONS[level - 1])


def check(stored: bytes | None) -> StoreLevel:
    """Decode the stored level of a store. Raises ``StartRefused`` if this version of zq cannot open the store."""
    found = decode(stored)
    if found.required > supported():
        raise StartRefused(
            f"The store was upgraded to level {found.required} with zq {found.version}, but zq {__version__} supports "
            f"only level {supported()}. Use zq {found.version} or newer, or restore a backup from before the upgrade."
        )
    if found.level < supported() - 1:
        between = VERSIONS[found.level]
        raise StartRefused(
            f"The store has level {found.level}, but zq {__version__} requires level {supported() - 1}. Start zq "
            f"{between} on this store, run zq-server upgrade --finish, and then start zq {VERSIONS[found.level + 1]}."
        )
    return found
