# SPDX-License-Identifier: Apache-2.0
"""The level of a store, which determines what servers of different versions may write (operations contract, section 8).

If a new version of zq writes data that earlier versions cannot read, it adds a level to ``VERSIONS``. The new version
opens stores of the new level and of the previous level, and writes only data that the store's level permits. When all
servers run the new version, the administrator raises the level with ``zq-server upgrade --finish``.

Every driver keeps the level beside the layout number, and checks it before it changes the store.
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
        required: The level that a server must support to open the store. While an upgrade is being finished, it is
            greater than ``level``.
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
    """Decode the record of a store. A store without a record has level 1."""
    if stored is None:
        return StoreLevel()
    try:
        return _decoder.decode(stored)
    except msgspec.MsgspecError as error:
        raise StartRefused(
            f"zq {__version__} cannot read the level of the store. Use a newer version of zq, or restore a backup."
        ) from error


def initial() -> bytes | None:
    """Return the level record for a new store, or None if the store needs no record.

    A new store has the highest level that this version supports. A store of level 1 has no record.
    """
    return encode(StoreLevel(supported(), supported(), __version__)) if supported() > 1 else None


def former() -> StoreLevel:
    """Return the level before the highest one of this version."""
    level = supported() - 1
    return StoreLevel(level, level, VERSIONS[level - 1])


def check(stored: bytes | None) -> StoreLevel:
    """Return the level in the record of a store. Raises ``StartRefused`` if this version cannot open the store."""
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
