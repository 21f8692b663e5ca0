# SPDX-License-Identifier: Apache-2.0
"""``api-ref/operations.md``, "Deploy on Kubernetes", followed without a cluster.

``kubectl`` renders and checks the objects, and a server with the options of the pod runs the commands of the page.
Prometheus is real.
"""

import base64
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.abilities import locate, need
from tests.blocks import ROOT, section
from tests.packaging.image import read_options
from tests.packaging.test_kubernetes import check, documents
from tests.prometheus import Prometheus
from tests.reader import SHELL, environment, follow, succeed
from tests.servers import ZqServer, ask, free_port
from tests.stand_ins import Done, StandIns, done, run_zq_server
from tests.stores import RedisServer

# Checks of the doctor that depend on the machine of the tests.
OF_THE_MACHINE = {"machine clock", "open files", "disk space", "disk sync", "replicas", "persistence", "store memory"}
LINE = re.compile(r"^(ok|skip|warn|fail) +([\w' ]+): ", re.MULTILINE)
PATHS = re.compile(r"(?<![\w.])/(?=(?:etc/zq|tmp|var/lib/zq)\b)")
SERVERS = {"embedded": "statefulset/zq", "shared": "deployment/zq"}


class Pod:
    """A folder with the root directory of a container, and its server."""

    def __init__(self, root: Path) -> None:
        for folder in ("etc/zq", "tmp", "var/lib/zq"):
            (root / folder).mkdir(parents=True)
        self.root = root
        self.metrics = free_port()
        self.server: ZqServer | None = None
        self._programs = StandIns(root / "programs", {"zq-server": lambda words, _: run_zq_server(words, self._env)})
        self._env: dict[str, str] = {}

    def __enter__(self) -> "Pod":
        self._programs.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self.server is not None:
            self.server.close()
        self._programs.__exit__()

    def locate(self, text: str) -> str:
        """Return a text with the absolute paths of the container inside the folder."""
        return PATHS.sub(f"{self.root}/", text)

    def start(self, template: dict[str, Any], config: str, secrets: dict[str, dict[str, str]]) -> None:
        """Start the server of the container, or start it again."""
        if self.server is not None:
            assert self.server.terminate() == 0
            self.server = None
        [container] = template["spec"]["containers"]
        program, *flags = container["args"]
        if program == "sleep":
            assert not any(name.endswith("Probe") or name == "lifecycle" for name in container)
            return
        assert program == "zq-server"
        file = Path(self.locate(flags[flags.index("--config") + 1]))
        file.write_text(self.locate(config))
        given = {
            each["name"]: each.get("value") or self._secret(each["valueFrom"]["secretKeyRef"], secrets)
            for each in container["env"]
        }
        tests = {
            **{"OS_SERVER__BIND": "127.0.0.1", "OS_SERVER__DRAIN_DELAY": "0"},
            **{"OS_METRICS__PORT": str(self.metrics), "OS_METRICS__BIND": "127.0.0.1"},
            **{"OS_PROBES__BIND": f"127.0.0.1:{free_port()}", "OS_METRICS__ON_MAIN_PORT": "false"},
        }
        self._env = {**environment(self.root, os.environ["PATH"]), **read_options(), **given, **tests}
        self.server = ZqServer("", *map(self.locate, flags), engine="auto", env=self._env)
        self._env["OS_SERVER__PORT"] = str(self.server.port)
        self.server.start()

    def run(self, command: list[str], given: bytes) -> Done:
        path = f"{self._programs.folder}{os.pathsep}{self._env['PATH']}"
        words = [self.locate(word) for word in command]
        return subprocess.run(words, env=self._env | {"PATH": path}, input=given, capture_output=True)

    def _secret(self, wanted: dict[str, str], secrets: dict[str, dict[str, str]]) -> str:
        return base64.b64decode(secrets[wanted["name"]][wanted["key"]]).decode()


class Cluster:
    """The objects of the namespace ``zq``, and the programs that the page uses."""

    def __init__(self, clone: Path, pod: Pod, prometheus: Prometheus) -> None:
        self._clone = clone
        self._pod = pod
        self._prometheus = prometheus
        self._objects: dict[tuple[str, str], dict[str, Any]] = {}
        self._images: set[str] = set()
        self.applied: set[str] = set()
        programs = {"docker": self._docker, "kubectl": self._kubectl}
        self.stand_ins = StandIns(clone.parent / "programs", programs)

    def secrets(self) -> dict[str, dict[str, str]]:
        return {name: each["data"] for (kind, name), each in self._objects.items() if kind == "secret"}

    def _docker(self, words: list[str], _: bytes) -> Done:
        match words:
            case ["build", "-t", image, "."]:
                self._images.add(image)
            case ["push", image]:
                assert image in self._images
            case _:
                raise AssertionError(words)
        return done()

    def _kubectl(self, words: list[str], given: bytes) -> Done:
        namespace = words[1] if words[0] == "-n" else ""
        rest = words[2:] if namespace else words
        assert namespace in ("", "zq", "monitoring")
        match rest:
            case ["create", *_]:
                self._store(self._real(*words, "--dry-run=client", "--output=yaml"))
            case ["kustomize", folder]:
                return done(self._real("kustomize", str(self._clone / folder)).encode())
            case ["apply", "-k", folder]:
                self.applied.add(folder)
                self._store(self._real("kustomize", str(self._clone / folder)))
            case ["apply", "-f", "-"]:
                self._store(given.decode())
            case ["rollout", "status", name]:
                assert tuple(name.split("/")) in self._objects
                assert self._pod.server is None or self._pod.server.ready()
            case ["delete", "pod", "zq-0"]:
                assert self._pod.server is None
            case ["label", kinds, "--all", _]:
                assert {*kinds.split(",")} <= {kind for kind, _ in self._objects}
            case ["exec", "service/prometheus-operated", "--", "promtool", "query", "instant", _, expression]:
                return self._query(expression)
            case ["exec", "-i", target, "--", *command] | ["exec", target, "--", *command]:
                kind, _, name = target.replace("zq-0", "statefulset/zq").rpartition("/")
                assert (kind, name) in self._objects
                return self._pod.run(command, given if "-i" in rest else b"")
            case _:
                raise AssertionError(words)
        return done()

    def _real(self, *words: str) -> str:
        command = [str(locate("kubectl")), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    def _store(self, text: str) -> None:
        """Check the objects, and start the server if they have changed it."""
        for document in documents(text):
            check(document)
            kind, name = document["kind"].lower(), document["metadata"]["name"]
            assert document["metadata"].get("namespace") == (None if kind == "namespace" else "zq")
            before = self._objects.get((kind, name))
            self._objects[kind, name] = document
            if f"{kind}/{name}" in SERVERS.values() and document != before:
                self._roll_out(document["spec"]["template"])

    def _roll_out(self, template: dict[str, Any]) -> None:
        [container] = template["spec"]["containers"]
        if container["image"].endswith(":0.1.0"):
            assert container["image"] in self._images
        [volume] = [volume["configMap"] for volume in template["spec"]["volumes"] if "configMap" in volume]
        self._pod.start(template, self._objects["configmap", volume["name"]]["data"]["zq.conf"], self.secrets())

    def _query(self, expression: str) -> Done:
        """Run promtool against a Prometheus with the rules of the cluster, which reads the metrics of the pod."""
        if not self._prometheus.query("up"):
            folder = self._clone.parent
            rules = {name: each["spec"] for (kind, name), each in self._objects.items() if kind == "prometheusrule"}
            for name, groups in rules.items():
                (folder / f"{name}.yml").write_text(yaml.safe_dump(groups))
            target = {"targets": [f"127.0.0.1:{self._pod.metrics}"], "labels": {"namespace": "zq"}}
            config = {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [f"{name}.yml" for name in rules],
                "scrape_configs": [{"job_name": "zq", "static_configs": [target]}],
            }
            (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
            self._prometheus.start(folder / "prometheus.yml")
        return subprocess.run(
            [locate("promtool") or "", "query", "instant", self._prometheus.url, expression], capture_output=True
        )

    def image(self) -> str:
        """Return the image of the servers."""
        [server] = (each for (kind, _), each in self._objects.items() if kind in ("statefulset", "deployment"))
        [container] = server["spec"]["template"]["spec"]["containers"]
        return str(container["image"])

    def alerts(self) -> set[str]:
        """Return the names of the alerting rules of the cluster."""
        specs = [each["spec"] for (kind, _), each in self._objects.items() if kind == "prometheusrule"]
        rules = [rule for spec in specs for group in spec["groups"] for rule in group["rules"]]
        return {rule["alert"] for rule in rules if "alert" in rule}


@pytest.fixture
def uri(overlay: str) -> Iterator[str]:
    """Return the URI of the store of shared servers."""
    if overlay == "embedded":
        yield ""
    else:
        with RedisServer(None, "--appendonly", "yes", "--maxmemory", "1gb") as store:
            yield store.uri


@pytest.mark.slow
@pytest.mark.parametrize("overlay", SERVERS)
def test_the_page_leads_to_a_monitored_service_with_backups(
    overlay: str, uri: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The doctor finds no problem. A restored embedded store has the token that was created before the backup."""
    need("kubectl", "prometheus", "promtool")
    clone, backups = tmp_path / "clone", tmp_path / "backups"
    for folder in ("deploy", "etc"):
        shutil.copytree(ROOT / folder, clone / folder)
    blocks = [
        block
        for block in section("operations", "Deploy on Kubernetes")
        if (overlay in block or not block.startswith("overlay="))
        and (overlay == "embedded" or not re.search("zq-0|backup.sh", block))
    ]
    commands = "".join(blocks).replace("mongodb://...", uri).replace("/srv/zq-backups", str(backups))
    commands = commands.replace("/etc/cron.d", str(tmp_path))
    commands = re.sub(r"^(python3|/opt/zq/bin/pip) .*\n", "", commands, flags=re.MULTILINE)
    commands = re.sub(r"^(.* doctor .*)$", r"\1 || (($? == 1))", commands, flags=re.MULTILINE)
    with ExitStack() as stack:
        # The path of a Unix socket has at most 107 bytes, so the store needs a short one.
        pod = stack.enter_context(Pod(tmp_path_factory.mktemp("pod")))
        prometheus = Prometheus(tmp_path / "prometheus")
        stack.callback(prometheus.close)
        cluster = Cluster(clone, pod, prometheus)
        stack.enter_context(cluster.stand_ins)
        said = succeed([*SHELL, f"export PATH={cluster.stand_ins.folder}:$PATH\n{commands}"], clone)
        others = {"keda", "prometheus", *(["maintenance"] if overlay == "embedded" else [])}
        assert cluster.applied == {f"deploy/kubernetes/{each}" for each in {overlay, *others}}
        assert cluster.image().endswith(":0.2.0")
        assert {"ZqBackupOld", "ZqFastBurn"} <= cluster.alerts()
        found = [(status, name) for status, name in LINE.findall(said) if name not in OF_THE_MACHINE]
        assert {name for _, name in found} >= {"server", "metrics", "servers", "level"}, said
        assert [each for each in found if each[0] in ("warn", "fail")] == [], said
        assert re.search(r'^up\{.*job="zq".*\} => 1 @', said, re.MULTILINE), said
        assert "ALERTS" not in said
        [token] = re.findall(r"^zq_\w{10}_\w+$", said, re.MULTILINE)
        assert pod.server is not None
        answer = ask(pod.server.url, "GET", "/v2/queues", headers={"Authorization": f"Bearer {token}"})
        assert answer.status == 200
        observer = base64.b64decode(cluster.secrets()["zq-orders-observe"]["token"]).decode()
        depth = ask(pod.server.url, "GET", "/v2/queues/orders/depth", headers={"Authorization": f"Bearer {observer}"})
        assert depth.status == 200
        if overlay == "embedded":
            [store] = (pod.root / "var/lib/zq").iterdir()
            assert store.name.startswith("restored-")
            [job] = (line for line in (tmp_path / "zq-backup").read_text().splitlines() if line.startswith("0 3 * * *"))
            assert job.removeprefix("0 3 * * * root ") == f"{clone}/deploy/kubernetes/backup.sh {backups}"
            assert len(list(backups.iterdir())) == 1


@pytest.mark.ability("kubectl")
@pytest.mark.parametrize(
    ("image", "applied"),
    [
        ("- name: zq\n  newName: registry.example.org/zq\n  newTag: 0.1.0\n", True),
        (f"  - name: zq\n    newName: registry.example.org/zq\n    digest: sha256:{0:064}\n", True),
        (f"- digest: sha256:{0:064}\n  name: zq\n  newName: registry.example.org/zq\n", True),
        ("- name: zq\n  newName: registry.example.org/zq\n", False),
    ],
    ids=["tag", "digest", "kustomize edit", "neither"],
)
def test_an_upgrade_applies_the_new_image_or_nothing(image: str, applied: bool, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    file = tmp_path / "deploy/kubernetes/base/kustomization.yaml"
    file.write_text(file.read_text().partition("images:\n")[0] + f"images:\n{image}")
    [block] = (each for each in section("operations", "Deploy on Kubernetes") if "newTag" in each)
    commands = block.partition("kubectl -n zq rollout")[0]
    kubectl = f'kubectl() {{ if [[ $1 == apply ]]; then echo applied; else {locate("kubectl")} "$@"; fi; }}'
    said = follow([*SHELL, f"{kubectl}\noverlay=shared\n{commands}"], tmp_path).stdout.split()
    assert said == (["image:", "registry.example.org/zq:0.2.0", "applied"] if applied else [])
