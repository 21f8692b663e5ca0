# SPDX-License-Identifier: Apache-2.0
"""Options of the configuration section [console]."""

from typing import Final

from msgspec import Struct
from oslo_config import cfg

from zq.http.features import Section

CONSOLE: Final[list[cfg.Opt]] = [
    cfg.BoolOpt("enabled", default=True, help="Serve the web console at /console/ and redirect browsers there from /."),
    cfg.BoolOpt(
        "read_only",
        default=False,
        help="Hide all actions in the console that change data. This is no access control: use tokens with a reader "
        "role.",
    ),
    cfg.StrOpt(
        "grafana_url",
        default="",
        regex=r"^(https?://\S+)?$",
        help="URL of the console's Grafana link, such as https://grafana.example.org/d/zq; empty: no link.",
    ),
]


class ConsoleOptions(Struct, frozen=True):
    """The options of the section [console]."""

    enabled: bool = True
    read_only: bool = False
    grafana_url: str = ""


SECTION: Final = Section(
    "console",
    CONSOLE,
    lambda conf: ConsoleOptions(**conf.console),
    line=lambda options, url: f"Console: {url}/console/." if options.enabled else "",
)
