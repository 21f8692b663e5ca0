# SPDX-License-Identifier: Apache-2.0
"""The WSGI environment of a request under Granian: precomputed names of headers do not change it."""

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from zq.http import heads
from zq.serving import environ

HOST = (b"host", b"127.0.0.1:8888")
CLIENT = (b"client-id", b"5ef2a3c0-1d4b-4c8e-9a5e-0f6b1c2d3e4f")
PROJECT = (b"x-project-id", b"acme")
NAMES = st.sampled_from(
    [
        *(b"host", b"client-id", b"x-project-id", b"x_project_id", b"x-forwarded-for", b"connection", b"te"),
        *(b"content-length", b"content-type", b"transfer-encoding", b"accept", b"x" * 65, b"zq-hops", b"x-a", b"x_a"),
    ]
)
VALUES = st.sampled_from([b"", b"a", b"5", b"\xe9", b"x" * environ.MAX_LINE, b"x" * (environ.MAX_LINE + 1)])
TARGETS = st.sampled_from([b"/v2/queues/q/messages", b"//v2", b"/v2/a%2Fb", b"/v2/%41", b"/" + b"x" * environ.MAX_LINE])


def scope(
    headers: list[tuple[bytes, bytes]], target: bytes = b"/v2/queues/q/messages", version: str = "1.1"
) -> dict[str, Any]:
    return {
        "type": "http",
        "http_version": version,
        "server": ("127.0.0.1", "8888"),
        "client": ("127.0.0.1", "50000"),
        "scheme": "http",
        "method": "GET",
        "raw_path": target,
        "query_string": b"limit=10",
        "headers": headers,
    }


@given(st.lists(st.tuples(NAMES, VALUES), max_size=5), TARGETS, st.sampled_from(["1", "1.1", "2"]))
@example([HOST, CLIENT, PROJECT], b"/v2/queues/q/messages", "1.1")
@example([HOST, CLIENT], b"//v2", "1.1")
@example([HOST, CLIENT], b"/v2/a%2Fb", "1.1")
@example([HOST, PROJECT, PROJECT], b"/v2/queues/q/messages", "1.1")
@example([HOST, PROJECT, (b"x_project_id", b"other")], b"/v2/queues/q/messages", "1.1")
@example([CLIENT, PROJECT], b"/v2/queues/q/messages", "1.1")
@example([(b"host", b""), PROJECT], b"/v2/queues/q/messages", "1.1")
@example([HOST, (b"transfer-encoding", b"chunked")], b"/v2/queues/q/messages", "1.1")
@example([HOST, (b"accept", b"x" * (environ.MAX_LINE + 1))], b"/v2/queues/q/messages", "1.1")
def test_known_names_change_nothing(headers: list[tuple[bytes, bytes]], target: bytes, version: str) -> None:
    environ._keys.clear()
    unknown = environ.environment(scope(headers, target, version))
    for name, _ in headers:  # precompute each name that can be
        environ.environment(scope([HOST, (name, b"1")] if name != b"host" else [HOST]))
    assert environ.environment(scope(headers, target, version)) == unknown


def test_underscores_and_long_names_are_never_known() -> None:
    environ._keys.clear()
    names = [b"x-a", b"x_a", b"x" * 65]
    environ.environment(scope([HOST, *[(name, b"1") for name in names]]))
    assert set(environ._keys) == {b"host", b"x-a"}


def test_many_names_are_forgotten() -> None:
    environ._keys.clear()
    for number in range(environ.MAX_NAMES + 100):
        environ.environment(scope([HOST, (b"x-%d" % number, b"1")]))
    assert len(environ._keys) <= environ.MAX_NAMES + 2
    known = environ.environment(scope([HOST, PROJECT]))
    assert known["HTTP_X_PROJECT_ID"] == "acme"


def test_a_repeated_project_is_refused_however_often_it_came() -> None:
    for _ in range(3):
        assert heads.ERROR_KEY not in environ.environment(scope([HOST, PROJECT]))
        assert environ.environment(scope([HOST, PROJECT, PROJECT]))[heads.ERROR_KEY]
