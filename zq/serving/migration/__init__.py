# SPDX-License-Identifier: Apache-2.0
"""The command ``zq-server migrate``, which moves projects to another store. The stores may have different drivers.

The command copies page by page. A record in the target contains the position of the copy, so that an interrupted
migration can be resumed. The target ignores items that it already has. At the end, the command compares both stores.

During a migration, no server may use the stores, not even in the mode ``read_only``, in which a server still expires
messages and delivers notifications. A server updates a timestamp in a networked store every two seconds, so the command
can detect running servers. It may not detect a server that uses a store as a pool. The command also writes a record to
each store, so that no server starts on the store. Then it looks for servers again, because a server may start at the
same time; see ``zq.serving.level_watch``.

If two runs use the same networked stores, the later one continues the migration, and the earlier one stops.

There is no file format for exported messages, because ``migrate`` and backups move all data, and a file would be a
third copy of the same state that must be encrypted, verified and kept compatible.

The modules are:

- ``command``: the arguments, the stores that the command opens, and its exit code;
- ``procedure``: the steps of a migration: check, begin, copy, compare and finish;
- ``record``: the records in both stores, which servers check when they start;
- ``stores``: pages and failures of the stores, and the servers that use them;
- ``transactions``: stages and commits, which cannot be moved;
- ``comparison``: the comparison of both stores.
"""
