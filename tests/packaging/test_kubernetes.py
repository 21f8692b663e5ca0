# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes objects in ``deploy/kubernetes``, against the schemas of Kubernetes and the options of the server.

The read-only root is checked in the fields of the pod only, because continuous integration has no container runtime.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from unittest import mock

import jsonschema
import kubernetes_validate
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.abilities import able, locate
from tests.blocks import ROOT
from tests.packaging.image import read_options
from tests.servers import ZqServer, ask, free_port
from zq.serving import control, server, settings, startup
from zq.serving.settings import Settings

FOLDER: Final = ROOT / "deploy" / "kubernetes"
SCALED: Final = FOLDER / "keda" / "scaled-object.yaml"
OVERLAYS: Final = {
    "embedded": {"ConfigMap", "NetworkPolicy", "Service", "StatefulSet"},
    "maintenance": {"ConfigMap", "NetworkPolicy", "Service", "StatefulSet"},
    "shared": {"ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service"},
    "keda": {"NetworkPolicy", "ScaledObject", "TriggerAuthentication"},
    "prometheus": {"ServiceMonitor"},
}
"""The folders that an operator applies, and the kinds of their objects."""
SERVERS: Final = ("embedded", "shared")
# The oldest supported version of Kubernetes that the objects are checked against, and the newest.
VERSIONS: Final = ("1.29", "1.37")
PROBES: Final = ("startupProbe", "livenessProbe", "readinessProbe")
# Seconds between the end of the requests and SIGKILL, for closing the store.
CLOSING: Final = 20


def mapping(*required: str, **properties: Any) -> dict[str, Any]:
    """Return the schema of an object without further members."""
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}


TEXT: Final = {"type": "string"}
COUNT: Final = {"type": "integer", "minimum": 0}
NAMED: Final = mapping("name", name=TEXT)
METRIC_TYPE: Final = {"enum": ["AverageValue", "Value", "Utilization"]}
NUMBER: Final = {"type": "string", "pattern": "^[0-9.]+$"}
METADATA: Final = mapping("name", name=TEXT, namespace=TEXT, labels={"type": "object"})
METRICS_API: Final = mapping(
    *("type", "metricType", "metadata", "authenticationRef"),
    type={"const": "metrics-api"},
    metricType=METRIC_TYPE,
    metadata=mapping(
        *("url", "valueLocation", "targetValue"),
        url=TEXT,
        format={"enum": ["json", "xml", "yaml", "prometheus"]},
        valueLocation=TEXT,
        targetValue=NUMBER,
        activationTargetValue=NUMBER,
        authMode={"enum": ["apiKey", "basic", "tls", "bearer"]},
    ),
    authenticationRef=NAMED,
)
PROMETHEUS: Final = mapping(
    *("type", "metadata"),
    type={"const": "prometheus"},
    metricType=METRIC_TYPE,
    metadata=mapping(
        *("serverAddress", "query", "threshold"),
        serverAddress=TEXT,
        query=TEXT,
        threshold=NUMBER,
        activationThreshold=NUMBER,
        ignoreNullValues={"enum": ["true", "false"]},
    ),
)
FOREIGN: Final = {
    "ScaledObject": mapping(
        *("scaleTargetRef", "triggers"),
        scaleTargetRef=NAMED,
        minReplicaCount=COUNT,
        maxReplicaCount=COUNT,
        pollingInterval=COUNT,
        cooldownPeriod=COUNT,
        fallback=mapping("failureThreshold", "replicas", failureThreshold=COUNT, replicas=COUNT),
        triggers={"type": "array", "items": {"anyOf": [METRICS_API, PROMETHEUS]}, "minItems": 1},
    ),
    "TriggerAuthentication": mapping(
        "secretTargetRef",
        secretTargetRef={
            "type": "array",
            "items": mapping("parameter", "name", "key", parameter=TEXT, name=TEXT, key=TEXT),
        },
    ),
    "PrometheusRule": mapping("groups", groups={"type": "array", "minItems": 1}),
    "ServiceMonitor": mapping(
        *("selector", "endpoints"),
        selector=mapping("matchLabels", matchLabels={"type": "object"}),
        endpoints={"type": "array", "items": mapping("port", port=TEXT, interval=TEXT)},
    ),
}
"""Schemas of the specs of KEDA 2.17 and the Prometheus Operator, as far as the files use them."""


def documents(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(text) if document]


def resources(overlay: str) -> Iterator[Path]:
    """Yield the files of an overlay and its bases. Fail if a file that a kustomization names does not exist."""
    folder = FOLDER / overlay
    [listed] = documents((folder / "kustomization.yaml").read_text())
    for name in listed["resources"]:
        path = (folder / name).resolve()
        if path.is_dir():
            yield from resources(str(path.relative_to(FOLDER)))
        else:
            assert path.is_file()
            yield path


def plain(overlay: str) -> list[dict[str, Any]]:
    """Return the objects of an overlay's files, without its patches and images."""
    return [document for path in resources(overlay) for document in documents(path.read_text())]


def rendered(overlay: str) -> list[dict[str, Any]]:
    """Return the objects as kubectl applies them."""
    command = [str(locate("kubectl")), "kustomize", str(FOLDER / overlay)]
    return documents(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)


def with_comments(path: Path) -> dict[str, Any]:
    """Return the object of a file, with the list items that are commented out."""
    [document] = documents(re.sub(r"^    # (?=- |  )", "    ", path.read_text(), flags=re.MULTILINE))
    return document


def query() -> str:
    """Return the query of KEDA's trigger that reads Prometheus."""
    [found] = [each["metadata"] for each in with_comments(SCALED)["spec"]["triggers"] if each["type"] == "prometheus"]
    return str(found["query"])


def samples(page: str) -> list[Sample]:
    """Return the samples on a page of metrics."""
    return [sample for family in text_string_to_metric_families(page) for sample in family.samples]


def check(document: dict[str, Any]) -> None:
    """Fail if an object has an unknown or a missing member."""
    if document["kind"] in FOREIGN:
        jsonschema.validate(document["spec"], FOREIGN[document["kind"]])
        jsonschema.validate(document["metadata"], METADATA)
        assert document.keys() == {"apiVersion", "kind", "metadata", "spec"}
    else:
        for version in VERSIONS:
            kubernetes_validate.validate(document, version, strict=True)


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    """Return the pod of both kinds of deployments."""
    [document] = documents((FOLDER / "base" / "deployment.yaml").read_text())
    found: dict[str, Any] = document["spec"]["template"]
    return found


@pytest.fixture(scope="module")
def container(pod: dict[str, Any]) -> dict[str, Any]:
    [only] = pod["spec"]["containers"]
    found: dict[str, Any] = only
    return found


def environment() -> dict[str, str]:
    """Return the options in the environment of the container, from the image and the pod."""
    [document] = documents((FOLDER / "base" / "deployment.yaml").read_text())
    [container] = document["spec"]["template"]["spec"]["containers"]
    return {**read_options(), **{each["name"]: each["value"] for each in container["env"]}}


def load(overlay: str) -> Settings:
    """Return the settings of the server in the container; its environment precedes the file."""
    with mock.patch.dict(os.environ, environment()):
        return settings.load(str(FOLDER / overlay / "zq.conf"))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_each_object_conforms_to_its_schema(overlay: str) -> None:
    """Without kubectl, the plain files are checked instead of the rendered objects."""
    objects = rendered(overlay) if able("kubectl") else plain(overlay)
    for document in objects:
        check(document)
    if able("kubectl"):
        assert {document["kind"] for document in objects} == OVERLAYS[overlay]
        assert {document["metadata"]["namespace"] for document in objects} == {"zq"}


def test_the_schemas_reject_a_misspelt_member(container: dict[str, Any]) -> None:
    [document] = documents((FOLDER / "base" / "deployment.yaml").read_text())
    document["spec"]["template"]["spec"]["containers"] = [container | {"livenessProb": {}}]
    with pytest.raises(kubernetes_validate.ValidationError):
        check(document)
    for number in range(2):
        scaled = with_comments(SCALED)
        check(scaled)
        scaled["spec"]["triggers"][number]["metadata"]["targetvalue"] = "1"
        with pytest.raises(jsonschema.ValidationError):
            check(scaled)


@pytest.mark.ability("promtool")
def test_the_query_of_keda_counts_the_messages_of_its_queue_once(tmp_path: Path) -> None:
    """Two servers report the same messages. Delayed messages and other queues do not count."""
    labels = (
        ("a", "orders", "ready", 5),
        ("b", "orders", "ready", 5),
        ("a", "orders", "claimed", 2),
        ("b", "orders", "claimed", 3),
        ("a", "orders", "delayed", 7),
        ("a", "bills", "ready", 9),
    )
    series = [
        {
            "series": f'zq_queue_messages{{instance="{instance}",project="acme",queue="{queue}",state="{state}"}}',
            "values": str(count),
        }
        for instance, queue, state, count in labels
    ]
    tests = [
        {
            "input_series": given,
            "promql_expr_test": [{"expr": query(), "exp_samples": [{"labels": "{}", "value": value}]}],
        }
        for given, value in ((series, 8), ([], 0))
    ]
    file = tmp_path / "keda.yml"
    file.write_text(yaml.safe_dump({"tests": tests}))
    command = [str(locate("promtool")), "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_patches_and_config_files_exist_and_patch_an_object_of_the_overlay(overlay: str) -> None:
    folder = FOLDER / overlay
    [listed] = documents((folder / "kustomization.yaml").read_text())
    names = {(document["kind"], document["metadata"]["name"]) for document in plain(overlay)}
    names |= {(kind, name) for kind in OVERLAYS[overlay] for _, name in names}
    for patch in listed.get("patches", []):
        [content] = documents((folder / patch["path"]).read_text())
        target = patch.get("target") or {"kind": content["kind"], "name": content["metadata"]["name"]}
        assert (target["kind"], target["name"]) in names
    for generator in listed.get("configMapGenerator", []):
        assert all((folder / file).is_file() for file in generator["files"])


@pytest.mark.parametrize("overlay", SERVERS)
def test_ports_of_the_pod_are_those_of_the_options(
    overlay: str, pod: dict[str, Any], container: dict[str, Any]
) -> None:
    """Probes, Services and network policies refer to each port by its name."""
    chosen = load(overlay)
    startup.check_exposure(chosen)
    assert chosen.probes_address is not None
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    addresses = {chosen.server.bind, chosen.probes_address[0], chosen.metrics.bind}
    assert addresses == {"0.0.0.0"}, "Kubernetes reaches a pod by its own address."
    assert ports == {"http": chosen.server.port, "probes": chosen.probes_address[1], "metrics": chosen.metrics.port}
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(chosen.metrics.port)
    used = {container[probe]["httpGet"]["port"] for probe in PROBES}
    for document in [*plain(overlay), *plain("keda"), *plain("prometheus")]:
        if document["kind"] == "NetworkPolicy":
            used |= {port["port"] for rule in document["spec"]["ingress"] for port in rule["ports"]}
        if document["kind"] == "Service":
            used |= {port["targetPort"] for port in document["spec"]["ports"]}
            assert all(ports[port["targetPort"]] == port["port"] for port in document["spec"]["ports"])
        if document["kind"] == "ServiceMonitor":
            used |= {endpoint["port"] for endpoint in document["spec"]["endpoints"]}
    assert used == set(ports)
    assert chosen.auth.strategy == "token"


@pytest.mark.parametrize(
    ("pod_labels", "namespace_labels", "admitted"),
    [
        ({"zq-client": "true"}, None, True),
        ({}, None, False),
        ({}, {"zq-client": "true"}, True),
        ({"zq-client": "true"}, {"kubernetes.io/metadata.name": "other"}, False),
    ],
    ids=["own client", "own pod", "ingress", "foreign client"],
)
def test_pods_with_the_label_and_namespaces_with_the_label_reach_the_port_of_clients(
    pod_labels: dict[str, str], namespace_labels: dict[str, str] | None, admitted: bool
) -> None:
    """A peer without a selector of namespaces is in the namespace of the policy, which is ``None`` here."""
    [policy] = documents((FOLDER / "base" / "network-policy.yaml").read_text())
    peers = [peer for rule in policy["spec"]["ingress"] if {"port": "http"} in rule["ports"] for peer in rule["from"]]

    def matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
        return dict(selector["matchLabels"]).items() <= labels.items()

    def admits(peer: dict[str, Any]) -> bool:
        of_pods, of_namespaces = peer.get("podSelector", {"matchLabels": {}}), peer.get("namespaceSelector")
        if of_namespaces is None or namespace_labels is None:
            return of_namespaces is namespace_labels and matches(of_pods, pod_labels)
        return matches(of_namespaces, namespace_labels) and matches(of_pods, pod_labels)

    assert any(map(admits, peers)) == admitted


@pytest.mark.parametrize("overlay", SERVERS)
def test_the_pod_drains_and_ends_before_kubernetes_kills_it(
    overlay: str, pod: dict[str, Any], container: dict[str, Any]
) -> None:
    chosen = load(overlay)
    program, *arguments = container["lifecycle"]["preStop"]["exec"]["command"]
    given = server._parser().parse_intermixed_args(arguments)
    assert (program, given.command, given.config) == ("zq-server", "drain", container["args"][-1])
    assert chosen.server.control
    stopping = given.wait + chosen.server.drain_delay + chosen.server.graceful_timeout + CLOSING
    assert pod["spec"]["terminationGracePeriodSeconds"] >= stopping


def test_the_pod_has_a_read_only_root_and_no_rights(pod: dict[str, Any], container: dict[str, Any]) -> None:
    """The store, the configuration and the temporary files are on volumes."""
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert pod["spec"]["securityContext"]["runAsUser"] == pod["spec"]["securityContext"]["fsGroup"] == 8888
    assert "useradd --system --uid 8888" in (ROOT / "Dockerfile").read_text()
    assert container["resources"]["limits"].keys() == {"cpu", "memory"}
    program, *flags = container["args"]
    file = Path(server._parser().parse_args(flags).config)
    assert program == "zq-server"
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {str(file.parent): "config", "/tmp": "tmp"}
    assert file.name == "zq.conf"
    embedded = yaml.safe_load((FOLDER / "embedded" / "stateful-set.yaml").read_text())
    [mount] = [patch["value"] for patch in embedded if patch["path"].endswith("volumeMounts/-")]
    assert load("embedded").storage.uri.startswith(f"rocksdb://{mount['mountPath']}/")
    assert load("shared").server.control.startswith("/tmp/")


def test_the_store_of_shared_servers_is_in_a_secret() -> None:
    [document] = documents((FOLDER / "shared" / "deployment.yaml").read_text())
    [container] = document["spec"]["template"]["spec"]["containers"]
    [variable] = container["env"]
    assert variable["name"] == settings.variable("storage", "uri")
    assert variable["valueFrom"]["secretKeyRef"]["name"] in (FOLDER / "shared" / "kustomization.yaml").read_text()


def test_a_server_with_the_options_of_the_pod_answers_its_probes(container: dict[str, Any], tmp_path: Path) -> None:
    """Ports and store are those of the test. KEDA reads the depth or the metrics of the queue."""
    chosen = load("embedded")
    assert chosen.probes_address is not None
    ports = {chosen.probes_address[1]: free_port(), chosen.metrics.port: free_port()}
    config = (FOLDER / "embedded" / "zq.conf").read_text().replace("/var/lib/zq", str(tmp_path))
    config = config.replace("0.0.0.0", "127.0.0.1")
    own = {
        **environment(),
        settings.variable("probes", "bind"): f"127.0.0.1:{ports[chosen.probes_address[1]]}",
        settings.variable("metrics", "port"): str(ports[chosen.metrics.port]),
        settings.variable("metrics", "on_main_port"): "false",
        settings.variable("metrics", "per_queue"): "true",
    }
    names = {port["name"]: ports.get(port["containerPort"]) for port in container["ports"]}
    with ZqServer("", config=config, env=own) as running:
        for probe in PROBES:
            get = container[probe]["httpGet"]
            assert ask(f"http://127.0.0.1:{names[get['port']]}", "GET", get["path"]).status == 200
        trigger = plain("keda")[1]["spec"]["triggers"][0]["metadata"]
        path = trigger["url"].removeprefix("http://zq.zq.svc:8888")
        socket = str(tmp_path / "store" / "control.sock")
        status, token = control.send(
            socket,
            "POST",
            "/v2/admin/tokens?project=acme",
            {"scopes": ["observe:orders", "produce:orders"], "roles": []},
        )
        assert status == 201
        identity = {"Authorization": f"Bearer {token['token']}"}
        answer = ask(running.url, "GET", path, headers=identity)
        assert json.loads(answer.body)[trigger["valueLocation"]] == 0
        post = {"messages": [{"body": 1}]}
        assert ask(running.url, "POST", "/v2/queues/orders/messages", post, headers=identity).status == 201
        page = ask(f"http://127.0.0.1:{names['metrics']}", "GET", "/metrics").body.decode()
        assert "zq_store_up 1.0" in page
        [(name, selector)] = re.findall(r"(\w+)\{(.+?)\}", query())
        labels = dict(re.findall(r'(\w+)=~?"(\w+)', selector))
        [ready] = [sample for sample in samples(page) if sample.name == name and sample.labels == labels]
        assert ready.value == 1
