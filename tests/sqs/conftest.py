# SPDX-License-Identifier: Apache-2.0
"""SQS on an open store, behind a real socket for boto3, or as an application for plain requests.

All tests of this folder share one open store per driver. Each test works in its own account, which it selects by its
access key.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from webtest import TestApp

from tests.features import administration_of
from tests.features import sqs as sqs_of
from tests.routers import known_routes
from tests.stores import Stores, options_of
from zq.clock import ManualClock
from zq.core import Broker
from zq.http.app import create_app
from zq.serving.features import EXTENSIONS
from zq.sqs.settings import SqsOptions
from zq.storage import connect
from zq.storage.api import Storage
from zq.testing import _serving

REGION = "eu-north-1"
Connect = Callable[..., Any]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test on the stores without a server, and tests with the marker ``every_store`` on the others too."""
    metafunc.definition.add_marker("embedded")


@pytest.fixture(scope="package", autouse=True)
def quick_routers() -> Iterator[None]:
    """Use known routes, with which the application is created in a fifth of the time."""
    with known_routes():
        yield


@pytest.fixture(scope="package")
def storage(store_name: str, stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    """Open one store of each driver for the whole folder."""
    folder = tmp_path_factory.mktemp("sqs")
    options = {"sync": "never"} if store_name == "rocksdb" else options_of(store_name, folder)
    opened = connect(stores.empty(store_name, folder, "b"), options)
    yield opened
    opened.close()


@pytest.fixture(scope="package")
def clock(storage: Storage) -> ManualClock:
    return ManualClock(storage.now())


@pytest.fixture(scope="package")
def broker(storage: Storage, clock: ManualClock) -> Broker:
    return Broker(storage, clock, max_waiters=1000, extensions=EXTENSIONS)


@pytest.fixture(scope="package")
def url(broker: Broker) -> Iterator[str]:
    """Run a server with all defaults."""
    with _serving(create_app(broker, features=[sqs_of(broker)])) as served:
        yield served


@pytest.fixture
def account() -> str:
    """Return an account for the test."""
    return f"{random.randrange(10**12):012d}"


@pytest.fixture
def connected(url: str, account: str) -> Iterator[Connect]:
    """Yield a function that makes clients, by default of the test's account, like those of any program."""
    opened = []

    def make(key: str = account, region: str = REGION) -> Any:
        once = Config(retries={"total_max_attempts": 1})
        keys = {"aws_access_key_id": key, "aws_secret_access_key": "x"}
        opened.append(boto3.client("sqs", endpoint_url=url, region_name=region, config=once, **keys))
        return opened[-1]

    yield make
    for client in opened:
        client.close()


@pytest.fixture
def sqs(connected: Connect) -> Any:
    """Return a client of the test's account."""
    return connected()


@pytest.fixture
def served(broker: Broker) -> Callable[..., TestApp]:
    """Return a function that creates the application with other options, for requests without a client."""

    def build(app: dict[str, Any] | None = None, **options: Any) -> TestApp:
        chosen = SqsOptions(**{"enabled": True, "auth": "none", **options})
        features = [sqs_of(broker, chosen), administration_of(broker)]
        return TestApp(create_app(broker, **{"features": features, **(app or {})}))

    return build


@pytest.fixture
def queue(sqs: Any) -> str:
    """Return the URL of a new queue."""
    return str(sqs.create_queue(QueueName="jobs")["QueueUrl"])


Take = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def take(sqs: Any, queue: str) -> Take:
    """Return a function that receives up to ten messages with all their attributes."""

    def receive(url: str = queue, **more: Any) -> list[dict[str, Any]]:
        names = {"MessageSystemAttributeNames": ["All"], "MessageAttributeNames": ["All"]}
        answer = sqs.receive_message(**{"QueueUrl": url, "MaxNumberOfMessages": 10, **names, **more})
        found: list[dict[str, Any]] = answer.get("Messages", [])
        return found

    return receive
