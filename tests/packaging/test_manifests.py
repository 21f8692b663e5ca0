# SPDX-License-Identifier: Apache-2.0
"""``zq.service``, ``kubernetes.yaml`` and ``Dockerfile`` say what the server takes, and what they run answers."""

import json
import os
import shlex
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.certificates import issue
from tests.servers import ZqServer, ask, free_port, wait_for
from zq.serving import server, settings, startup
from zq.serving.settings import Settings

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
# What the unit may have, by its sections; systemd's own tool found no fault with it, and an exposure below 2 of 10.
DIRECTIVES = {
    "[Unit]": "Description After Wants",
    "[Service]": f"""Type ExecStart ExecReload EnvironmentFile User Group StateDirectory StateDirectoryMode
    WorkingDirectory KillMode TimeoutStopSec Restart RestartSec RestartPreventExitStatus LimitNOFILE {YES}
    {" ".join(line.partition("=")[0] for line in CLOSED)}""",
    "[Install]": "WantedBy",
}


@pytest.fixture(scope="module")
def manifests() -> dict[str, Any]:
    """What the file has, by its kind: one of each."""
    documents = list(yaml.safe_load_all((ETC / "kubernetes.yaml").read_text()))
    assert len({document["kind"] for document in documents}) == len(documents)
    return {document["kind"]: document for document in documents}


@pytest.fixture
def chosen(manifests: dict[str, Any], tmp_path: Path) -> Settings:
    """The options of the ConfigMap's file."""
    file = tmp_path / "zq.conf"
    file.write_text(manifests["ConfigMap"]["data"]["zq.conf"])
    return settings.load(str(file))


def container(manifests: dict[str, Any]) -> dict[str, Any]:
    [only] = manifests["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = only
    return found


def directive(name: str) -> str:
    """What a directive of the unit says that stands there once."""
    [value] = [line.partition("=")[2] for line in UNIT.splitlines() if line.startswith(f"{name}=")]
    return value


def test_the_unit_starts_a_server_and_gives_it_time_to_end() -> None:
    """With flags that there are, and more than the two options allow together by default."""
    program, *flags = shlex.split(directive("ExecStart"))
    assert Path(program).name == "zq-server"
    assert server._parser().parse_args(flags).config == "/etc/zq/zq.conf"
    defaults = settings.load()
    assert int(directive("TimeoutStopSec")) > defaults.server.drain_delay + defaults.server.graceful_timeout
    assert directive("WorkingDirectory") == f"/var/lib/{directive('StateDirectory')}"


def test_the_unit_has_no_directive_that_systemd_does_not_know() -> None:
    """Each stands in its section, and is one that systemd 252 has (systemd.directives(7))."""
    section, strange = "", []
    for line in UNIT.splitlines():
        if line.startswith("["):
            section = line
        elif line and not line.startswith("#") and line.partition("=")[0] not in DIRECTIVES[section].split():
            strange.append(f"{section} {line}")
    assert strange == []


def test_the_unit_is_closed() -> None:
    """Everything that systemd can shut is, but for the network, the store and what Python maps."""
    told = [line for line in UNIT.splitlines() if line and line[0] not in "#["]
    shut = [f"{name}=yes" for name in YES.split()]
    assert [line for line in [*shut, *CLOSED] if told.count(line) != 1] == []


def test_the_options_of_the_pod_are_ours_and_its_ports_are_theirs(manifests: dict[str, Any], chosen: Settings) -> None:
    """Probes, metrics and requests each have the port that the options say, and each is named where it is used."""
    startup.check_exposure(chosen)
    assert chosen.probes_address is not None
    pod, one = manifests["StatefulSet"]["spec"]["template"]["spec"], container(manifests)
    ports = {port["name"]: port["containerPort"] for port in one["ports"]}
    assert ports == {"http": chosen.server.port, "probes": chosen.probes_address[1], "metrics": chosen.metrics.port}
    annotations = manifests["StatefulSet"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(chosen.metrics.port)
    used = [rule["port"] for part in manifests["NetworkPolicy"]["spec"]["ingress"] for rule in part["ports"]]
    used += [port["targetPort"] for port in manifests["Service"]["spec"]["ports"]]
    used += [one[f"{kind}Probe"]["httpGet"]["port"] for kind in ("startup", "liveness", "readiness")]
    assert set(used) == set(ports)
    assert pod["terminationGracePeriodSeconds"] > chosen.server.drain_delay + chosen.server.graceful_timeout


def test_the_pod_finds_its_file_and_its_store_on_volumes(manifests: dict[str, Any], chosen: Settings) -> None:
    """The rest of its disk is read only, and it may do nothing that it need not."""
    pod, one = manifests["StatefulSet"]["spec"]["template"]["spec"], container(manifests)
    mounts = {mount["mountPath"]: mount["name"] for mount in one["volumeMounts"]}
    claimed = {claim["metadata"]["name"] for claim in manifests["StatefulSet"]["spec"]["volumeClaimTemplates"]}
    assert set(mounts.values()) == claimed | {volume["name"] for volume in pod["volumes"]}
    program, *flags = one["args"]
    file = Path(server._parser().parse_args(flags).config)
    assert program == "zq-server"
    assert mounts[str(file.parent)] == "config"
    assert file.name in manifests["ConfigMap"]["data"]
    assert mounts[str(Path(chosen.storage.uri.removeprefix("rocksdb://")).parent)] in claimed
    assert one["securityContext"]["readOnlyRootFilesystem"] is True
    assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == 8888
    assert "useradd --system --uid 8888" in (ETC.parent / "Dockerfile").read_text()


def test_a_server_with_the_pod_s_file_answers_its_probes(
    manifests: dict[str, Any], chosen: Settings, tmp_path: Path
) -> None:
    """On free ports and with a folder of the test, else as it stands there."""
    assert chosen.probes_address is not None
    ports = {chosen.probes_address[1]: free_port(), chosen.metrics.port: free_port()}
    config = manifests["ConfigMap"]["data"]["zq.conf"].replace("/var/lib/zq", str(tmp_path))
    config = config.replace("0.0.0.0", "127.0.0.1").replace(
        str(chosen.probes_address[1]), str(ports[chosen.probes_address[1]])
    )
    metrics = {"OS_METRICS__PORT": str(ports[chosen.metrics.port]), "OS_METRICS__ON_MAIN_PORT": "false"}
    names = {port["name"]: ports.get(port["containerPort"]) for port in container(manifests)["ports"]}
    with ZqServer("", config=config, env=metrics):
        for kind in ("startup", "liveness", "readiness"):
            get = container(manifests)[f"{kind}Probe"]["httpGet"]
            assert ask(f"http://127.0.0.1:{names[get['port']]}", "GET", get["path"]).status == 200
        assert b"zq_store_up 1.0" in ask(f"http://127.0.0.1:{names['metrics']}", "GET", "/metrics").body


def test_the_pod_is_bounded_and_seen_by_chosen_pods_only(manifests: dict[str, Any], chosen: Settings) -> None:
    """Processor and memory; metrics by pods of one namespace; requests by tokens."""
    assert container(manifests)["resources"]["limits"].keys() == {"cpu", "memory"}
    rules = manifests["NetworkPolicy"]["spec"]["ingress"]
    [sources] = [rule["from"] for rule in rules if rule["ports"] == [{"port": "metrics"}]]
    assert [source["namespaceSelector"]["matchLabels"].keys() for source in sources] == [
        {"kubernetes.io/metadata.name"}
    ]
    assert chosen.auth.strategy == "token"


def test_the_image_is_built_on_one_base_that_a_digest_can_name() -> None:
    lines = (ETC.parent / "Dockerfile").read_text().splitlines()
    assert [line for line in lines if line.startswith("FROM")] == [
        "FROM ${PYTHON_IMAGE} AS build",
        "FROM ${PYTHON_IMAGE}",
    ]
    assert "ARG PYTHON_IMAGE=python:3.11-slim" in lines


def test_the_image_s_health_check_works_with_tls(tmp_path: Path) -> None:
    """Also where clients need certificates; it fails when the server does not answer."""
    text = (ETC.parent / "Dockerfile").read_text().replace("\\\n", " ")
    [check] = [line for line in text.splitlines() if line.startswith("HEALTHCHECK")]
    program, *arguments = json.loads(check.partition(" CMD ")[2])
    [given] = [line.split()[1:] for line in text.splitlines() if line.startswith("ENV")]
    bind = dict(pair.split("=", 1) for pair in given)["OS_PROBES__BIND"]
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
