# SPDX-License-Identifier: Apache-2.0
"""Connections: what has come of each one's next request, what is left of its last answer, and until when; how many of
them a process has, and which is closed in favour of another.
"""

import socket
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, Final

from msgspec import Struct

from zq.engines import listening
from zq.engines.gthread import answers, parsing
from zq.engines.gthread.parsing import CHUNKED, Chunks, RawRequest
from zq.engines.tls import TlsSocket
from zq.events import Refusal, refused
from zq.model.identity import CERTIFICATE
from zq.settings import Settings

# Bytes that are read at a time.
RECEIVED: Final = 65536
# Bytes a second that a body must come with, and an answer be taken with, beyond the time that each has anyway.
SLOWEST: Final = 10_000
# For a client that waits for it before it sends a body.
CONTINUE: Final = memoryview(b"HTTP/1.1 100 Continue\r\n\r\n")
# Seconds after which a connection that waits for its client may be closed in favour of a new one.
SETTLED: Final = 1.0
# One in so many of those is closed at a time: a flood of new ones must not look for one each.
SHARE: Final = 16
# Bytes of requests that are not whole and of answers that are not taken, of all connections.
MAX_BUFFERED: Final = 256 << 20
# The sentence of a 503 to a new connection.
FULL: Final = "The server has too many connections. Try again later."


class State(Enum):
    """Whose a connection is, and what is expected of it."""

    IDLE = auto()
    """The loop's: nothing of a request has come."""
    HEAD = auto()
    """The loop's: a part of a request's head has come."""
    BODY = auto()
    """The loop's: the head has come, and of the body a part or nothing."""
    WORK = auto()
    """A thread's, or in the queue before one."""
    SENDING = auto()
    """The loop's: the client has yet to take a part of the answer."""
    LINGERING = auto()
    """The loop's: all is said, and what still comes is dropped for a moment, lest the client lose the answer."""


# The states in which the client is to send something.
READING: Final = frozenset({State.IDLE, State.HEAD, State.BODY})
# By state, what answers a client whose time is up; in other states nothing does.
LATE: Final = {
    State.HEAD: "The head of the request did not come in time.",
    State.BODY: "The body did not come in time.",
}
# What it is counted as.
LATENESS: Final = {
    State.HEAD: Refusal.HEAD,
    State.BODY: Refusal.BODY,
    State.SENDING: Refusal.ANSWER,
}


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    """In seconds, but for ``body``: bytes that a request's body may have."""

    head: float
    body_time: float
    send: float
    idle: float
    body: int


class Connection:
    """Owned by one thread at a time: the loop's, or while in ``WORK`` the one that answers."""

    def __init__(self, sock: socket.socket, peer: Any, server: Any, cfg: Any, limits: ConnectionLimits) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        self.address = b""
        """Under which the connections of its peer are counted."""
        self.server = server
        self.request: RawRequest | None = None
        self.state = State.IDLE
        self.unsent: memoryview | None = None
        self.judged = True
        """Whether it is known if the request's body is to be read; asked once that is waited for."""
        self.withheld = False
        self.unknown = False
        """The body is withheld because the store could not be asked for the credential."""
        """Whether its body is not to be read."""
        self.unread = False
        """Whether something of it is left, which nobody reads."""
        self.slowed = False
        """Whether its last request was refused as too much."""
        self.last = False
        """Whether the connection ends with what is unsent."""
        self.moved = time.monotonic()
        """When the client last did something."""
        self.deadline = self.moved + limits.head
        self._cfg = cfg
        self._limits = limits
        self._data = bytearray()
        self._began = self.moved
        self._searched = 0
        self._chunks: Chunks | None = None
        self._requests = 0

    @property
    def silent(self) -> bool:
        """Whether nothing of any request has come."""
        return not self._requests and not self._data

    @property
    def buffered(self) -> int:
        """Bytes that are buffered for the client."""
        return len(self._data) + len(self._chunks.body if self._chunks else b"") + len(self.unsent or b"")

    @property
    def pipelined(self) -> bool:
        """Whether something of the next request has come already."""
        return bool(self._data)

    @property
    def undecoded(self) -> bool:
        """Whether ``advance`` is to be called again, though nothing more has come."""
        return self._chunks is not None and self._chunks.more

    def receive(self) -> bool:
        """Read what is there; False if the client has hung up."""
        try:
            data = self.sock.recv(RECEIVED)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._data += data
        self.moved = time.monotonic()
        return bool(data)

    def advance(self) -> bool:
        """Whether a request is whole, or as much of it as will be read; if not, ``deadline`` says until when it must
        be. Raises ``Refused``."""
        if self.request is None and not self._head():
            return False
        if not self._body():
            return False
        self.state = State.WORK
        return True

    def _head(self) -> bool:
        if not self._data:
            return False
        if self.state is State.IDLE:
            self.state = State.HEAD
            if self._requests:  # the first one's time runs from the beginning
                self.deadline = self.moved + self._limits.head
            self._searched = 0
            if self._data.startswith(b"\r\n"):  # one empty line before a request is borne with
                del self._data[:2]
        end = parsing.head_ends(self._data, self._searched)
        if not end:
            self._searched = len(self._data)
            return False
        self._requests += 1
        self.judged, self.withheld, self.unread = True, False, False
        self.request = parsing.request(self._cfg, bytes(self._data[:end]), self.peer, self._requests)
        del self._data[:end]
        if self.request.length == CHUNKED:
            self._chunks = Chunks(self._limits.body, self.request.check_trailers)
        return True

    def _body(self) -> bool:
        """Whether the body is there, or is too large to be waited for."""
        request, bound = self.request, self._limits.body
        assert request is not None
        if self._chunks:
            enough = self._chunks.take(self._data)
        elif request.length > bound:
            enough = True
        else:
            enough = len(self._data) >= request.length
        if not enough:
            self._wait_for_body(request)
        return enough

    def _wait_for_body(self, request: RawRequest) -> None:
        if self.state is not State.BODY:
            self.state = State.BODY
            self.judged = False
            self._began = self.moved
        came = len(self._data) + (self._chunks.taken if self._chunks else 0)
        self.deadline = self._began + self._limits.body_time + came / SLOWEST

    def head(self) -> dict[str, Any]:
        """The request as an environment of WSGI with what ``zq.http.heads.Judge`` goes by."""
        assert self.request is not None
        environ: dict[str, Any] = {"HTTP_" + name.replace("-", "_"): value for name, value in self.request.headers}
        environ["PATH_INFO"], environ["REQUEST_METHOD"] = self.request.path, self.request.method
        environ["QUERY_STRING"], environ["RAW_URI"] = self.request.query, self.request.uri
        environ["REMOTE_ADDR"] = self.peer[0] if isinstance(self.peer, tuple) else ""
        if isinstance(self.sock, TlsSocket):
            environ[CERTIFICATE] = self.sock.caller()
        return environ

    def want_body(self) -> None:
        """The client may send its body."""
        self.judged = True
        self.state = State.BODY
        if self.request is not None and self.request.expects:
            answers.send(self.sock, CONTINUE)

    def withhold_body(self, unknown: bool = False) -> None:
        """Have the request answered without its body: nothing of it is read, and nothing follows it."""
        self.judged = self.withheld = True
        self.unknown = unknown
        self.state = State.WORK
        self._data.clear()
        self._chunks = None

    def take_body(self) -> RawRequest:
        """The request with its body; for the thread that answers it."""
        request, bound = self.request, self._limits.body
        assert request is not None
        length = request.length
        if self._chunks:
            request.take_body(self._chunks.body, self._chunks.incomplete)
            self._chunks = None
        elif length > bound or self.withheld:
            request.take_body(b"", incomplete=True)
        else:
            request.take_body(bytes(self._data[:length]))
            del self._data[:length]
        self.unread = request.incomplete
        return request

    def next(self) -> None:
        """Wait for another request."""
        self.request = None
        self.moved = time.monotonic()
        self.deadline = self.moved + self._limits.idle
        self.state = State.IDLE

    def send_later(self, rest: memoryview, last: bool) -> None:
        """Have the loop send the rest of an answer; ``last``: nothing follows it."""
        self.unsent, self.last = rest, last
        self.request = None
        self._began = self.moved = time.monotonic()
        self._allow(rest)
        self.state = State.SENDING

    def send(self) -> bool:
        """Send what the client takes now; True once it has all. Raises ``OSError``."""
        assert self.unsent is not None
        sent = answers.send(self.sock, self.unsent)
        self.unsent = self.unsent[sent:] if sent < len(self.unsent) else None
        if sent:
            self.moved = time.monotonic()
        return self.unsent is None

    def _allow(self, rest: memoryview) -> None:
        """Time for all of an answer; a client that takes nothing of it has less, see ``late``."""
        self.deadline = self._began + self._limits.send + len(rest) / SLOWEST

    def linger(self, seconds: float) -> None:
        """Say that no more comes, and drop what still does; of a body that is left unread, leave it to the kernel."""
        self.state = State.LINGERING
        self.deadline = time.monotonic() + seconds
        self._data.clear()
        self._chunks = None
        self.request = None
        self.sock.shutdown(socket.SHUT_WR)

    def drop(self) -> bool:
        """Drop what has come; False once the client has hung up."""
        try:
            return bool(self.sock.recv(RECEIVED))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def late(self, now: float) -> bool:
        """Whether the client has had its time."""
        if self.state is State.WORK:
            return False
        return now > self.deadline or (self.state is State.SENDING and now > self.moved + self._limits.send)


class Connections:
    """Who is here, by descriptor; used by the loop only, but that others may look on."""

    def __init__(self, chosen: Settings) -> None:
        self.taken: dict[int, Connection] = {}
        self._most = listening.room_for(chosen.max_connections)
        self._most_of_address = chosen.max_connections_per_address
        self._counts_addresses = not chosen.behind_proxy
        self._addresses: Counter[bytes] = Counter()

    def take(self, connection: Connection) -> bool:
        """Take in a new connection; False if there is no room for it, and it has been refused."""
        connection.address = listening.address(connection.peer)
        crowded = self._counts_addresses and self._addresses[connection.address] >= self._most_of_address
        full = crowded or len(self.taken) >= self._most
        if full and not self.make_room(connection.address if crowded else None):
            _turn_away(connection)
            return False
        self._addresses[connection.address] += 1
        self.taken[connection.fd] = connection
        return True

    def has(self, connection: Connection) -> bool:
        """Whether it has not been closed. Its descriptor may be that of another by now."""
        return self.taken.get(connection.fd) is connection

    def close(self, connection: Connection) -> None:
        """Its place is free again. May be called twice."""
        if not self.has(connection):
            return
        del self.taken[connection.fd]
        self._addresses[connection.address] -= 1
        if self._addresses[connection.address] <= 0:
            del self._addresses[connection.address]
        connection.sock.close()  # epoll forgets it

    def make_room(self, address: bytes | None = None) -> bool:
        """Close some connections, of an address if one is given, that have waited longest for their clients."""
        before = time.monotonic() - SETTLED
        waiting = [
            each
            for each in list(self.taken.values())
            if each.state in READING and each.moved < before and address in (None, each.address)
        ]
        waiting.sort(key=lambda each: each.moved)
        for connection in waiting[: 1 + len(waiting) // SHARE]:
            refused(Refusal.CONNECTIONS)
            self.close(connection)
        return bool(waiting)

    def bound_memory(self) -> None:
        """Close connections that hold too much together, those first whose clients have done nothing for longest."""
        connections = list(self.taken.values())
        excess = sum(each.buffered for each in connections) - MAX_BUFFERED
        if excess > 0:
            for connection in _longest_still(connections):
                if excess > 0 and connection.buffered and connection.state is not State.WORK:
                    excess -= connection.buffered
                    refused(Refusal.MEMORY)
                    self.close(connection)


def _longest_still(connections: Iterable[Connection]) -> list[Connection]:
    return sorted(connections, key=lambda each: each.moved)


def _turn_away(connection: Connection) -> None:
    refused(Refusal.CONNECTIONS)
    connection.receive()  # what is unread when a connection is closed takes the answer with it
    with suppress(OSError):
        answers.send(connection.sock, answers.refusal(HTTPStatus.SERVICE_UNAVAILABLE, FULL, retry=True))
        connection.sock.shutdown(socket.SHUT_WR)
    connection.sock.close()
