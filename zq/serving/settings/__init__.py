# SPDX-License-Identifier: Apache-2.0
"""The server's options, read from the configuration file and the environment into immutable values.

Precedence: command line (passed on in the environment), environment (``OS_<SECTION>__<OPTION>``), file, default. An
invalid value raises ``StartRefused``. ``zq-server --sample-config`` prints all options.
"""

import logging
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from oslo_config import cfg

from zq.logs import without_secrets
from zq.serving.settings.options import OPTIONS, DeclaredOption, variable
from zq.serving.settings.reading import (
    Settings,
    check_file,
    misspelt_variables,
    read,
    read_queue_ttl_lines,
    refusing,
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

# Options whose values are not logged.
SECRETS: Final = frozenset(option.label for options in OPTIONS.values() for option in options if option.option.secret)
# A part of the names of options that are not logged at the start: secrets, and files that contain them.
SECRET_NAME: Final = re.compile("secret|password|key")
# The logger that oslo.config uses.
OSLO: Final = logging.getLogger("oslo_config.cfg")


class Configuration:
    """The options of this process. ``reload`` applies changes of the file to ``current``."""

    def __init__(self, path: str | None = None) -> None:
        path = path or os.environ.get(CONFIG_VARIABLE)
        self.path = os.path.abspath(path) if path else None
        if self.path:
            check_file(self.path)
        self._conf = cfg.ConfigOpts()
        for group, options in OPTIONS.items():
            registered = [option.to_opt() for option in options]
            self._conf.register_opts(registered, group=None if group == "DEFAULT" else group)
        files = [self.path] if self.path else []
        with refusing():
            self._conf(args=[], project="zq", default_config_files=files, default_config_dirs=[])
        self.current = read(self._conf, self.path)
        self.left: Sequence[str] = ()
        """Changes that the last ``reload`` found but did not apply, one sentence each."""
        self._mutable = self._values()

    def list_changed(self) -> Sequence[str]:
        """Return the options that differ from their defaults, each as ``[section] name = value``, without secrets."""
        return [
            f"{option.label} = {'***' if SECRET_NAME.search(option.name) else without_secrets(self._show(option))}"
            for options in OPTIONS.values()
            for option in options
            if self._read(option) != option.default
        ]

    def reload(self) -> Sequence[str]:
        """Read the file again and return the changed options, each as ``[section] name = value``.

        A changed option that can be set only at the start is not applied. The attribute ``left`` describes these
        changes. If the file is invalid, raise ``StartRefused`` and apply no change.
        """
        fresh = Configuration(self.path)
        OSLO.setLevel(logging.ERROR)  # the caller logs the changes
        with refusing():
            self._conf.mutate_config_files()
        self.current = read(self._conf, self.path)  # also checks changed options against unchanged ones
        self.left = list(self._immutable_changes(fresh))
        former, self._mutable = self._mutable, self._values()
        changed = {name: value for name, value in self._mutable.items() if value != former[name]}
        return [f"{name} = {'(not shown)' if name in SECRETS else value}" for name, value in changed.items()]

    def _immutable_changes(self, fresh: "Configuration") -> Iterator[str]:
        """Yield a sentence for each change that applies only at the next start. Secrets are masked."""
        for option in (option for options in OPTIONS.values() for option in options if not option.option.reload):
            stays, new = (option.read(conf) for conf in (self._conf, fresh._conf))
            if stays != new and option.option.secret and option.label != "[storage] uri":
                yield f"{option.label} keeps its old value (not shown) until the next start."
            elif stays != new:
                shown = (without_secrets(repr(value)) for value in (stays, new))
                yield "{} is still {}. It changes to {} at the next start.".format(option.label, *shown)

    def _values(self) -> dict[str, str]:
        return {
            option.label: self._show(option)
            for options in OPTIONS.values()
            for option in options
            if option.option.reload
        }

    def _show(self, option: DeclaredOption) -> str:
        value = self._read(option)
        return (", ".join(value) or "(none)") if isinstance(value, tuple) else str(value)

    def _read(self, option: DeclaredOption) -> Any:
        if option.label == "[expiry] queue_ttl":
            return tuple(read_queue_ttl_lines(self._conf))
        return option.read(self._conf)


def load(path: str | None = None) -> Settings:
    """Return the settings from the environment and the file ``path``, which defaults to the file in ``ZQ_CONFIG``."""
    return Configuration(path).current


def list_opts() -> Sequence[tuple[str, list[cfg.Opt]]]:
    """Return all options by section, for oslo.config's tools."""
    return [
        (section, [option.to_opt(option.description) for option in options]) for section, options in OPTIONS.items()
    ]


def print_sample() -> None:
    """Print a configuration file that lists every option, commented out, with its default."""
    from oslo_config import generator  # imported late, because it takes half of oslo.config's import time

    conf = cfg.ConfigOpts()
    generator.register_cli_opts(conf)
    conf(args=["--namespace", "zq", "--wrap-width", "100"], default_config_files=[], default_config_dirs=[])
    generator.generate(conf)
