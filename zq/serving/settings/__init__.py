# SPDX-License-Identifier: Apache-2.0
"""The options of the server, read from a file and the environment into frozen values, and some of them read again.

Precedence: command line (``zq-server`` hands its options on in the environment), environment
(``OS_<SECTION>__<OPTION>``), file, default. A value that is not valid stops the start: ``StartRefused``.
``zq-server --sample-config`` prints the table.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from typing import Final

from oslo_config import cfg

from zq.logs import without_secrets
from zq.serving.settings.options import OPTIONS, variable
from zq.serving.settings.reading import (
    Settings,
    check_file,
    misspelt_variables,
    queue_ttl_lines,
    read,
    refusing,
    value_of,
)

__all__ = [
    "CONFIG_VARIABLE",
    "OPTIONS",
    "Configuration",
    "Settings",
    "list_opts",
    "load",
    "misspelt_variables",
    "print_sample",
    "variable",
]

# Environment variable that names the configuration file.
CONFIG_VARIABLE: Final = "ZQ_CONFIG"

# Options whose values no log shows.
SECRETS: Final = frozenset(
    f"[{section}] {option.dest}" for section, options in OPTIONS.items() for option in options if option.secret
)
# The log of oslo.config.
OSLO: Final = logging.getLogger("oslo_config.cfg")


class Configuration:
    """The options of this process: ``current``, until ``reload`` takes over what is new in the file.

    ``path``: the file, by default what ``ZQ_CONFIG`` names; None if there is none. Raises ``StartRefused``.
    """

    def __init__(self, path: str | None = None) -> None:
        path = path or os.environ.get(CONFIG_VARIABLE)
        self.path = os.path.abspath(path) if path else None
        if self.path:
            check_file(self.path)
        self._conf = cfg.ConfigOpts()
        for group, options in OPTIONS.items():
            self._conf.register_opts(options, group=None if group == "DEFAULT" else group)
        files = [self.path] if self.path else []
        with refusing():
            self._conf(args=[], project="zq", default_config_files=files, default_config_dirs=[])
        self.current = read(self._conf, self.path)
        self.left: Sequence[str] = ()
        """What the last ``reload`` found changed and left, a sentence each."""
        self._mutable = self._values()

    def reload(self) -> Sequence[str]:
        """Read the file again; which options changed, each as ``[section] name = value``.

        A file that could not start a server is refused as a whole (``StartRefused``): nothing changes. Changes of
        options that hold for the life of a process are ``left``.
        """
        fresh = Configuration(self.path)
        OSLO.setLevel(logging.ERROR)  # the caller logs what changes and what does not
        with refusing():
            self._conf.mutate_config_files()
        self.current = read(self._conf, self.path)  # what is new must also go with what stays
        self.left = list(self._immutable_changes(fresh))
        former, self._mutable = self._mutable, self._values()
        changed = {name: value for name, value in self._mutable.items() if value != former[name]}
        return [f"{name} = {'(not shown)' if name in SECRETS else value}" for name, value in changed.items()]

    def _immutable_changes(self, fresh: "Configuration") -> Iterator[str]:
        """What is in force and what a new start would have instead, without passwords."""
        for section, options in OPTIONS.items():
            for option in options:
                stays, new = (value_of(conf, section, option) for conf in (self._conf, fresh._conf))
                if stays != new and not option.mutable:
                    shown = (without_secrets(repr(value)) for value in (stays, new))
                    yield "[{}] {} stays {}: it becomes {} at the next start.".format(section, option.dest, *shown)

    def _values(self) -> dict[str, str]:
        """The options that ``reload`` may change, as a reader of the log would write them."""
        values = {
            f"[{section}] {option.dest}": str(self._conf[section][option.dest])
            for section, options in OPTIONS.items()
            for option in options
            if option.mutable
        }
        return values | {"[expiry] queue_ttl": ", ".join(queue_ttl_lines(self._conf)) or "(none)"}


def load(path: str | None = None) -> Settings:
    """The settings of ``path`` (default: the file that ``ZQ_CONFIG`` names, if any) under those of the environment."""
    return Configuration(path).current


def list_opts() -> Sequence[tuple[str, list[cfg.Opt]]]:
    """The table, for oslo.config's own tools."""
    return list(OPTIONS.items())


def print_sample() -> None:
    """Print a configuration file that holds every option, commented out, with its default."""
    from oslo_config import generator  # half of what oslo.config takes to import, for this alone

    conf = cfg.ConfigOpts()
    generator.register_cli_opts(conf)
    conf(args=["--namespace", "zq", "--wrap-width", "100"], default_config_files=[], default_config_dirs=[])
    generator.generate(conf)
