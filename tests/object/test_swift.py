# SPDX-License-Identifier: Apache-2.0
"""Authentication to Swift by a stub Keystone with tokens that Swift accepts, and unsuitable containers."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.request import Request, urlopen
from uuid import uuid4

import pytest

from tests.swift import KEY, USER, Swift
from zq.errors import StartRefused
from zq.storage.object.objects import ObjectStoreRejection
from zq.storage.object.swift import SwiftObjects

pytestmark = pytest.mark.slow

PASSWORD = {"OS_USERNAME": "zq", "OS_PASSWORD": "right", "OS_PROJECT_NAME": "queues", "OS_USER_DOMAIN_NAME": "ours"}
CREDENTIAL = {"OS_APPLICATION_CREDENTIAL_ID": "id", "OS_APPLICATION_CREDENTIAL_SECRET": "right"}


class Keystone:
    """A stub Keystone that returns Swift's own tokens for the right password."""

    def __init__(self, swift: Swift) -> None:
        request = Request(swift.auth_url, headers={"X-Auth-User": USER, "X-Auth-Key": KEY})
        with urlopen(request, timeout=20) as answer:
            token, place = answer.headers["X-Auth-Token"], answer.headers["X-Storage-Url"]
        self.asked: list[Any] = []
        asked = self.asked

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                asked.append(document)
                there = [{"interface": "admin", "region": "one", "url": "http://127.0.0.1:9"}]
                there.append({"interface": "public", "region": "one", "url": place})
                catalog = [{"type": "compute", "endpoints": []}, {"type": "object-store", "endpoints": there}]
                self.send_response_only(201 if '"right"' in json.dumps(document) else 401)
                self.send_header("X-Subject-Token", token)
                self.end_headers()
                self.wfile.write(json.dumps({"token": {"catalog": catalog}}).encode())

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.variables = {"OS_AUTH_URL": f"http://127.0.0.1:{self.server.server_port}/v3", "OS_REGION_NAME": "one"}
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def keystone(swift: Swift) -> Iterator[Keystone]:
    played = Keystone(swift)
    yield played
    played.server.shutdown()
    played.server.server_close()


def objects(variables: dict[str, str]) -> SwiftObjects:
    return SwiftObjects(f"swift://zq/{uuid4().hex}", variables)


@pytest.mark.parametrize("who", [PASSWORD, CREDENTIAL], ids=["password", "application credential"])
def test_keystone_authenticates(keystone: Keystone, who: dict[str, str]) -> None:
    """One token is used for all requests, to the public endpoint of the region."""
    swift = objects(keystone.variables | who)
    swift.prepare()
    swift.put("name", b"value")
    assert swift.get("name") == b"value"
    (asked,) = keystone.asked
    [method] = asked["auth"]["identity"]["methods"]
    assert method == ("password" if who is PASSWORD else "application_credential")
    if who is PASSWORD:
        assert asked["auth"]["identity"]["password"]["user"]["domain"] == {"name": "ours"}
        assert asked["auth"]["scope"]["project"] == {"name": "queues", "domain": {"name": "Default"}}


def test_keystone_refuses(keystone: Keystone) -> None:
    """Each error names the problem: a wrong password, a region without Swift, missing variables."""
    with pytest.raises(ObjectStoreRejection, match="status 401"):
        objects(keystone.variables | PASSWORD | {"OS_PASSWORD": "wrong"}).prepare()
    with pytest.raises(ObjectStoreRejection, match="has no object store"):
        objects(keystone.variables | PASSWORD | {"OS_REGION_NAME": "two"}).prepare()
    with pytest.raises(StartRefused, match="OS_PASSWORD"):
        objects({**keystone.variables, "OS_USERNAME": "zq"})


@pytest.mark.parametrize("rest", ["c", "/p", "c/p?auth=v2", "c/p?auth=", "c/p?auth=v1&auth=v3", "c/p?region=x"])
def test_an_invalid_uri_is_refused(rest: str) -> None:
    """The error shows a valid URI."""
    with pytest.raises(StartRefused, match="The URI of a Swift store must be swift://container/prefix"):
        SwiftObjects(f"swift://{rest}", {})


def test_an_invalid_authentication_response_is_refused(swift: Swift) -> None:
    """The server here returns 200 for every request."""
    elsewhere = swift.environment["ST_AUTH"].replace("/auth/v1.0", "/healthcheck")
    made = SwiftObjects("swift://zq/p?auth=v1", {**swift.environment, "ST_AUTH": elsewhere})
    with pytest.raises(ObjectStoreRejection, match="lacks the token or the account URL"):
        made.prepare()


def test_a_container_that_keeps_old_versions_is_refused(swift: Swift) -> None:
    """Every removed object would be kept as a version."""
    name = f"versions-{uuid4().hex}"
    made = SwiftObjects(f"swift://{name}/prefix?auth=v1", swift.environment)
    made.prepare()
    assert made.send("POST", name, {"X-Versions-Location": f"{name}-old"}).status == 204
    with pytest.raises(StartRefused, match="has versioning enabled"):
        made.prepare()
