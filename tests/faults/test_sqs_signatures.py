# SPDX-License-Identifier: Apache-2.0
"""SQS requests signed by boto3, on both engines: allowed and refused keys (SQS contract 3)."""

import socket
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import boto3
import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from tests.commands import run_apart
from tests.faults.test_withheld_bodies import AT_ONCE, BODY, everything
from tests.servers import ZqServer, wait_for

UNKNOWN = "InvalidClientTokenId"
MISMATCH = "SignatureDoesNotMatch"


class Signing(NamedTuple):
    """A server, and the command that creates its keys."""

    server: ZqServer
    store: str
    config: Path

    def command(self, *arguments: str) -> str:
        """Run ``zq-server sqs-key`` and return its output."""
        done = run_apart("sqs-key", *arguments, "--store", self.store, "--config", self.config)
        assert done.code == 0, done
        return done.said

    def key(self, project: str, *more: str) -> tuple[str, str]:
        id, secret = self.command("create", "--project", project, *more).split()
        return id, secret

    def client(self, key: tuple[str, str], token: str | None = None) -> Any:
        """Return an SQS client that does not retry."""
        return boto3.client(
            "sqs",
            region_name="eu-central-1",
            endpoint_url=self.server.url,
            aws_access_key_id=key[0],
            aws_secret_access_key=key[1],
            aws_session_token=token,
            config=Config(retries={"total_max_attempts": 1}),
        )

    def ask(self, request: AWSRequest) -> tuple[int, str]:
        """Send a signed request; return status and body of the response."""
        connection, parts = HTTPConnection("127.0.0.1", self.server.port, timeout=20), urlsplit(request.url)
        try:
            target = parts.path + (f"?{parts.query}" if parts.query else "")
            connection.request(request.method, target, request.data, dict(request.headers.items()))
            reply = connection.getresponse()
            return reply.status, reply.read().decode()
        finally:
            connection.close()


@pytest.fixture
def signing(engine: str, tmp_path: Path) -> Iterator[Signing]:
    """Return a server that requires signed SQS requests and seals its secrets in the store."""
    file, config = tmp_path / "keys", tmp_path / "zq.conf"
    file.write_text(f"first {b64encode(b'k' * 32).decode()}\n")
    file.chmod(0o600)
    store = f"rocksdb://{tmp_path}/store"
    text = f"[sqs]\nenabled = true\nkey_file = {file}\n"
    config.write_text(text)
    with ZqServer(store, engine=engine, config=text) as server:
        yield Signing(server, store, config)


@contextmanager
def refused(code: str, match: str = "", status: int = 403) -> Iterator[None]:
    with pytest.raises(ClientError, match=match) as refusal:
        yield
    answer = refusal.value.response
    assert (answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]) == (code, status)


def test_a_key_gives_access_to_its_project(signing: Signing, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key gives access to its project's queues for its operations. It needs its secret and a current time.

    A disabled key gives no access.
    """
    key, other = signing.key("acme"), signing.key("other")
    mine, theirs = signing.client(key), signing.client(other)
    url, foreign = (client.create_queue(QueueName="jobs")["QueueUrl"] for client in (mine, theirs))
    assert mine.list_queues()["QueueUrls"] == [url]
    assert url != foreign
    arn = mine.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    assert arn == f"arn:aws:sqs:eu-central-1:{url.split('/')[-2]}:jobs"
    with refused("AccessDenied"):
        mine.get_queue_attributes(QueueUrl=foreign)
    with refused("AWS.SimpleQueueService.NonExistentQueue", status=400):
        mine.get_queue_attributes(QueueUrl=f"{signing.server.url}/999999999999/jobs")
    with refused(MISMATCH):
        signing.client((key[0], other[1])).list_queues()
    with refused(UNKNOWN):
        signing.client(("ZQ" + "A" * 18, key[1])).list_queues()
    with refused(UNKNOWN):
        signing.client(key, token="session").list_queues()
    with refused("AccessDenied"):
        signing.client(signing.key("acme", "--action", "SendMessage")).list_queues()
    with monkeypatch.context() as patched:
        late = datetime.now(UTC).replace(tzinfo=None) + timedelta(minutes=20)
        patched.setattr("botocore.auth.get_current_datetime", lambda: late)
        with refused(MISMATCH, "Signature not yet current"):
            mine.list_queues()
    signing.command("disable", key[0])
    wait_for(lambda: is_refused(mine), 20, "The key is refused: it is remembered for a second.")
    with refused(UNKNOWN, "The security token included in the request is invalid."):
        mine.list_queues()
    assert theirs.list_queues()["QueueUrls"] == [foreign]


def is_refused(client: Any) -> bool:
    try:
        client.list_queues()
    except ClientError:
        return True
    return False


def test_requests_of_older_clients_are_signed_too(signing: Signing) -> None:
    """Form requests and pre-signed links work; additions to a link or its body are not signed and are refused."""
    key = Credentials(*signing.key("acme"))
    form = urlencode({"Action": "CreateQueue", "QueueName": "jobs", "Tag.1.Key": "a b", "Tag.1.Value": "é+~*"})
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    request = AWSRequest("POST", f"{signing.server.url}/", headers=headers, data=form.encode())
    SigV4Auth(key, "sqs", "us-east-1").add_auth(request)
    status, answer = signing.ask(request)
    assert (status, "<QueueUrl>" in answer) == (200, True), answer
    link = AWSRequest("GET", f"{signing.server.url}/?Action=ListQueues&QueueNamePrefix=jo%20b")
    SigV4QueryAuth(key, "sqs", "us-east-1", expires=60).add_auth(link)
    assert signing.ask(link)[0] == 200
    for more in (AWSRequest("GET", link.url + "&MaxResults=1"), AWSRequest("GET", link.url, data=b"Action=x")):
        status, answer = signing.ask(more)
        assert (status, f"<Code>{MISMATCH}</Code>" in answer) == (403, True), answer
    status, answer = signing.ask(AWSRequest("GET", f"{signing.server.url}/?Action=ListQueues"))
    assert (status, "<Code>MissingAuthenticationToken</Code>" in answer) == (403, True)


def test_a_stranger_s_body_is_not_read(signing: Signing) -> None:
    """The headers suffice to refuse the request, however large its announced body is."""
    request = AWSRequest("POST", f"{signing.server.url}/", headers={"X-Amz-Target": "AmazonSQS.SendMessage"})
    SigV4Auth(Credentials("ZQ" + "B" * 18, "x"), "sqs", "us-east-1").add_auth(request)
    for headers in ({}, dict(request.headers.items())):
        said = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{signing.server.port}\r\nContent-Length: {BODY}\r\n{said}\r\n"
        with socket.create_connection(("127.0.0.1", signing.server.port), AT_ONCE) as connection:
            connection.sendall(head.encode())
            assert everything(connection).startswith(b"HTTP/1.1 403 ")
