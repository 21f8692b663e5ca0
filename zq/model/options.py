# SPDX-License-Identifier: Apache-2.0
"""Declarations of configuration options.

Each option is one field of a struct, with the option's name, type and default value. The docstring of the field is the
description of the option. The sample file, ``configuration.md`` and error messages are generated from these
declarations.
"""

from typing import Annotated, Any

from msgspec import Struct


class Option(Struct, frozen=True):
    """The properties of an option besides name, type, default and description.

    Args:
        low: Minimum of a number, or the name of the option in the same struct whose value is the minimum.
        high: Maximum of a number, or the name of the option in the same struct whose value is the maximum.
        reload: Whether the server applies a change on SIGHUP.
        repeats: Whether the option has a list of values. The file sets the option once for each value.
        sample: Value in the sample file, if it differs from the default.
    """

    low: float | str | None = None
    high: float | str | None = None
    choices: tuple[str, ...] = ()
    pattern: str = ""
    reload: bool = False
    secret: bool = False
    repeats: bool = False
    sample: Any = None
    name: str = ""
    section: str = ""


# Types of options without bounds that apply from the next start.
Flag = Annotated[bool, Option()]
Text = Annotated[str, Option()]
Texts = Annotated[tuple[str, ...], Option()]
# Types of counts without a maximum.
Natural = Annotated[int, Option(0)]
Positive = Annotated[int, Option(1)]
# The number of a TCP port; 0 stands for none or any.
PORT = Option(0, 65535)
Port = Annotated[int, PORT]
