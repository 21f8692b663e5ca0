# SPDX-License-Identifier: Apache-2.0
"""A server for each store, clients of AWS, and accounts that nobody else uses."""

import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import boto3
import pytest
from botocore.config import Config

from tests.stores import Stores
from zq import testing

# Nothing is sent twice, and what clients would refuse by themselves comes to the server.
PLAIN = Config(retries={"max_attempts": 0}, parameter_validation=False, read_timeout=60)


@pytest.fixture(scope="package")
def server(store_name: str, stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[testing.Server]:
    """One server of each store for the whole folder: each test is an account of its own."""
    uri = stores.empty(store_name, tmp_path_factory.mktemp("sqs"), "c")
    with testing.server(store=uri, sqs=True) as started:
        yield started


@pytest.fixture
def account() -> str:
    return f"{random.randrange(10**12):012}"


@cache
def session() -> boto3.Session:
    """It has read the model of SQS once, which takes long."""
    return boto3.Session()


def client_of(url: str, account: str) -> Any:
    """A client of AWS's own library, whose queues are this account's."""
    key = {"aws_access_key_id": account, "aws_secret_access_key": "x"}
    return session().client("sqs", endpoint_url=url, region_name="eu-central-1", config=PLAIN, **key)


@pytest.fixture
def sqs(server: testing.Server, account: str) -> Any:
    return client_of(server.url, account)


@pytest.fixture
def queue(sqs: Any) -> str:
    """The URL of a new queue."""
    return str(sqs.create_queue(QueueName="jobs")["QueueUrl"])


Take = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def take(sqs: Any, queue: str) -> Take:
    """What is received from the queue, up to ten messages with all that is known of them."""

    def receive(url: str = queue, **more: Any) -> list[dict[str, Any]]:
        names = {"MessageSystemAttributeNames": ["All"], "MessageAttributeNames": ["All"]}
        answer = sqs.receive_message(**{"QueueUrl": url, "MaxNumberOfMessages": 10, **names, **more})
        found: list[dict[str, Any]] = answer.get("Messages", [])
        return found

    return receive
