# SPDX-License-Identifier: Apache-2.0
"""The container image, as far as the Dockerfile determines it."""

from collections.abc import Mapping

from tests.blocks import ROOT


def read_options() -> Mapping[str, str]:
    """Return the environment variables of the image that set options of the server."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    [pairs] = [line.split()[1:] for line in text.splitlines() if line.startswith("ENV")]
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs) if name.startswith("OS_")}
