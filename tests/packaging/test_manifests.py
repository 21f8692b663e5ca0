# SPDX-License-Identifier: Apache-2.0
"""The systemd unit and the Dockerfile, against the options and commands of the server."""

import json
import os
import shlex
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from tests.certificates import issue
from tests.packaging.image import read_options
from tests.servers import ZqServer, free_port, wait_for
from zq.serving import server, settings

ETC = Path(__file__).parent.parent.parent / "etc"
UNIT = (ETC / "zq.service").read_text()
YES = """NoNewPrivileges PrivateDevices PrivateTmp PrivateUsers ProtectClock ProtectControlGroups ProtectHome
    ProtectHostname ProtectKernelLogs ProtectKernelModules ProtectKernelTunables LockPersonality RemoveIPC
    RestrictNamespaces RestrictRealtime RestrictSUIDSGID"""
CLOSED = [
    "CapabilityBoundingSet=",
    "ProtectProc=invisible",
    "ProtectSystem=strict",
    "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX",
    "SystemCallArchitectures=native",
    "SystemCallErrorNumber=EPERM",
    "SystemCallFilter=@system-service",
    "SystemCallFilter=~@privileged",
    "UMask=0077",
]
# Directives that the unit may have, by section; ``systemd-analyze`` reported no error and an exposure below 2 of 10.
DIRECTIVES = {
    "[Unit]": "Description After Wants",
    "[Service]": f"""Type NotifyAccess ExecStart ExecReload EnvironmentFile User Group StateDirectory StateDirectoryMode
    LogsDirectory LogsDirectoryMode RuntimeDirectory RuntimeDirectoryMode WorkingDirectory KillMode TimeoutStartSec
    TimeoutStopSec Restart RestartSec RestartPreventExitStatus LimitNOFILE {YES}
    {" ".join(line.partition("=")[0] for line in CLOSED)}""",
    "[Install]": "WantedBy",
}


def directive(name: str) -> str:
    """Return the value of a directive that occurs once in the unit."""
    [value] = [line.partition("=")[2] for line in UNIT.splitlines() if line.startswith(f"{name}=")]
    return value


def test_the_unit_starts_a_server_and_gives_it_time_to_end() -> None:
    """The flags exist, and the timeout exceeds the sum of the two options' defaults."""
    program, *flags = shlex.split(directive("ExecStart"))
    assert Path(program).name == "zq-server"
    assert server._parser().parse_args(flags).config == "/etc/zq/zq.conf"
    defaults = settings.load()
    assert int(directive("TimeoutStopSec")) > defaults.server.drain_delay + defaults.server.graceful_timeout
    assert directive("WorkingDirectory") == f"/var/lib/{directive('StateDirectory')}"
    for place in ("Logs", "Runtime", "State"):
        assert (directive(f"{place}Directory"), directive(f"{place}DirectoryMode")) == ("zq", "0700")


def test_the_unit_has_no_directive_that_systemd_does_not_know() -> None:
    """Each directive is in its section, and exists in systemd 252 (systemd.directives(7))."""
    section, strange = "", []
    for line in UNIT.splitlines():
        if line.startswith("["):
            section = line
        elif line and not line.startswith("#") and line.partition("=")[0] not in DIRECTIVES[section].split():
            strange.append(f"{section} {line}")
    assert strange == []


def test_the_unit_is_closed() -> None:
    """Every restriction of systemd is on, except for the network, the store and Python's memory maps."""
    told = [line for line in UNIT.splitlines() if line and line[0] not in "#["]
    shut = [f"{name}=yes" for name in YES.split()]
    assert [line for line in [*shut, *CLOSED] if told.count(line) != 1] == []


def test_the_image_is_built_on_one_base_that_a_digest_can_name() -> None:
    lines = (ETC.parent / "Dockerfile").read_text().splitlines()
    assert [line for line in lines if line.startswith("FROM")] == [
        "FROM ${PYTHON_IMAGE} AS build",
        "FROM ${PYTHON_IMAGE}",
    ]
    assert "ARG PYTHON_IMAGE=python:3.11-slim" in lines


def test_the_image_s_health_check_works_with_tls(tmp_path: Path) -> None:
    """The health check also works if clients need certificates, and fails if the server does not respond."""
    text = (ETC.parent / "Dockerfile").read_text().replace("\\\n", " ")
    [check] = [line for line in text.splitlines() if line.startswith("HEALTHCHECK")]
    program, *arguments = json.loads(check.partition(" CMD ")[2])
    bind = read_options()["OS_PROBES__BIND"]
    issue(tmp_path, "ca", "CN=ca")
    issue(tmp_path, "server", "CN=server", "ca")
    files = {"tls_cert": "server.pem", "tls_key": "server.key", "tls_client_ca": "ca.pem"}
    tls = "\n".join(["[server]", *(f"{option} = {tmp_path / name}" for option, name in files.items())])
    probes = {"OS_PROBES__BIND": bind.replace(bind.rpartition(":")[2], str(free_port()))}

    def healthy() -> bool:
        command = [sys.executable, *arguments]
        assert program == "python"
        return subprocess.run(command, env={**os.environ, **probes}, capture_output=True, check=False).returncode == 0

    running = ZqServer("memory:", config=tls, env=probes)
    with closing(running):
        running.launch()
        wait_for(healthy, 60, f"its health check passes:\n{running.output}")
    assert not healthy()
