# SPDX-License-Identifier: Apache-2.0
"""How the bytes of a connection become requests, wherever they are cut."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest
from gunicorn.config import Config
from gunicorn.http.body import ChunkedReader

from zq.engines.gthread import parsing
from zq.engines.gthread.parsing import END, STEP, Chunks, Refused

pytestmark = pytest.mark.slow

BOUND = 1000
HEAD = b"POST /v2/queues/q/messages HTTP/1.1\r\nHost: a\r\n%s\r\n\r\n"
NEXT = b"GET / HTTP/1.1\r\n"


def request(*headers: bytes) -> parsing.RawRequest:
    return parsing.request(Config(), HEAD % b"\r\n".join(headers), ("127.0.0.1", 1), 1)


class Counted(bytearray):
    """Counts how often, and how many bytes, are copied out of it or moved within it."""

    copies = 0
    copied = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        self.copies += 1
        self.copied += len(found)
        return found

    def __delitem__(self, key: Any) -> None:
        super().__delitem__(key)
        self.copied += len(self)


class Decoded(NamedTuple):
    """What became of a body; ``at``: after how many bytes."""

    body: bytes
    rest: bytes
    at: int
    incomplete: bool


def decoded(raw: bytes, pieces: Iterable[int], bound: int = BOUND, data: bytearray | None = None) -> Decoded | None:
    """Of a body that comes in pieces of such sizes; None if it is never enough. Raises ``Refused``."""
    data = bytearray() if data is None else data
    chunks, at = Chunks(bound, request(b"Transfer-Encoding: chunked").check_trailers), 0
    for size in pieces:
        data += raw[at : at + size]
        at += size
        whole = chunks.take(data)
        while chunks.more:
            assert not whole
            whole = chunks.take(data)
        if whole:
            return Decoded(bytes(chunks.body), bytes(data), min(at, len(raw)), chunks.incomplete)
    return None


def steps(raw: bytes, step: int) -> list[int]:
    """So many bytes at a time."""
    return [step] * (len(raw) // step + 1)


def by_gunicorn(raw: bytes) -> tuple[bytes, bytes]:
    """The body and what follows it, as gunicorn's own decoder has it. Raises what that does."""
    inbox = parsing.Inbox(raw)
    body = ChunkedReader(request(b"Transfer-Encoding: chunked"), inbox).read(BOUND + 1)
    return body, inbox.take_buffered()


WELL = [
    b"5\r\nhello\r\n0\r\n\r\n",
    b"1\r\na\r\n1;x=y\r\nb\r\n003\r\ncde\r\n0\r\nx-trailer: 1\r\n\r\n",
    b'1 ; x ="a;\\"\\\\" ;y\t;z= q\r\n\r\r\n0;l\r\na: 1\r\nb: 2\r\n\r\n',
    b"0\r\n\r\n",
    b"3e8 ;q\r\n" + b"x" * 1000 + b"\r\n0;last\r\n\r\n",
]
ILL = [
    b"+5\r\nhello\r\n0\r\n\r\n",
    b"\r\n",
    b"5\r\nhelloXX0\r\n\r\n",
    b"5\r\nhello\rX0\r\n\r\n",
    b"x" * 2000,
    b"5 \r\nhello\r\n0\r\n\r\n",
    b" 5\r\nhello\r\n0\r\n\r\n",
    b"0x5\r\nhello\r\n0\r\n\r\n",
    b"5\nhello\r\n0\r\n\r\n",
    b"5;\r\nhello\r\n0\r\n\r\n",
    b"5;a=\r\nhello\r\n0\r\n\r\n",
    b"5;a b\r\nhello\r\n0\r\n\r\n",
    b"5;a\rb\r\nhello\r\n0\r\n\r\n",
    b'5;a="\r\nhello\r\n0\r\n\r\n',
    b"5;a \r\nhello\r\n0\r\n\r\n",
    b"0\r\nno header\r\n\r\n",
    b"0\r\n folded: 1\r\n\r\n",
    b"0\r\na: 1\nb: 2\r\n\r\n",
    b"0\r\nContent-Length: 5\r\n\r\n",
]


@pytest.mark.parametrize("raw", WELL)
def test_chunks_are_decoded_however_they_are_cut(raw: bytes) -> None:
    """As gunicorn decodes them, and no byte before the last; what stands behind them belongs to the next request."""
    body, rest = by_gunicorn(raw + NEXT)
    assert rest == NEXT
    assert decoded(raw, steps(raw, 1)) == (body, b"", len(raw), False)
    for cut in range(1, len(raw)):
        assert decoded(raw[:cut], [cut]) is None
        assert decoded(raw + NEXT, [cut, 1 << 20]) == (body, NEXT, len(raw + NEXT), False)
    for step in (2, 3, 7, 1000):
        assert decoded(raw, steps(raw, step)) == (body, b"", len(raw), False)


@pytest.mark.parametrize("size", [1, 7, 400, 1001, 5000])
def test_more_than_the_bound_is_enough_before_its_end(size: int) -> None:
    """So much is taken that the application sees that it is too large, and nothing can follow."""
    raw = b"%x\r\n%s\r\n" % (size, b"x" * size) * (BOUND // size + 1)
    for step in (1, 100, 1 << 20):
        found = decoded(raw, steps(raw, step))
        assert found is not None
        assert found.incomplete
        assert found.body == b"x" * (BOUND + 1)


@pytest.mark.parametrize("raw", ILL)
def test_chunks_that_are_none_are_refused(raw: bytes) -> None:
    """However they are cut; gunicorn refuses them, too."""
    with pytest.raises(Exception):  # noqa: B017, PT011  (of several classes)
        by_gunicorn(raw)
    for cut in range(1, len(raw)):
        with pytest.raises(Refused):
            decoded(raw, [cut, 1 << 20])
    with pytest.raises(Refused):
        decoded(raw, steps(raw, 1))


@pytest.mark.parametrize("line", [b"5;" + b"a" * 2000 + b"\r\n", b"0" * 17 + b"\r\n", b"0\r\na:" + b"b" * 70000 + END])
def test_what_is_longer_than_needed_is_refused_wherever_it_is_cut(line: bytes) -> None:
    """The line of a size, the size, and the headers behind the body."""
    for pieces in ([1 << 20], [500, 1 << 20], steps(line, 999)):
        with pytest.raises(Refused):
            decoded(line, pieces)


@pytest.mark.parametrize("size", [1, 5, 64, 5000])
def test_the_work_grows_with_the_body_and_not_faster(size: int) -> None:
    """Each chunk costs a fixed number of copies, and each byte is copied a fixed number of times."""
    for count in (2_000, 12_000):
        raw = b"%x\r\n%s\r\n" % (size, b"x" * size) * count + b"0\r\n\r\n"
        for step in (100, 65536):
            data = Counted()
            found = decoded(raw, steps(raw, step), bound=1 << 30, data=data)
            assert found is not None
            assert len(found.body) == size * count
            assert data.copies <= 3 * (count + len(raw) // step + 2)
            assert data.copied <= 3 * len(raw)


def test_one_step_is_bounded_and_so_is_what_it_leaves() -> None:
    """Of many chunks that came at once a few are decoded in one go; nothing that was decoded stays in the end."""
    data = bytearray(b"1\r\nx\r\n" * 10_000)
    chunks = Chunks(BOUND * 100, lambda section: None)
    before = 0
    while not chunks.take(data) and chunks.more:
        assert before < len(chunks.body) <= before + STEP
        before = len(chunks.body)
    assert len(chunks.body) == 10_000
    assert data == b""


def test_chunks_may_not_be_small_for_ever() -> None:
    """64 kB may be spent on them; beyond, they must have more than their sizes and ends of lines."""
    few = b"1\r\nx\r\n" * 16_000 + b"0\r\n\r\n"
    assert decoded(few, steps(few, 65536), bound=1 << 20)
    for step in (1000, 65536):
        many = b"1\r\nx\r\n" * 17_000
        with pytest.raises(Refused, match="too small"):
            decoded(many, steps(many, step), bound=1 << 20)
    fair = b"6\r\nxxxxxx\r\n" * 100_000 + b"0\r\n\r\n"
    assert decoded(fair, steps(fair, 65536), bound=1 << 20)


def test_a_head_ends_wherever_it_is_cut() -> None:
    """The place behind its last byte, and nothing is refused before."""
    head = HEAD % b"X-A: b"
    for at in range(1, len(head)):
        assert parsing.head_ends(bytearray(head[:at]), max(0, at - 1)) == 0
    assert parsing.head_ends(bytearray(head + NEXT), len(head) - 1) == len(head)


@pytest.mark.parametrize("begin", [b"GET / HTTP/1.1\n", b"G" * 9000, b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 12000])
def test_what_cannot_become_a_head_is_refused_before_its_end(begin: bytes) -> None:
    """A bare line feed, a line that is too long, a head that is."""
    with pytest.raises(Refused):
        parsing.head_ends(bytearray(begin), 0)
