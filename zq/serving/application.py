# SPDX-License-Identifier: Apache-2.0
"""The server process, composed of store, clock, metrics, broker, authentication and background work."""

import atexit
import gc
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from zq import audit
from zq.audit import Audit
from zq.auth import create_strategy, open_tokens
from zq.auth.master_keys import MasterKeys, read_keys
from zq.auth.policy import Policy
from zq.auth.proxy import ProxySecrets
from zq.auth.tokens import default_max_tokens
from zq.clock import Clock, StoreClock
from zq.core import Broker
from zq.core.followers import Followers
from zq.core.health import Pools as PoolStores
from zq.core.rates import Exchange, Rates
from zq.errors import NotBuilt, StartRefused, Unavailable
from zq.events import Events, Observers
from zq.http.app import create_app
from zq.http.application import App
from zq.http.authentication import get_peer, set_aside
from zq.http.request_log import STORE
from zq.model import QueueRef
from zq.model.expiry import Expiry
from zq.model.levels import Initial
from zq.model.stats import Snapshot
from zq.serving import lifecycle, probes
from zq.serving.draining import Drain
from zq.serving.features import EXTENSIONS, create_features, create_followers, create_store_observers
from zq.serving.level_watch import LevelWatch, catalogue_of
from zq.serving.listening import format_authority, overlap
from zq.serving.maintenance import Upkeep
from zq.serving.maintenance.throttle import LatencyMonitor
from zq.serving.metrics.timed import measure_verbs
from zq.serving.metrics.token import MetricsToken
from zq.serving.migration.record import check_served
from zq.serving.mode_watch import ModeWatch
from zq.serving.settings import Configuration, Settings
from zq.serving.startup import log_options, reload_files
from zq.serving.tls import ServerTls
from zq.serving.upgrade_command import UpgradeControl
from zq.storage import connect
from zq.storage.api import Storage
from zq.storage.capabilities import LevelledStorage, LimitedSpace, Snapshots
from zq.storage.pooling import PooledStorage

if TYPE_CHECKING:
    from zq.serving.metrics.counting import Metrics

LOG = logging.getLogger(__name__)
# Seconds between two attempts to open the store.
RETRY_INTERVAL = 1.0
T = TypeVar("T")
# Minimum number of concurrent requests per process from which a project's fair share is computed.
REQUESTS_AT_ONCE = 64
NO_SNAPSHOT = "zq cannot back up this store or these pools. Use the tools of the store: see backup.md."


class Application:
    """The application of one process, with its open store and background threads."""

    def __init__(self, configuration: Configuration, tls: ServerTls | None = None, drain: Drain | None = None) -> None:
        self._configuration = configuration
        self._tls = tls
        self.drain = drain or Drain()
        chosen = configuration.current
        with lifecycle.exit_at_once():
            self._storage = open_stores(chosen)
        self._clock, monitor = StoreClock(self._storage.now, distrusted_lead=self._storage.clock_lead), LatencyMonitor()
        self._metrics = _metrics(chosen, self._storage, self._clock)
        self._events = Observers(self._metrics)
        documents = self._storage.documents
        with lifecycle.exit_at_once():
            level = start_level_watch(chosen, self._storage, chosen.server.port, self._metrics.set_level)
        if not chosen.shared_store:  # the master process, which logs the options otherwise, cannot open the store
            log_options(configuration, self._storage)
        self._strategy = create_strategy(lambda: configuration.current.auth, documents, self._clock, configuration.path)
        storage = measure_verbs(self._storage, self._metrics, monitor, STORE, *create_store_observers(chosen))
        self.broker = make_broker(
            chosen,
            storage,
            self._clock,
            self._events,
            create_followers(chosen, storage, self._clock),
            self._storage.pools if isinstance(self._storage, PooledStorage) else None,
        )
        probe = partial(_probe, chosen, catalogue_of(self._storage))
        pooled = self._storage if isinstance(self._storage, PooledStorage) else None
        terms_of_features = self._events, self._strategy, documents, probe, pooled
        self.features = create_features(configuration, self.broker, *terms_of_features)
        self._keys = MasterKeys(chosen.transport.message_encryption_key_file, self.broker.sealing.keys.replace)
        self._proxy = self._strategy if isinstance(self._strategy, ProxySecrets) else None
        self._policy, self._audit = Policy(chosen.auth.policy_file), Audit()
        audit.configure(chosen.log.audit)
        lifecycle.register_exit(self._audit.log_unlogged_count)
        if chosen.auth.strategy and chosen.shared_store:
            Exchange(self.broker.rates, documents, self._clock).start()
        self.app = self._create_app()
        listeners = [listener for feature in self.features for listener in feature.listeners]
        self._listeners: Sequence[Callable[[QueueRef], object]] = (self.broker.waiters.wake, *listeners)
        self._storage.listen(self._notify)
        pages = {
            "/healthz": probes.health,
            "/readyz": probes.readiness(self.broker.health.check_ready, self.drain.is_leaving),
        }
        self._report_server()
        self._metrics_token = MetricsToken(chosen.metrics.token_file)
        _listen(chosen, pages, probes.metrics(self._metrics.page, self._metrics_token.permits))
        self._upkeep = Upkeep(
            self._storage,
            self._clock,
            chosen.expiry,
            monitor,
            self._metrics,
            self._resume,
            lifecycle.give_up,
        )
        self._upkeep.start()
        for feature in self.features:
            atexit.register(feature.finish)  # must run after the store is closed
        atexit.register(self._storage.close)
        atexit.register(level.stop)  # must run after all other changes to the store
        atexit.register(self._upkeep.stop)
        has_low_space = self._storage.has_low_space if isinstance(self._storage, LimitedSpace) else bool
        watch = ModeWatch(self.broker.modes, has_low_space, self._metrics.set_mode)
        watch.start()
        atexit.register(watch.stop)  # must run before the store is closed
        lifecycle.register_exit(self.broker.trail.finish)  # must run before the store is closed
        for feature in self.features:
            feature.start()
            atexit.register(feature.stop)  # must run before the store is closed
        # Exempt imported objects from garbage collection, because a full collection would block for 25 ms.
        gc.freeze()

    def _report_server(self) -> None:
        from zq.serving.metrics.server import ServerCollector  # must be imported after multiprocess.begin

        tls, quotas, configuration = self._tls, self.broker.quotas, self._configuration
        collector = ServerCollector(
            self._clock,
            self.drain.is_leaving,
            lambda: None if tls is None else tls.expires,
            None if quotas is None else quotas.largest_uses,
            lambda: configuration.current.metrics.per_queue,
        )
        self._metrics.register(collector)

    def _create_app(self) -> App:
        configuration, chosen = self._configuration, self._configuration.current
        quotas = self.broker.quotas
        bound = default_max_tokens if quotas is None else lambda project: quotas.allotment(project).quota.tokens
        tokens = open_tokens(chosen.auth, self._storage.documents, self._clock, self._audit, bound)
        return create_app(
            self.broker,
            policy=self._policy,
            audit=self._audit,
            sends_rate_limits=lambda: configuration.current.general.quota_headers,
            strict_client_id=chosen.transport.client_id_uuid_safe == "strict",
            admin_mode=chosen.general.admin_mode,
            trusts_network=chosen.server.trust_network,
            allowed_hosts=lambda: configuration.current.server.allowed_hosts,
            log=lambda: configuration.current.log,
            events=self._events,
            metrics_page=self._metrics.page if chosen.metrics.on_main_port else None,
            strategy=None if isinstance(self._strategy, ProxySecrets) else self._strategy,
            proxy=self._proxy,
            behind_proxy=chosen.server.behind_proxy,
            tokens=tokens,
            share=lambda: configuration.current.share,
            auth=chosen.auth.strategy,
            features=self.features,
            is_leaving=self.drain.is_leaving,
        )

    def _notify(self, queue: QueueRef) -> None:
        for listener in self._listeners:
            listener(queue)

    def _resume(self) -> None:
        self.broker.resume()
        for feature in self.features:
            feature.resume()

    def apply(self, new: Settings) -> None:
        self.broker.default_ttls.replace(new.limits.default_message_ttl, new.queue_ttl)
        self.broker.publishing.configure(new.topics.retention)
        self._upkeep.configure(new.expiry)
        self._metrics.configure(new.metrics)
        self.broker.queues.configure(new.metrics.max_counted)
        self.broker.trail.configure(new.log.audit_ttl)
        if self.broker.quotas is not None:
            self.broker.quotas.configure(new.quota)
        self._policy.reload(new.auth.policy_file, self._audit)
        certificates = getattr(self._strategy, "certificates", None)
        files = [file for feature in self.features for file in feature.files]
        reload_files(self._proxy, certificates, self._keys, self._metrics_token, *files, self._tls)

    def upgrade(self) -> UpgradeControl:
        """Return the control socket operation for upgrades of the store."""
        return UpgradeControl(self._storage, self._metrics.set_level)

    def snapshot(self) -> AbstractContextManager[Snapshot]:
        """Return a context manager that takes a snapshot of the store and drops the snapshot at the end.

        Raises ``NotBuilt`` if the store does not support snapshots.
        """
        if not isinstance(self._storage, Snapshots):
            raise NotBuilt(NO_SNAPSHOT)
        return self._storage.snapshot()

    def _reject_unauthenticated(self, env: Mapping[str, Any], peer: str) -> None:
        """Record a request that the Keystone middleware has rejected, in the metrics and in the audit log."""
        self._events.auth_failed("unauthenticated")
        self._audit.log_unauthenticated(env, peer)

    def outermost(self) -> Callable[..., Iterable[bytes]]:
        """Return the outermost WSGI application, which includes the Keystone middleware if Keystone is configured."""
        wrap = getattr(self._strategy, "wrap", None)
        if wrap is None:
            return self.app
        chosen = self._configuration.current
        peer = partial(get_peer, behind_proxy=chosen.server.behind_proxy)
        behind: Callable[..., Iterable[bytes]] = wrap(
            self.app,
            set_aside,
            peer,
            self._reject_unauthenticated,
            [prefix for feature in self.features for prefix in feature.public_prefixes],
        )
        if not self.app.checks:
            return behind
        return lambda env, start: (self.app if self.app.find_check(env) else behind)(env, start)


def open_stores(chosen: Settings, initial: Initial | None = None) -> Storage:
    """Open the store, or the stores of all pools if pooling is on. Raises the same errors as ``open_store``."""
    catalogue = open_store(chosen, initial)
    if chosen.pooling is None:
        return catalogue
    storage = PooledStorage(catalogue, partial(_open_pool, chosen, catalogue), chosen.pooling.virtual)
    if not chosen.pooling.moves:
        return storage
    try:
        wait_for_store(chosen.storage.wait, lambda: storage.follow_moves(chosen.shared_store))
    except BaseException:
        storage.close()
        raise
    return storage


def open_store(chosen: Settings, initial: Initial | None = None) -> Storage:
    """Open the store. With ``wait_for_store``, retry until the store is available.

    ``initial`` is called if the store is new; see ``zq.storage.connect``.

    Raises ``StartRefused`` if the store cannot be used with these settings, or if ``check_served`` rejects the store.
    """
    terms = chosen.storage.uri, chosen.driver_options, chosen.expiry, initial
    return wait_for_store(chosen.storage.wait, lambda: _open_served(*terms))


def start_level_watch(
    chosen: Settings, storage: Storage, server: int | str, report: Callable[[int], object] = int
) -> LevelWatch:
    """Start the ``LevelWatch`` of this process. If it raises ``StartRefused``, close the store."""
    try:
        level = wait_for_store(chosen.storage.wait, lambda: LevelWatch(storage, server, chosen.shared_store, report))
    except StartRefused:
        storage.close()  # also deletes the record of a process with pools, which would prevent a migration
        raise
    level.start()
    return level


def wait_for_store(waits: bool, call: Callable[[], T]) -> T:
    """Return the result of ``call``. If ``waits``, repeat the call until the store is available."""
    while True:
        try:
            return call()
        except Unavailable as absence:
            if not waits:
                raise
            LOG.warning("Waiting for the store: %s", absence)
            time.sleep(RETRY_INTERVAL)


def _open_pool(chosen: Settings, catalogue: Storage, uri: str, expiry: Expiry | None) -> Storage:
    """Open the store of a pool.

    The record of a server is only in the catalogue, so ``zq-server migrate`` may not detect a server that uses the
    source or the target as a pool.

    Args:
        chosen: The settings of the server.
        catalogue: The server's own store. A new pool store gets the same level (data format) as this store.
        uri: The URI of the pool's store.
        expiry: The options for the removal of expired data, or ``None`` for the options of the server.
    """
    options = chosen.pooling.options if chosen.pooling else {}
    initial = catalogue.read_level if isinstance(catalogue, LevelledStorage) else None
    return _open_served(uri, options.get(uri.partition(":")[0]), expiry or chosen.expiry, initial)


def _open_served(
    uri: str, options: Mapping[str, object] | None, expiry: Expiry, initial: Initial | None = None
) -> Storage:
    storage = connect(uri, options, expiry, initial)
    try:
        # This check suffices for an embedded store, because its lock excludes a migration, and a store that was closed
        # after a failure is not reopened after a migration. The check also applies to commands and to the stores of
        # pools. ``LevelWatch`` repeats it after the process has published its record.
        check_served(storage.documents, storage.now())
    except BaseException:
        storage.close()
        raise
    return storage


def _probe(chosen: Settings, catalogue: Storage, uri: str) -> None:
    storage = _open_pool(chosen, catalogue, uri, None)
    try:
        storage.ping()
    finally:
        storage.close()


def _metrics(chosen: Settings, storage: Storage, clock: Clock) -> "Metrics":
    from zq.serving.metrics.counting import Metrics  # must be imported after multiprocess.begin

    return Metrics(
        storage,
        clock,
        store=chosen.storage.uri.partition(":")[0],
        engine=chosen.server.engine,
        max_waiters=chosen.max_waiters,
        max_streams=chosen.max_streams,
        options=chosen.metrics,
    )


def make_broker(
    chosen: Settings,
    storage: Storage,
    clock: Clock,
    events: Events,
    followers: Followers,
    pools: PoolStores | None = None,
) -> Broker:
    return Broker(
        storage,
        clock,
        chosen.limits,
        checksum=chosen.general.enable_checksum,
        delete_with_claim_id=chosen.transport.message_delete_with_claim_id,
        max_waiters=chosen.max_waiters,
        max_streams=chosen.max_streams,
        retention=chosen.topics.retention,
        queue_ttl=chosen.queue_ttl,
        events=events,
        patience=chosen.transport.storage_timeout,
        quota=chosen.quota if chosen.auth.strategy else None,
        share=chosen.quota.share,
        rates=Rates(max(chosen.threads, REQUESTS_AT_ONCE)),
        encryption_keys=read_keys(chosen.transport.message_encryption_key_file),
        max_counted=chosen.metrics.max_counted,
        followers=followers,
        pools=pools,
        audit_ttl=chosen.log.audit_ttl,
        extensions=EXTENSIONS,
    )


def _listen(chosen: Settings, pages: Mapping[str, probes.Page], metrics: probes.Page) -> None:
    """Start the separate HTTP listeners for health probes and for metrics, if they are configured.

    A listener is not started if its address is that of the main HTTP server, which then serves these pages itself.
    """
    main = chosen.server.bind, chosen.server.port
    if chosen.probes_address and not overlap(chosen.probes_address, main):
        where = f"Probes: http://{format_authority(*chosen.probes_address)}/readyz and /healthz."
        probes.serve("probes", *chosen.probes_address, pages, where)
    if chosen.metrics.port and not overlap((chosen.metrics.bind, chosen.metrics.port), main):
        pages = {"/metrics": metrics, "/healthz": probes.health}
        where = f"Metrics: http://{format_authority(chosen.metrics.bind, chosen.metrics.port)}/metrics."
        probes.serve("metrics", chosen.metrics.bind, chosen.metrics.port, pages, where)
