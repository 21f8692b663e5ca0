# SPDX-License-Identifier: Apache-2.0
"""Fixtures for HTTP tests: an app on an open store, or on a store that fails every call.

All tests of this folder share one open store per driver, because opening a store takes longer than most tests. Each
test works in projects of its own, whose ids end in its ``project_suffix``.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import uuid4

import pytest
from falcon import routing
from falcon.routing.compiled import CompiledRouter

from tests.features import core_with_subscriptions, figures_of
from tests.http.api import KINDS, Api, Kind
from tests.http.driven import Driven
from tests.http.scoped import Scoped
from tests.http.stores import BrokenStore, untouched
from tests.routers import known_routes
from tests.servers import wait_for
from tests.stores import Stores, options_of
from zq.clock import ManualClock
from zq.core import Broker
from zq.events import Events
from zq.figures.counting import Counts
from zq.figures.feature import FiguresFeature
from zq.http.app import create_app
from zq.model.identity import SignedUrlOptions
from zq.model.limits import DEFAULT_KEEP, Limits
from zq.model.topics import Retention
from zq.serving.features import command_features, described_features
from zq.serving.metrics.timed import measure_verbs
from zq.storage import connect
from zq.storage.api import Storage
from zq.subscriptions.feature import SubscriptionsFeature
from zq.subscriptions.policy import SubscriptionPolicy
from zq.subscriptions.sealing import SecretSealer

Compose = Callable[..., Api]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests in memory, and tests marked ``every_store`` on every store.

    The mark is for behaviour that the store and the HTTP layer determine together: markers, pages, waiting requests,
    and what a second server sees.
    """
    metafunc.definition.add_marker("embedded")


@pytest.fixture(scope="package", autouse=True)
def quick_routers() -> Iterator[None]:
    """Reuse compiled routes, so that building an app takes a fifth of the time."""
    with known_routes():
        yield


@pytest.fixture
def own_routers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use Falcon's own router, which lists its routes, for the apps of this test."""
    monkeypatch.setattr(routing, "DefaultRouter", CompiledRouter)


@pytest.fixture(scope="package")
def storage(store_name: str, stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    """Return the open store that all tests of the folder share, one per driver."""
    folder = tmp_path_factory.mktemp("http")
    # No test here crashes the store. Other tests cover durability after a power failure.
    options = {"sync": "never"} if store_name == "rocksdb" else options_of(store_name, folder)
    opened = connect(stores.empty(store_name, folder, "b"), options)
    yield opened
    wait_for(lambda: all(thread.name != "zq-trail" for thread in threading.enumerate()), 60, "all is in the audit")
    opened.close()


@pytest.fixture
def project_suffix() -> str:
    """Return the suffix of this test's project ids."""
    return f"-{uuid4().hex[:12]}"


@pytest.fixture
def compose(storage: Storage, clock: ManualClock, project_suffix: str) -> Compose:
    """Return a function that builds an app with other limits or options on the shared store."""

    def build(
        checksum: bool = False,
        delete_with_claim_id: bool = False,
        max_waiters: int = 40,
        max_streams: int = 16,
        retention: tuple[int, int] = DEFAULT_KEEP,
        app: dict[str, Any] | None = None,
        patience: float = 5.0,
        encryption_keys: dict[str, bytes] | None = None,
        max_counted: int = 10_000,
        counts: Counts | None = None,
        require_confirmation: bool = True,
        store_observers: Sequence[Events] = (),
        **limits: int,
    ) -> Api:
        counts = counts or Counts()
        own = {"strict_client_id": True, "admin_mode": False, "share": SignedUrlOptions, **(app or {})}
        policy = SubscriptionPolicy(confirm=require_confirmation, sealer=SecretSealer(own["share"]))
        broker, use_cases = core_with_subscriptions(
            measure_verbs(storage, *store_observers) if store_observers else storage,
            clock,
            policy,
            limits=Limits(**limits),
            checksum=checksum,
            delete_with_claim_id=delete_with_claim_id,
            max_waiters=max_waiters,
            max_streams=max_streams,
            retention=Retention(*retention),
            patience=patience,
            encryption_keys=encryption_keys,
            max_counted=max_counted,
            events=counts,
        )
        features = [
            *(FiguresFeature(figures_of(broker, counts)), SubscriptionsFeature(use_cases)),
            *command_features(broker),
        ]
        built = create_app(broker, **{"features": features, **own})
        return Api(Driven(built), project_suffix)

    return build


@pytest.fixture(params=KINDS, ids=lambda kind: kind.word)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Return queues and then topics, for tests of behaviour that both share."""
    found: Kind = request.param
    return found


@pytest.fixture
def url(kind: Kind) -> str:
    """Return the URL of a queue or topic."""
    return f"{kind.path}/jobs"


@pytest.fixture
def api(compose: Compose) -> Api:
    """Return a client of project ``acme`` on a server with default settings."""
    return compose()


@pytest.fixture
def scoped(compose: Compose, project_suffix: str) -> Scoped:
    """Return callers with scopes on a server with default settings."""
    return Scoped(lambda options: compose(app=options).app, project_suffix)


@pytest.fixture
def gate() -> Callable[..., Api]:
    """Return a function that builds an app on a failing store, for requests that must be refused earlier."""

    def build(error: Callable[[], Exception] = untouched, limits: Limits = Limits(), **options: Any) -> Api:  # noqa: B008
        broker = Broker(BrokenStore(error), ManualClock(time.time()), limits=limits)
        return Api(create_app(broker, **{"features": described_features(broker), **options}))

    return build


@pytest.fixture
def door(gate: Callable[..., Api]) -> Api:
    """Return a client of project ``acme`` on a server that must refuse requests before it accesses the store."""
    return gate()


@pytest.fixture
def zaqars(gate: Callable[..., Api]) -> Api:
    """Return a client like ``door`` with the limits of Zaqar, which Zaqar's own tests expect."""
    return gate(limits=Limits(max_messages_per_page=20, max_messages_per_claim_or_pop=20))
