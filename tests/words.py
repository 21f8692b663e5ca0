# SPDX-License-Identifier: Apache-2.0
"""Words that the code must not use as names, because the field has another term or the word was ambiguous.

``tests/test_architecture.py`` rejects new uses, and ``bench.figures`` counts the names of a tree that still use them.
"""

import ast
import gc
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

SERVER = ("zq.storage", "zq.core", "zq.http", "zq.model", "zq.records", "zq.serving.server")
EMBEDDED = ("zq.storage.rocksdb", "zq.storage.ordered", "zq.storage.memory")
STORES = ("zq.storage.rocksdb.port", "zq.storage.rocksdb.store", "zq.storage.ordered.store", "zq.storage.memory")
MONGODB = ("zq.storage.mongodb",)
REDIS = ("zq.storage.redis",)


class Word(NamedTuple):
    """A word, its replacement, and the packages in which it is banned; elsewhere it is plain English.

    ``Name``: a class; ``NAME``: a constant; ``name.py``: a module or package; ``name()``: a function; ``name``: a
    function, module or parameter.
    """

    old: str
    new: str
    within: tuple[str, ...] = ("zq",)


class Name(NamedTuple):
    """A name in a module; ``kind`` is "class", "constant", "module", "function" or "parameter"."""

    kind: str
    text: str
    module: str


WORDS = (
    Word("held()", "locked", ("zq.storage.rocksdb.registry", "zq.storage.ordered.registry")),
    Word("known()", "locked", EMBEDDED),
    Word("settle()", "wait_durable, for what is no message", STORES),
    Word("sync()", "fsync", STORES),
    Word("Barrier", "GroupSync"),
    Word("barrier.py", "GroupSync in the store", ("zq.storage",)),
    Word("Combiner", "GroupCommit"),
    Word("Groups", "GroupCommit"),
    Word("combine.py", "concurrency", ("zq.storage",)),
    Word("grouping.py", "concurrency", ("zq.storage",)),
    Word("ask()", "submit", MONGODB),
    Word("turn()", "leader, followers", MONGODB),
    Word("Turns", "StripedLocks"),
    Word("Stripes", "StripedLocks"),
    Word("turns.py", "concurrency", ("zq.storage",)),
    Word("stripes.py", "concurrency", ("zq.storage",)),
    Word("Lead", "LeaderLease"),
    Word("leading.py", "LeaderLease", MONGODB),
    Word("Keeper", "StoreHandle"),
    Word("keeper.py", "StoreHandle", ("zq.storage",)),
    Word("Around", "EngineContext"),
    Word("Opened", "Session"),
    Word("opened.py", "Session", ("zq.storage",)),
    Word("Look", "ClaimAttempt"),
    Word("looks.py", "claims", ("zq.storage",)),
    Word("Terms", "ClaimRequest", EMBEDDED),
    Word("Wish", "ClaimRequest"),
    Word("Taker", "QueueClaimer"),
    Word("Takers", "Claimers"),
    Word("takers.py", "claims", ("zq.storage",)),
    Word("Front", "ReadyCursor (embedded), HeadHint (MongoDB)"),
    Word("front.py", "claims", ("zq.storage",)),
    Word("Quiet", "VisibilityIndex"),
    Word("quiet.py", "visibility_index", ("zq.storage",)),
    Word("mark()", "record", EMBEDDED),
    Word("wake()", "invalidate", EMBEDDED),
    Word("Ruins", "pending deletes"),
    Word("Remains", "tombstones"),
    Word("ruins.py", "reclaim", ("zq.storage",)),
    Word("remains.py", "reclaim", ("zq.storage",)),
    Word("leftovers.py", "reclaim", ("zq.storage",)),
    Word("doomed", "pending deletes", ("zq.storage",)),
    Word("fallen", "trimmed", ("zq.storage",)),
    Word("Remover", "lazy expiry"),
    Word("Sweeper", "active expiry"),
    Word("remover.py", "expiry", ("zq.storage",)),
    Word("sweeper.py", "expiry", ("zq.storage",)),
    Word("starts.py", "boot epoch", ("zq.storage",)),
    Word("LOST_TAIL", "EPOCH_STRIDE"),
    Word("halving.py", "binary_search", ("zq.storage",)),
    Word("Pins", "reservations"),
    Word("pins.py", "reserve, unreserve", ("zq.storage",)),
    Word("unpin()", "unreserve"),
    Word("Forsaken", "Aborted"),
    Word("Live", "LogSubscriber"),
    Word("live.py", "LogSubscriber", ("zq.storage",)),
    Word("News", "Notice"),
    Word("tell", "notify, report, print"),
    Word("told", "notified, reported"),
    Word("Told", "StoreCollector (metrics)"),
    Word("Bell", "condition, event"),
    Word("ring", "notify, wake", ("zq.core",)),
    Word("Line", "WaitQueue (broker), Connection (Redis)", ("zq.core", *REDIS)),
    Word("line", "wait queue (broker), connection (Redis)", ("zq.core", *REDIS)),
    Word("ways.py", "moves", REDIS),
    Word("refusals.py", "errors", REDIS),
    Word("guard.py", "startup", ("zq.storage",)),
    Word("lines.py", "redis-py's pool", REDIS),
    Word("Lines", "redis-py's pool", REDIS),
    Word("day", "bucket of the expiry schedule", REDIS),
    Word("expect", "schedule_expiry", REDIS),
    Word("Share", "SettlementEffect", ("zq.storage",)),
    Word("Order", "SettleRequest", ("zq.storage",)),
    Word("place", "doc_id, offset, slot", ("zq.storage", "zq.core")),
    Word("Once", "IdempotencyKey"),
    Word("once", "idempotency key", SERVER),
    Word("life()", "Lease.extend"),
    Word("Held", "ClaimRef"),
    Word("View", "ListFilter"),
    Word("Landmark", "Edge"),
    Word("Reading", "LogSlice"),
    Word("RecordController", "DocumentController"),
    Word("Record", "Document; message, history entry", SERVER),
    Word("RecordRef", "DocumentRef"),
    Word("records.py", "documents", ("zq",)),
    Word("Book", "RulesCache"),
    Word("Recent", "cachetools.TTLCache"),
    Word("recent.py", "cachetools", ("zq.core",)),
    Word("Lifetimes", "DefaultTtls"),
    Word("lifetimes.py", "DefaultTtls", ("zq.core",)),
    Word("Vocabulary", "MetadataSchema"),
    Word("vocabulary.py", "MetadataSchema", ("zq.core",)),
    Word("Named", "MetadataResource", ("zq.core",)),
    Word("Thing", "Stored", ("zq.core",)),
    Word("Catalogue", "ResourceStore"),
    Word("Watch", "Events"),
    Word("Unwatched", "Events"),
    Word("Sweeping", "Events"),
    Word("Uncounted", "Events"),
    Word("Meter", "Events"),
    Word("Unmetered", "Events"),
    Word("Observe", "Events"),
    Word("Steps", "Events", MONGODB),
    Word("Journal", "RequestLog"),
    Word("unread.py", "write_timeout", ("zq.http",)),
    Word("callers.py", "connections", ("zq.http",)),
    Word("bounds.py", "limits", ("zq.http",)),
    Word("pending.py", "buffered", ("zq.serving.metrics",)),
    Word("measured.py", "timed", ("zq.serving.metrics",)),
    Word("shared.py", "multiprocess", ("zq.serving.metrics",)),
    Word("pace.py", "maintenance.throttle"),
    Word("Load", "LatencyMonitor"),
    Word("upkeep.py", "maintenance"),
    Word("Desk", "ConsumerState"),
    Word("Errand", "PendingRequest"),
    Word("Habits", "ConsumerOptions"),
    Word("Loop", "ConsumerBase", ("zq.client",)),
    Word("Keepers", "maintenance threads"),
    Word("Runs", "Transport"),
    Word("Awaits", "AsyncTransport"),
    Word("unsure", "may_be_applied", ("zq.client",)),
    Word("Again", "Retry"),
    Word("at_once", "concurrency", ("zq.client",)),
    Word("notes.py", "resume_file", ("zq.cli",)),
    Word("past.py", "history", ("zq.cli", "zq.storage")),
    Word("values.py", "param_types", ("zq.cli",)),
    Word("edge.py", "cli_support", ("zq.spark",)),
    Word("transfer.py", "export_import", ("zq.cli",)),
    Word("commands.py", "command", ("zq.cli",)),
    Word("beside", "in_background", ("zq.spark",)),
    Word("ahead", "prefetched", ("zq.spark",)),
    Word("carried", "inlined", ("zq.spark",)),
    Word("mending.py", "bisection", ("zq.spark",)),
    Word("heart", "heartbeat", ("zq.spark",)),
    Word("judge.py", "history checker", ("tests.faults", "tests.campaign")),
    Word("evidence.py", "violations", ("tests.faults", "tests.campaign")),
    Word("rails", "schedule", ("tests.faults", "tests.campaign")),
    Word("Rails", "schedule", ("tests.faults", "tests.campaign")),
    Word("planted.py", "mutants", ("tests.faults", "tests.campaign")),
    Word("conveyor.py", "token ring", ("tests.faults", "tests.campaign")),
    Word("realm", "project prefix", ("tests",)),
    Word("either.py", "client_kinds", ("tests.client",)),
)


def parsed(text: str) -> ast.Module:
    """Return the syntax tree of a module.

    CPython 3.11 fails (gh-106905) if another thread parses at the same time, which garbage collection allows.
    """
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        gc.enable()


def names(root: Path) -> Iterator[Name]:
    """Yield all names of ``zq`` and ``tests`` below ``root``, without leading underscores."""
    for file in sorted([*(root / "zq").rglob("*.py"), *(root / "tests").rglob("*.py")]):
        parts = file.relative_to(root).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        module = ".".join(parts)
        yield Name("module", parts[-1].lstrip("_"), module)
        tree = parsed(file.read_text())
        for kind, text in (*constants(tree), *definitions(tree)):
            yield Name(kind, text.lstrip("_"), module)


def constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the upper-case names that a module assigns."""
    for node in tree.body:
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        yield from (("constant", each.id) for each in targets if isinstance(each, ast.Name) and each.id.isupper())


def definitions(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield classes, functions and parameters at any depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield "class", node.name
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield "function", node.name
            given = node.args
            yield from (("parameter", each.arg) for each in (*given.posonlyargs, *given.args, *given.kwonlyargs))


def meant(word: Word) -> tuple[frozenset[str], str]:
    """Return the kinds of names that a word covers, and the name."""
    if word.old.endswith(".py"):
        return frozenset({"module"}), word.old.removesuffix(".py")
    if word.old.endswith("()"):
        return frozenset({"function"}), word.old.removesuffix("()")
    if word.old.isupper():
        return frozenset({"constant"}), word.old
    if word.old[0].isupper():
        return frozenset({"class"}), word.old
    return frozenset({"function", "module", "parameter"}), word.old


def used(found: Iterable[Name]) -> dict[str, list[str]]:
    """Return each old word that is used, with the modules of its uses."""
    by_text: dict[str, list[Name]] = {}
    for name in found:
        by_text.setdefault(name.text, []).append(name)
    uses = {}
    for word in WORDS:
        kinds, text = meant(word)
        same = [name for name in by_text.get(text, []) if name.kind in kinds]
        modules = [
            name.module for name in same if f"{name.module}.".startswith(tuple(f"{home}." for home in word.within))
        ]
        if modules:
            uses[word.old] = modules
    return uses
