# SPDX-License-Identifier: Apache-2.0
"""What is relied on of S3, and what is said of something that is none."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from uuid import uuid4

import pytest

from tests.s3 import S3
from zq.errors import StartRefused, Unavailable
from zq.storage.object import objects_of
from zq.storage.object.cloud import CloudObjects
from zq.storage.object.objects import ObjectStoreRefuses

pytestmark = pytest.mark.slow

RACERS = 16
ROUNDS = 20


def test_one_of_many_is_elected(s3: S3) -> None:
    """In each round one, and nobody later."""
    objects = CloudObjects(s3.uri(uuid4().hex))
    with ThreadPoolExecutor(RACERS) as racers:
        for number in range(1, ROUNDS + 1):
            assert sum(racers.map(objects.elect, [number] * RACERS)) == 1
    assert not any(objects.elect(number) for number in range(1, ROUNDS + 1))
    assert not objects.elected(ROUNDS + 1)


@contextmanager
def answering(put: int, head: int = 404) -> Iterator[str]:
    """The endpoint of something that answers each PUT with a status, and has nothing, or everything."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.answer(put)

        def do_HEAD(self) -> None:
            self.answer(head)

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


@pytest.mark.usefixtures("s3")
def test_a_store_that_elects_everybody_is_refused() -> None:
    """As servers are that do not heed the condition: before anything is written there."""
    with answering(200) as endpoint, pytest.raises(StartRefused, match="does not heed If-None-Match"):
        objects_of(f"s3://zq-stores/prefix?endpoint={endpoint}")


@pytest.mark.usefixtures("s3")
@pytest.mark.parametrize(("status", "sentence"), [(403, "credentials"), (507, "status 507"), (404, "no such bucket")])
def test_what_s3_refuses_is_named(status: int, sentence: str) -> None:
    """No rights, no space, no bucket."""
    with answering(status) as endpoint, pytest.raises(ObjectStoreRefuses, match=sentence):
        CloudObjects(f"s3://zq-stores/prefix?endpoint={endpoint}").put("name", b"value")


@pytest.mark.usefixtures("s3")
def test_an_s3_that_does_not_answer_is_unavailable() -> None:
    """Within seconds."""
    with pytest.raises(Unavailable):
        CloudObjects("s3://zq-stores/prefix?endpoint=http://127.0.0.1:9").get("name")


@pytest.mark.parametrize("uri", ["s3://bucket", "s3:///prefix", "s3://bucket/prefix?colour=red", "swift://container"])
def test_a_uri_says_where(uri: str) -> None:
    """A bucket or container, and a prefix in it."""
    with pytest.raises(StartRefused, match=r"store is s(3|wift)://"):
        objects_of(uri)
