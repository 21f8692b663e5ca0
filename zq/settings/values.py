# SPDX-License-Identifier: Apache-2.0
"""Single values of options: nonsense is refused with the option, where it is set, and what it must be."""

import math
import os
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

from oslo_config import cfg

from zq.errors import StartRefused
from zq.secrets import without_secrets
from zq.settings.options import OPTIONS, variable

ALIKE: Final = 0.8
"""From here on two names are taken for one, misspelt; 1 is equal."""
VARIABLES: Final = tuple(variable(section, option.dest) for section, options in OPTIONS.items() for option in options)
SECTIONS: Final = tuple(variable(section, "") for section in OPTIONS)


def value_of(conf: cfg.ConfigOpts, section: str, option: cfg.Opt) -> Any:
    """What an option is now."""
    return conf[option.dest] if section == "DEFAULT" else conf[section][option.dest]


def check(conf: cfg.ConfigOpts, path: str | None) -> None:
    """Refuse values of another kind than their option's, or beyond its bounds. ``path``: the configuration file."""
    for section, options in OPTIONS.items():
        for option in options:
            try:
                value = value_of(conf, section, option)
            except cfg.ConfigSourceValueError as error:
                raise StartRefused(_sentence(section, option, path, error)) from error
            number = isinstance(option, cfg.IntOpt | cfg.FloatOpt) and option.default is not None
            if number and (value is None or not math.isfinite(value)):
                raise StartRefused(f"{_place(section, option, path)} must be a number; it is {value or 'empty'}.")


def sections_of(path: str) -> dict[str, dict[str, list[str]]]:
    """What stands in a configuration file. Raises ``StartRefused`` if it cannot be read."""
    sections: dict[str, dict[str, list[str]]] = {}
    try:
        cfg.ConfigParser(path, sections).parse()
    except (OSError, cfg.ParseError, ValueError) as error:
        raise StartRefused(f"The configuration file {path} cannot be read: {without_secrets(str(error))}.") from error
    return sections


def misspelt_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """A warning for each variable that looks like one of ours and is none. Those of OpenStack's clients do not."""
    for name in sorted(environment):
        if name in VARIABLES or not name.startswith("OS_") or "__" not in name:
            continue
        alike = get_close_matches(name.upper(), VARIABLES, 1, ALIKE)
        if alike or name.startswith(SECTIONS):
            hint = f"; did you mean {alike[0]}?" if alike else ". zq-server --sample-config prints all options."
            yield f"The variable {name} is ignored, since it names no option{hint}"


def _sentence(section: str, option: cfg.Opt, path: str | None, error: Exception) -> str:
    reason = str(error).partition(" is not valid: ")[2]
    wanted = _wanted(option)
    if wanted is None:
        return f"{_place(section, option, path)} cannot be used: {without_secrets(reason)}."
    given = os.environ.get(variable(section, option.dest))
    if given is None:
        given = sections_of(path)[section][option.dest][-1] if path else reason
    return f"{_place(section, option, path)} must be {wanted}; it is {without_secrets(given)[:100]!r}."


def _place(section: str, option: cfg.Opt, path: str | None) -> str:
    by = variable(section, option.dest)
    where = f", set by {by}," if by in os.environ else f" of {path}" if path else ""
    return f"Option {option.dest} in section [{section}]{where}"


def _wanted(option: cfg.Opt) -> str | None:
    """What values an option may have, in words; None if only oslo.config knows."""
    if isinstance(option, cfg.BoolOpt):
        return "true or false"
    if choices := getattr(option.type, "choices", None):
        return f"one of {', '.join(choices)}"
    if not isinstance(option, cfg.IntOpt | cfg.FloatOpt | cfg.PortOpt):
        return None
    kind = "a number" if isinstance(option, cfg.FloatOpt) else "a whole number"
    low, high = (getattr(option.type, bound, None) for bound in ("min", "max"))
    if high is None:
        return kind if low is None else f"{kind}, at least {low}"
    return f"{kind} from {low} to {high}"
