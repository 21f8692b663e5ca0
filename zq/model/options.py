# SPDX-License-Identifier: Apache-2.0
"""Declarations of configuration options: one field of a struct each.

The field has the option's name, type and default, its docstring the description, and ``Option`` the rest. The server
derives the options that it registers, the sample file, the page ``configuration.md`` and error sentences.
"""

from typing import Annotated, Any

from msgspec import Struct


class Option(Struct, frozen=True):
    """The properties of an option besides name, type, default and description.

    Args:
        low: Minimum of a number; a text names the option of the same struct whose value is the minimum.
        high: Maximum of a number, in the same way.
        choices: Valid values of a text.
        pattern: Regular expression that a text must match.
        reload: Whether the server applies a change on SIGHUP.
        secret: Whether the value must not be logged.
        repeats: Whether the file may set the option several times, each time with one more value.
        sample: Value in the sample file, if it is not the default.
        name: Name of the option, if it is not the field's.
        section: Section of the option, if it is not that of the other fields.
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
