# SPDX-License-Identifier: Apache-2.0
"""Options of the [console] configuration section."""

from typing import Annotated, Final

from msgspec import Struct

from zq.http.features import Section
from zq.model.options import Flag, Option


class ConsoleOptions(Struct, frozen=True):
    """The options of the [console] section."""

    enabled: Flag = True
    """Serve the web console at /console/ and redirect browsers there from /."""
    read_only: Flag = False
    """Hide all actions in the console that change data. To restrict the API as well, use read-only tokens."""
    grafana_url: Annotated[str, Option(pattern=r"^(https?://\S+)?$")] = ""
    """URL of the console's Grafana link, such as https://grafana.example.org/d/zq; empty: no link."""


SECTION: Final = Section(
    "console",
    ConsoleOptions,
    line=lambda options, url: f"Console: {url}/console/." if options.enabled else "",
)
