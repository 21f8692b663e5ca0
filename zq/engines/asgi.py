# SPDX-License-Identifier: Apache-2.0
"""The application under Granian: an event loop waits for clients, threads ask the store.

Granian reads heads; here bodies are read, within a bound and a deadline (``intake``), and answers are sent in pieces
(``sending``), bounded together (``backlog``). So no client holds a thread, however slow it is, and neither does a
request that waits for messages, or a stream (``zq.http.suspension``).
"""

from typing import Any

from zq.engines.environ import environment
from zq.engines.exchange import Exchange
from zq.engines.intake import Receive
from zq.engines.process import Answer, Gone, Process
from zq.engines.sending import Send


class Adapter:
    """An application of ASGI around one of WSGI."""

    def __init__(self, process: Process) -> None:
        self.process = process

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await serve(Exchange(self.process, scope["client"], environment(scope), receive, send))


async def serve(exchange: Exchange, answer: Answer | None = None) -> None:
    """Serve a request to its end; ``answer``: from there on where it was begun on a thread."""
    try:
        await (exchange.run() if answer is None else exchange.go_on(answer))
    except Gone:
        pass
    finally:
        exchange.close()
