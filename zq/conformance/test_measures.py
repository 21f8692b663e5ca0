# SPDX-License-Identifier: Apache-2.0
"""Metrics of a store besides those of its queues: known names, true values, and counters that never fall."""

import pytest

from zq.conformance.builders import Scene, configure
from zq.model.expiry import Expiry

pytestmark = [pytest.mark.needs_part("measures"), pytest.mark.usefixtures("by_sweeps_alone"), pytest.mark.fresh_store]

KNOWN = {
    "expired_removed_total",
    "expired_waiting",
    "store_messages",
    "sweep_lag_seconds",
    "delete_queue_length",
    "delete_queue_capacity",
    "delete_queue_dropped_total",
    "disk_free_bytes",
    "disk_size_bytes",
    "compaction_filter_active",
    "store_bytes",
    "store_limit_bytes",
    "store_pending_compaction_bytes",
    "store_running_compactions",
    "store_background_errors_total",
    "backup_age_seconds",
    "backup_pause_seconds",
    "store_corruptions_total",
    "store_stall_seconds_total",
    "store_compacted_bytes_total",
    "store_syncs_total",
    "store_transactions_total",
    "object_checkpoint_age_seconds",
    "object_commits_total",
    "object_epoch",
    "object_position",
    "object_proof_age_seconds",
    "object_requests_total",
    "object_restore_seconds",
    "object_upload_seconds_total",
    "object_uploaded_bytes_total",
    "object_uploads_total",
    "object_waiting_bytes",
}
EVERYWHERE = {"expired_removed_total", "expired_waiting", "store_messages", "sweep_lag_seconds"}


def figure(scene: Scene, name: str) -> float:
    """Return the sum of a metric over its labels."""
    return sum(measure.value for measure in scene.storage.measures(scene.now) if measure.name == name)


def test_every_metric_is_known_and_reported_once(scene: Scene):
    """Dashboards and alerts use these names. No name and labels occur twice, and no value is negative."""
    scene.post(3)
    told = list(scene.storage.measures(scene.now))
    names = {measure.name for measure in told}
    assert EVERYWHERE <= names <= KNOWN
    series = [(measure.name, measure.labels) for measure in told]
    assert len(series) == len(set(series))
    assert [measure for measure in told if measure.value < 0] == []
    layers = {labels for name, labels in series if name == "expired_removed_total"}
    assert layers <= {(("layer", layer),) for layer in ("read", "sweep", "filter")}
    assert (("layer", "sweep"),) in layers
    assert all(labels[0][0] == "part" for name, labels in series if name == "store_bytes")


def test_an_empty_store_has_nothing_to_remove(scene: Scene):
    """The store reports neither expired messages nor a lag."""
    scene.reclaimed()
    assert (figure(scene, "expired_waiting"), figure(scene, "sweep_lag_seconds")) == (0, 0)
    scene.post(3, ttl=60)
    scene.tick(59.999)
    assert (figure(scene, "expired_waiting"), figure(scene, "sweep_lag_seconds")) == (0, 0)


def test_expired_messages_are_reported_with_their_lag(scene: Scene):
    """The lag grows from the first expiry on. A round ends it and counts the removed messages."""
    scene.post(10, ttl=60)
    scene.post(4, ttl=90)
    scene.post(2)
    removed = figure(scene, "expired_removed_total")
    scene.tick(60)
    assert figure(scene, "expired_waiting") == 10
    scene.tick(30)
    assert figure(scene, "expired_waiting") == 14
    assert 29.9 <= figure(scene, "sweep_lag_seconds") <= 30.1
    assert figure(scene, "expired_removed_total") == removed
    assert scene.reclaimed() == 14
    assert (figure(scene, "expired_waiting"), figure(scene, "sweep_lag_seconds")) == (0, 0)
    assert figure(scene, "expired_removed_total") == removed + 14


def test_a_store_that_does_not_sweep_reports_a_growing_lag(scene: Scene):
    configure(scene.storage, Expiry(sweep=False, delete_on_read=False))
    scene.post(6, ttl=60)
    scene.tick(600)
    scene.reclaimed()
    assert figure(scene, "expired_waiting") == 6
    assert 539.9 <= figure(scene, "sweep_lag_seconds") <= 540.1


def test_deleted_purged_and_popped_messages_do_not_count_as_expired(scene: Scene):
    """Only messages whose ttl has passed count as expired."""
    removed = figure(scene, "expired_removed_total")
    posted = scene.post(9)
    scene.delete(posted[0])
    scene.pop(2)
    scene.storage.queues.purge(scene.queue)
    scene.at("other").post(3)
    scene.storage.queues.delete(scene.at("other").queue)
    scene.reclaimed()
    assert figure(scene, "expired_removed_total") == removed
    assert (figure(scene, "expired_waiting"), figure(scene, "sweep_lag_seconds")) == (0, 0)


def test_messages_removed_by_reads_count_as_removed(scene: Scene):
    """A message counts once, whichever layer removes it."""
    configure(scene.storage, Expiry(delete_on_read=True))
    removed = figure(scene, "expired_removed_total")
    scene.post(25, ttl=60)
    scene.tick(60)
    assert scene.claim() is None
    assert scene.walk() == []
    scene.reclaimed()
    assert figure(scene, "expired_waiting") == 0
    assert figure(scene, "expired_removed_total") == removed + 25
