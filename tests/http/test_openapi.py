# SPDX-License-Identifier: Apache-2.0
"""``/v2/openapi.json``: the document matches the server's routes, headers and limits."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from falcon.inspect import inspect_app
from jsonschema import Draft202012Validator

from tests.http.api import Api
from tests.http.stores import BrokenStore, untouched
from tests.tables import every_row
from zq.clock import ManualClock
from zq.core import Broker
from zq.http.app import create_app
from zq.http.openapi import document
from zq.model.limits import Limits
from zq.serving.features import described_features

FILE = Path(__file__).parent.parent.parent / "api-ref" / "openapi.json"
METHODS = ("get", "head", "put", "post", "patch", "delete")
CORE = Broker(BrokenStore(untouched), ManualClock(1.0))
FEATURES = described_features(CORE)
DOCUMENT = document(Limits(), features=FEATURES)
EXAMPLES = {
    "queue": "jobs",
    "message": "m",
    "claim": "a.b",
    "name": "n",
    "producer": "p",
    "topic": "news",
    "token": "t",
    "key": "k",
    "pool": "p",
    "flavor": "f",
    "move": "m",
    "subscription": "s",
}


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield method, path and description of every operation, with the parameters of its path included."""
    for path, item in DOCUMENT["paths"].items():
        for method in METHODS:
            if method in item:
                parameters = item.get("parameters", []) + item[method].get("parameters", [])
                yield method.upper(), path, item[method] | {"parameters": parameters}


def references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for member in value.values():
            yield from references(member)
    elif isinstance(value, list):
        for member in value:
            yield from references(member)


def looked_up(reference: str) -> Any:
    found: Any = DOCUMENT
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return found


def parameter(given: dict[str, Any]) -> dict[str, Any]:
    return looked_up(given["$ref"]) if "$ref" in given else given


@pytest.mark.usefixtures("own_routers")
def test_every_route_is_described_and_nothing_else() -> None:
    app = create_app(CORE, admin_mode=True, features=FEATURES)
    served = {
        (method.method, route.path)
        for route in inspect_app(app).routes
        for method in route.methods
        if not method.internal
    }
    assert ("GET", "/v2/openapi.json") in served
    assert {(method, path) for method, path, _ in operations()} == served


def test_the_document_is_valid() -> None:
    """The document conforms to OpenAPI 3.1 and JSON Schema 2020-12.

    Every reference resolves, and no component is unused.
    """
    schemathesis.openapi.from_dict(DOCUMENT).validate()
    used = set(references(DOCUMENT))
    used |= {f"#/components/securitySchemes/{name}" for scheme in DOCUMENT["security"] for name in scheme}
    assert all(looked_up(reference) for reference in used)
    components = {f"#/components/{kind}/{name}" for kind, all_ in DOCUMENT["components"].items() for name in all_}
    assert components - used == set()
    for schema in DOCUMENT["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_operations_have_names_of_their_own_and_their_parameters() -> None:
    """Each operation has an id and a tag. Each name in braces in a path is a parameter, once."""
    identities = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(identities)) == len(identities)
    for _, path, operation in operations():
        assert operation["tags"][0] in [tag["name"] for tag in DOCUMENT["tags"]]
        given = [parameter(each) for each in operation["parameters"]]
        assert {each["name"] for each in given if each["in"] == "path"} == {
            part[1:-1] for part in path.split("/") if part.startswith("{")
        }


@every_row(("method", "path", "operation"), list(operations()), ids=lambda value: str(value)[:60])
def test_headers_are_asked_for_where_the_document_says_so(
    gate: Callable[..., Api], method: str, path: str, operation: dict[str, Any]
) -> None:
    """A missing Client-ID or X-Project-ID gets 400, and 403 and 406 occur, exactly where the document says so."""
    door = gate(policy=lambda _rule, _roles: False, admin_mode=True)
    where = path.format(**EXAMPLES)
    headers = [parameter(each)["name"] for each in operation["parameters"] if parameter(each).get("required")]
    for header in ("Client-ID", "X-Project-ID"):
        answered = door.call(method, where, None, headers={header: None}).status_int
        assert (answered == 400) is (header in headers)
    assert (door.call(method, where, None).status_int == 403) is ("403" in operation["responses"])
    refused = door.call(method, where, None, headers={"Accept": "text/plain"}).status_int
    assert (refused == 406) is ("406" in operation["responses"])


def test_the_document_needs_no_headers(gate: Callable[..., Api]) -> None:
    """Extensions 10: Any client can read the document, which has the limits and options in force."""
    nobody = {"Client-ID": None, "X-Project-ID": None, "Accept": "text/plain"}
    shown = gate(strict_client_id=False).get("/v2/openapi.json", 200, nobody)
    assert shown.headers["Content-Type"] == "application/json"
    assert shown.json == json.loads(json.dumps(document(Limits(), strict_client_id=False, features=FEATURES)))
    assert shown.json != DOCUMENT


def test_bounds_are_those_in_force() -> None:
    """Parameters, bodies and metadata have limits that differ from the defaults."""
    told = json.dumps(document(Limits(max_message_ttl=77001, max_claim_ttl=77002, max_wait=77003)))
    for bound in (77001, 77002, 77003):
        assert f'"maximum": {bound}' in told


def test_the_file_is_the_generated_one() -> None:
    """``python -m zq.serving.features > api-ref/openapi.json`` updates the file (CONTRIBUTING.md)."""
    command = [sys.executable, "-m", "zq.serving.features"]
    assert FILE.read_text() == subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
