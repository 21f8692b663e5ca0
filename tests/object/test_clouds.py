# SPDX-License-Identifier: Apache-2.0
"""Requirements of zq on S3, Azure and Google Cloud Storage, and the refusal of unsuitable stores.

S3 is moto and Azure is Azurite. Google's store is a stub of the tests, so only the requests to it are tested.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from uuid import uuid4

import pytest

from tests.azurite import Azurite
from tests.gcs import Gcs
from tests.object.conftest import LEASE
from tests.object.work import bodies, post
from tests.s3 import S3
from tests.servers import stopped, wait_for
from zq.errors import Deposed, StartRefused, Unavailable
from zq.storage import connect
from zq.storage.api import Storage
from zq.storage.object import objects_of
from zq.storage.object.cloud import CloudObjects
from zq.storage.object.objects import ObjectStoreRejection

pytestmark = pytest.mark.slow

RACERS = 16
ROUNDS = 20
CLOUDS = ("s3", "azurite", "gcs")


@pytest.fixture(scope="module")
def gcs() -> Iterator[Gcs]:
    with Gcs() as server:
        yield server


@pytest.fixture(params=CLOUDS)
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> S3 | Azurite | Gcs:
    """Return each of the three servers in turn."""
    found: S3 | Azurite | Gcs = request.getfixturevalue(request.param)
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    return found


@pytest.fixture
def objects(server: S3 | Azurite | Gcs) -> CloudObjects:
    """Return an empty store."""
    return CloudObjects(server.uri(uuid4().hex))


def test_one_of_many_is_elected(objects: CloudObjects) -> None:
    """Each round has one winner, and later candidates lose."""
    with ThreadPoolExecutor(RACERS) as racers:
        for number in range(1, ROUNDS + 1):
            assert sum(racers.map(objects.elect, [number] * RACERS)) == 1
    assert not any(objects.elect(number) for number in range(1, ROUNDS + 1))
    assert not objects.has_election(ROUNDS + 1)


def test_an_object_is_read_until_it_is_removed(objects: CloudObjects) -> None:
    """Concurrent readers get the newest value, also a large or an empty one; a second removal is not an error."""
    with ThreadPoolExecutor(RACERS) as readers:
        for value in (b"first", b"", b"x" * (1 << 20)):
            objects.put("thing", value)
            assert set(readers.map(objects.get, ["thing"] * RACERS)) == {value}
            assert objects.exists("thing")
        for _ in range(2):
            objects.delete("thing")
        assert not any(readers.map(objects.exists, ["thing"] * RACERS))
    assert objects.get("thing") is None


def test_another_machine_takes_the_store_over(server: S3 | Azurite | Gcs, tmp_path: Path) -> None:
    """The second machine has everything that was acknowledged; the first one acknowledges and returns nothing more."""
    uri, options = server.uri(uuid4().hex), {"lease": LEASE, "takeover": "now"}
    first = connect(uri, {"cache": str(tmp_path / "first"), **options})
    post(first, "kept")
    second = connect(uri, {"cache": str(tmp_path / "second"), **options})
    with pytest.raises(Deposed):
        post(first, "late")
    with pytest.raises(Deposed):
        bodies(first)
    post(second, "kept too")
    assert bodies(second) == ["kept", "kept too"]
    first.close()
    second.close()


def test_an_azure_that_stands_still_ends_reads_with_the_lease(azurite: Azurite, tmp_path: Path) -> None:
    """Posts fail with 503 within their patience; after the outage everything works, and no message is stored twice."""
    options = {"cache": str(tmp_path / "first"), "lease": LEASE, "takeover": "now", "patience": 1}
    storage = connect(azurite.uri(uuid4().hex), options)
    post(storage, "early")
    with stopped(*azurite.pids):
        with pytest.raises(Unavailable):
            post(storage, "unknown")
        wait_for(lambda: not reads(storage), 60, "reads end")
    wait_for(lambda: reads(storage), 60, "reads go on")
    post(storage, "late")
    assert bodies(storage) in (["early", "unknown", "late"], ["early", "late"])
    storage.close()


def reads(storage: Storage) -> bool:
    try:
        return bool(bodies(storage))
    except Unavailable:
        return False


@contextmanager
def answering(put: int, head: int = 404) -> Iterator[str]:
    """Run a server that returns ``put`` for each PUT and ``head`` for each HEAD; yield its endpoint."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.answer(put)

        def do_HEAD(self) -> None:
            self.answer(head)

        def do_DELETE(self) -> None:
            self.answer(204)

        def answer(self, status: int) -> None:
            self.send_response_only(status)
            self.send_header("ETag", '"1"')
            self.send_header("Content-Length", "0")
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def variables(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the credentials of all stores."""
    for name, value in {**s3.environment, **Gcs().environment, **Azurite().environment}.items():
        monkeypatch.setenv(name, value)


STORES = pytest.mark.parametrize("store", ["s3://zq-stores/prefix", "gs://zq-stores/prefix", "az://zq-stores/prefix"])


@STORES
@pytest.mark.usefixtures("variables")
def test_a_store_that_elects_everybody_is_refused(store: str) -> None:
    """Servers that ignore the condition are refused before anything is written there."""
    with answering(200) as endpoint, pytest.raises(StartRefused, match="does not support conditional writes"):
        objects_of(f"{store}?endpoint={endpoint}")


@STORES
@pytest.mark.usefixtures("variables")
@pytest.mark.parametrize(
    ("status", "sentence"), [(403, "credentials"), (507, "status 507"), (404, "bucket or container of the store")]
)
def test_a_refused_request_names_its_cause(store: str, status: int, sentence: str) -> None:
    """The cases are missing permissions, no space and no bucket."""
    with answering(status) as endpoint, pytest.raises(ObjectStoreRejection, match=sentence):
        CloudObjects(f"{store}?endpoint={endpoint}").put("name", b"value")


@STORES
@pytest.mark.usefixtures("variables")
def test_a_store_that_does_not_answer_is_unavailable(store: str) -> None:
    """The error is raised within seconds."""
    with pytest.raises(Unavailable):
        CloudObjects(f"{store}?endpoint=http://127.0.0.1:9").get("name")


@pytest.mark.parametrize(
    "uri",
    [
        "swift://container",
        "s3://bucket",
        "s3:///prefix",
        "s3://bucket/prefix?colour=red",
        "s3://bucket/prefix?endpoint=127.0.0.1:9000",
        "gs://bucket",
        "gs://bucket/prefix?region=eu",
        "az://container",
        "az://container/prefix?region=eu",
    ],
)
def test_a_uri_needs_bucket_and_prefix(uri: str) -> None:
    """A URI has a bucket or container, and a prefix in it."""
    with pytest.raises(StartRefused, match=rf"store must be {uri.partition('://')[0]}://(bucket|container)/prefix"):
        objects_of(uri)


def test_variables_that_cannot_be_used_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cases are an Azure without an account and a Google without its credentials file."""
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere.json")
    with pytest.raises(StartRefused, match="Account must be specified"):
        CloudObjects("az://container/prefix")
    with pytest.raises(StartRefused, match=r"/nowhere\.json"):
        CloudObjects("gs://bucket/prefix")
