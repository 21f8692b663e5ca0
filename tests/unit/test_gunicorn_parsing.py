# SPDX-License-Identifier: Apache-2.0
"""How the bytes of a connection become requests, wherever they are cut."""

import pytest
from gunicorn.config import Config

from zq.engines.gthread import parsing
from zq.engines.gthread.parsing import CHUNKED, Chunks, Refused

BOUND = 1000
HEAD = b"POST /v2/queues/q/messages HTTP/1.1\r\nHost: a\r\n%s\r\n\r\n"
NEXT = b"GET / HTTP/1.1\r\n"


def request(*headers: bytes) -> parsing.RawRequest:
    return parsing.request(Config(), HEAD % b"\r\n".join(headers), ("127.0.0.1", 1), 1)


def enough(body: bytes, step: int) -> int:
    """After how many bytes, so many at a time, the chunks are found to be enough; 0 if never."""
    data, chunks = bytearray(), Chunks()
    for at in range(0, len(body), step):
        data += body[at : at + step]
        chunks, found = parsing.followed(data, chunks, BOUND)
        if found:
            return len(data)
    return 0


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    "body",
    [
        b"5\r\nhello\r\n0\r\n\r\n",
        b"1\r\na\r\n1;x=y\r\nb\r\n003\r\ncde\r\n0\r\nx-trailer: 1\r\n\r\n",
        b"0\r\n\r\n",
        b"3e8 ;q\r\n" + b"x" * 1000 + b"\r\n0;last\r\n\r\n",
    ],
)
def test_chunks_are_enough_when_the_last_one_has_come(body: bytes, step: int) -> None:
    """However they are cut; what stands behind them belongs to the next request."""
    assert len(body) == enough(body, 1)
    assert enough(body[:-1], step) == 0
    found = request(b"Transfer-Encoding: chunked")
    assert found.length == CHUNKED
    assert found.take_body(body + NEXT, BOUND) == NEXT
    assert not found.incomplete
    assert len(found.body.read()) in {0, 5, 1000}


@pytest.mark.parametrize("size", [1, 7, 400, 1001, 5000])
def test_more_than_the_bound_is_enough_before_its_end(size: int) -> None:
    """So much is taken that the application sees that it is too large, and nothing can follow."""
    body = b"%x\r\n%s\r\n" % (size, b"x" * size) * (BOUND // size + 1)
    cut = enough(body, 1)
    assert 0 < cut <= len(body)
    found = request(b"Transfer-Encoding: chunked")
    found.take_body(body[:cut], BOUND)
    assert found.incomplete
    assert len(found.body.read()) == BOUND + 1


@pytest.mark.parametrize("body", [b"+5\r\nhello\r\n0\r\n\r\n", b"\r\n", b"5\r\nhelloXX0\r\n\r\n", b"x" * 2000])
def test_chunks_that_are_none_are_refused(body: bytes) -> None:
    """As soon as that can be seen."""
    assert enough(body, 1) > 0
    with pytest.raises(Refused):
        request(b"Transfer-Encoding: chunked").take_body(body, BOUND)


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
