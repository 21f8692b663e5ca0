# SPDX-License-Identifier: Apache-2.0
"""The RocksDB options of a store and its families, and the compaction filter.

**Filter.** RocksDB's TTL compaction filter removes expired values. The last 4 bytes of a value are a little-endian time
in seconds. A compaction drops the entry if the machine's clock is more than one second past that time.

**Loading.** The binding cannot set the filter, but it can load an options file that names the filter's class. RocksDB
knows that name only after the process has opened a database with a TTL. If the name is unknown, RocksDB ignores the
filter silently, so check ``is_active`` after a store is opened.

**Safety.** The filter removes data permanently, even if the clock is wrong, and compactions may start while a store is
being opened. The family with the filter is therefore opened with compactions disabled. After the store and the clock
have been checked, ``COMPACTIONS_ON`` enables its compactions.
"""

import atexit
import ctypes
import fcntl
import json
import logging
import os
import shutil
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from rocksdict import AccessType, BlockBasedOptions, Cache, DBCompressionType, Options, Rdict

MIB: Final = 1 << 20


def trim_heap() -> None:
    """Return freed memory to the operating system, if the C library is glibc.

    glibc keeps freed memory in a heap per thread. Several threads fill the write buffers in turn, so the process would
    otherwise occupy about three times the size of the write buffers.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Tuning:
    """The RocksDB options of one store, whose column families share a block cache."""

    def __init__(self) -> None:
        self._cache = Cache(64 * MIB)

    def store(self) -> Options:
        options = self.family(Options(raw_mode=True))
        options.enable_statistics()
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        options.set_max_background_jobs(2)
        options.set_max_total_wal_size(256 * MIB)
        options.set_db_write_buffer_size(256 * MIB)
        options.set_keep_log_file_num(5)
        options.set_max_log_file_size(8 * MIB)
        return options

    def family(self, options: Options) -> Options:
        """Set the RocksDB options that every column family uses, and return ``options``."""
        table = BlockBasedOptions()
        table.set_block_cache(self._cache)
        table.set_bloom_filter(10, False)
        options.set_block_based_table_factory(table)
        options.set_compression_type(DBCompressionType.lz4())
        options.set_level_compaction_dynamic_level_bytes(True)
        options.set_write_buffer_size(64 * MIB)
        # Compact files that consist mostly of tombstones: a queue leaves one tombstone per message.
        options.add_compact_on_deletion_collector_factory(10000, 5000, 0.5)
        return options


LOG = logging.getLogger(__name__)
FACTORY: Final = "TtlCompactionFilterFactory"
OPTIONS: Final = f"""\
[Version]
  rocksdb_version=10.4.2
  options_file_version=1.1
[DBOptions]
[CFOptions "default"]
[TableOptions/BlockBasedTable "default"]
[CFOptions "filtered"]
  compaction_filter_factory={{id={FACTORY};ttl=1;}}
  disable_auto_compactions=true
[TableOptions/BlockBasedTable "filtered"]
"""
BINDING: Final = {"raw_mode": True, "prefix_extractors": {}}

UNFILTERED: Final = (
    "The compaction filter is NOT active: the installed rocksdict cannot load it. Only the other layers "
    "([expiry] sweep, delete_on_read) remove expired messages, so a large backlog frees its space later."
)

# Options that enable the compactions of a family.
COMPACTIONS_ON: Final = {"disable_auto_compactions": "false"}
# Options that disable the compactions of a family. Writers are then not blocked by a growing number of files.
COMPACTIONS_OFF: Final = {"disable_auto_compactions": "true"}

PREFIX: Final = "zq-options-"
# The name of a file in the folder that is locked while the folder is in use.
OWNER: Final = "owner"

_registering = threading.Lock()
# The folder from which this process loads the options, as a list of one item; empty until the folder is created.
_registered: list[str] = []


def filtered_options() -> Options:
    """Return RocksDB options with the TTL compaction filter and with compactions disabled."""
    try:
        families: dict[str, Options] = Options.load_latest(_register_filter())[1]
        return families["filtered"]
    except Exception:  # the binding raises no subclass, and another version of it may not support these options
        LOG.exception("The compaction filter's options cannot be loaded.")
        return Options(raw_mode=True)


def is_active(path: Path, family: str) -> bool:
    """Return whether RocksDB has opened the family with the TTL filter, according to its latest options file."""
    written = path.glob("OPTIONS-*[0-9]")
    newest = max(written, key=lambda file: int(file.name.rpartition("-")[2]), default=None)
    section = ""
    for line in map(str.strip, newest.read_text().splitlines() if newest is not None else ()):
        if line.startswith("["):
            section = line
        elif section == f'[CFOptions "{family}"]' and line.startswith("compaction_filter_factory="):
            return FACTORY in line
    return False


def schedule(seconds: int) -> dict[str, str]:
    """Return options that make RocksDB compact files ``seconds`` after they were written.

    An idle store never checks the age of its files. Setting these options makes RocksDB check all files immediately,
    even if the value is unchanged.
    """
    return {"periodic_compaction_seconds": str(seconds), "ttl": str(seconds)}


def _create_folder() -> str:
    for owner in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{OWNER}"):
        with suppress(OSError), owner.open("r+") as file:  # fails for another user's or a running process's folder
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(owner.parent, ignore_errors=True)
    made = tempfile.mkdtemp(prefix="zq-starting-")
    locked = os.open(f"{made}/{OWNER}", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(locked, fcntl.LOCK_EX)  # until this process exits
    folder = made.replace("zq-starting-", PREFIX)
    os.rename(made, folder)  # after locking, so that no other process finds the folder unlocked and removes it
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _register_filter() -> str:
    """Register the TTL filter with RocksDB once per process, and return the folder of its options file."""
    with _registering:
        if not _registered:
            folder = _create_folder()
            Rdict(f"{folder}/store", Options(raw_mode=True), access_type=AccessType.with_ttl(1)).close()
            shutil.rmtree(f"{folder}/store")
            Path(folder, "OPTIONS-000001").write_text(OPTIONS)
            Path(folder, "rocksdict-config.json").write_text(json.dumps(BINDING))
            _registered.append(folder)
        return _registered[0]
