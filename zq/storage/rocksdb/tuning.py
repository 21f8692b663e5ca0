# SPDX-License-Identifier: Apache-2.0
"""How RocksDB is set up, for a whole store and for each of its families; and its compaction filter.

Expired values are also removed by RocksDB's own compaction filter, without Python.

The filter reads the last 4 bytes of a value as seconds, little-endian, and drops the entry in a compaction when these
+ 1 have passed by the machine's clock. The binding has no setter for it, but it loads options from a file that names
the filter's class. RocksDB knows that name only once the process has opened a database with a time to live; else it
leaves the filter out and says nothing, so a caller that opens a store asks ``is_active`` afterwards.

What it takes is gone for good, by whatever clock. So the family is opened with its compactions held back: RocksDB
begins with those that wait before the opening returns. They are let ``GO`` once store and clock have been checked.
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
    """Give freed memory back to the system, where glibc is what has it.

    That keeps what was freed in the heaps of the threads that allocated it: write buffers that the threads of a server
    filled in turn would leave about three times their size.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Tuning:
    """Of one store, whose families share a cache."""

    def __init__(self) -> None:
        self._cache = Cache(64 * MIB)

    def store(self) -> Options:
        """Return the options of the store."""
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
        """Return the options of a family."""
        table = BlockBasedOptions()
        table.set_block_cache(self._cache)
        table.set_bloom_filter(10, False)
        options.set_block_based_table_factory(table)
        options.set_compression_type(DBCompressionType.lz4())
        options.set_level_compaction_dynamic_level_bytes(True)
        options.set_write_buffer_size(64 * MIB)
        # A queue leaves a tombstone per message: files that are mostly tombstones compact by themselves.
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
    "The compaction filter is NOT active: the installed rocksdict does not load it. What expires is removed by the "
    "other layers alone ([expiry] sweep, delete_on_read); the space of a large backlog comes back later."
)

# Options to be set when the compactions of the filtered family may begin.
GO: Final = {"disable_auto_compactions": "false"}
# Options of a family that must not be compacted, for now or for good. Writers are not held up for the files that pile
# up meanwhile.
STOP: Final = {"disable_auto_compactions": "true"}

PREFIX: Final = "zq-options-"
# A file that is locked while the folder around it is in use.
OWNER: Final = "owner"

_arming = threading.Lock()
# The folder from which this process loads the options, once it is there.
_armed: list[str] = []


def filtered_options() -> Options:
    """Options of a family that carries the filter, its compactions held back; without both where they cannot load."""
    try:
        families: dict[str, Options] = Options.load_latest(_arm())[1]
        return families["filtered"]
    except Exception:  # all that the binding raises is of this class; another version of it may not know them
        LOG.exception("The compaction filter's options cannot be loaded.")
        return Options(raw_mode=True)


def is_active(path: Path, family: str) -> bool:
    """Whether the store that was opened last in this directory has the filter on the family, by RocksDB's own word."""
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
    """Options that have files compacted when nothing else asked for it so long; to be set while the store is open.

    To set them, even to what they are, makes RocksDB look for such files at once: an idle store never does by itself.
    """
    return {"periodic_compaction_seconds": str(seconds), "ttl": str(seconds)}


def _own_folder() -> str:
    """Create a temporary folder that is removed at exit; remove those of killed processes now."""
    for owner in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{OWNER}"):
        with suppress(OSError), owner.open("r+") as file:  # another user's, gone meanwhile, or a living process's
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(owner.parent, ignore_errors=True)
    made = tempfile.mkdtemp(prefix="zq-starting-")
    locked = os.open(f"{made}/{OWNER}", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(locked, fcntl.LOCK_EX)  # for as long as this process lives
    folder = made.replace("zq-starting-", PREFIX)
    os.rename(made, folder)  # no other process has seen it without its lock
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _arm() -> str:
    """Let RocksDB register the filter's class, and write the options, once per process: later a disk may be full."""
    with _arming:
        if not _armed:
            folder = _own_folder()
            Rdict(f"{folder}/store", Options(raw_mode=True), access_type=AccessType.with_ttl(1)).close()
            shutil.rmtree(f"{folder}/store")
            Path(folder, "OPTIONS-000001").write_text(OPTIONS)
            Path(folder, "rocksdict-config.json").write_text(json.dumps(BINDING))
            _armed.append(folder)
        return _armed[0]
