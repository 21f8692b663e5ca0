# SPDX-License-Identifier: Apache-2.0
"""How RocksDB is set up, for a whole store and for each of its families."""

from typing import Final

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, Options

MIB: Final = 1 << 20


class Tuning:
    """Of one store, whose families share a cache."""

    def __init__(self) -> None:
        self._cache = Cache(64 * MIB)

    def store(self) -> Options:
        """The options of the store itself."""
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
        """The same options, with what all families have in common."""
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
