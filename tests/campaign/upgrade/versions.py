# SPDX-License-Identifier: Apache-2.0
"""Servers and commands of several versions of zq, with the dependencies of the tests."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.blocks import ROOT
from tests.commands import Done
from tests.servers import MODULE, ZqServer


class Version(NamedTuple):
    """The folder with the package ``zq`` of a version."""

    folder: Path

    @property
    def variables(self) -> Mapping[str, str]:
        """Return the environment of a process of this version."""
        return {"PYTHONPATH": str(self.folder), "PYTHONSAFEPATH": "1"}

    def run(self, *arguments: object) -> Done:
        """Run ``zq-server`` with these arguments, and wait for its end."""
        command = [sys.executable, "-m", MODULE, *map(str, arguments)]
        done = subprocess.run(
            command, env={**os.environ, **self.variables}, cwd="/", capture_output=True, text=True, timeout=120
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def find_package(self) -> Path:
        """Return the folder from which a process of this version imports ``zq``."""
        command = [sys.executable, "-c", "import zq; print(zq.__path__[0])"]
        found = subprocess.run(
            command, env={**os.environ, **self.variables}, cwd="/", capture_output=True, text=True, check=True
        )
        return Path(found.stdout.strip())


CURRENT = Version(ROOT)


class VersionedServer(ZqServer):
    """A server that can be replaced by one of another version on the same port."""

    def __init__(self, store_uri: str, version: Version, engine: str = "granian") -> None:
        super().__init__(store_uri, engine=engine, env=version.variables)

    def replace(self, version: Version) -> None:
        """Stop the server like ``systemctl restart``, and start the other version."""
        assert self.terminate() == 0, self.output
        self.switch(version)
        self.start()

    def switch(self, version: Version) -> None:
        """Use the other version at the next start."""
        self._env.update(version.variables)
