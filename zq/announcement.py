# SPDX-License-Identifier: Apache-2.0
"""The first lines of a server's log: what starts, on which store, where, and whom it believes."""

import os
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

from zq import __version__
from zq.engines.listening import authority
from zq.secrets import without_secrets
from zq.settings import Settings
from zq.settings.exposure import is_loopback


def lines(chosen: Settings) -> Iterator[str]:
    """A sentence for each, without passwords."""
    yield f"zq {__version__} starts under {chosen.engine} at http://{authority(chosen.bind, chosen.port)}."
    yield f"Store: {_store(chosen.uri)}."
    if chosen.metrics_port:
        yield f"Metrics: http://{authority(chosen.metrics_bind, chosen.metrics_port)}/metrics."
    if chosen.probes_bind:
        yield f"Probes: http://{authority(*chosen.probes_bind)}/readyz, and /healthz there."
    limits = chosen.limits
    yield (
        f"Defaults of every project: messages live {limits.default_message_ttl} s, "
        f"claims {limits.default_claim_ttl} s and their grace {limits.default_claim_grace} s."
    )
    reach = "this machine only" if is_loopback(chosen.bind) else "other machines"
    yield f"Callers are believed: no tokens are checked; reachable from {reach}."


def _store(uri: str) -> str:
    """A store as its owner finds it again: of the embedded one the folder too, where the URI leaves that open."""
    parts = urlsplit(uri)
    path = unquote(parts.path)
    if parts.scheme == "rocksdb" and not path.startswith("/"):
        return f"{uri} (the folder {os.path.abspath(path)})"
    return without_secrets(uri)
