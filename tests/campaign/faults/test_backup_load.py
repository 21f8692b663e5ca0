# SPDX-License-Identifier: Apache-2.0
"""Backups every five seconds for a minute under load (operations contract, section 6)."""

from pathlib import Path

import pytest

from tests.faults.test_backup import MAX_PAUSE, back_up_under_load

pytestmark = pytest.mark.one_store


def test_a_backup_every_five_seconds_pauses_the_server_only_briefly(tmp_path: Path) -> None:
    """Each backup restores with all acknowledged messages."""
    target = tmp_path / "backups"
    target.mkdir()
    pauses = back_up_under_load(f"rocksdb://{tmp_path}/store", target, tmp_path, seconds=60, every=5)
    assert max(pauses) < MAX_PAUSE
