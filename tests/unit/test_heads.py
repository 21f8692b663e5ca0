# SPDX-License-Identifier: Apache-2.0
"""Checks of a raw request head: header names that WSGI would merge, and slashes that only some programs decode."""

import pytest

from zq.http.heads import ENCODED_SLASH, IDENTITY, LEADING_SLASHES, SINGLE, find_head_error

PREFIXED = [
    "X-Project-Name",
    "X-User-Id",
    "X-User",
    "X-Domain-Id",
    "X-Service-Roles",
    "X-Identity-Status",
    "X-Tenant-Name",
]
NAMES = sorted(IDENTITY | SINGLE) + PREFIXED
COMMON = [("Host", "localhost"), ("Accept", "*/*"), ("Client-ID", "c"), ("X-Project-ID", "p"), ("X-My_Own", "1")]


def spellings(name: str) -> list[str]:
    """Return every other spelling that WSGI maps to the same name."""
    plain = name.replace("-", "_")
    return sorted({plain, plain.lower(), plain.title(), name.replace("-", "_", 1)} - {name})


@pytest.mark.parametrize("name", [name for name in NAMES if "-" in name])
def test_a_name_that_counts_is_spelled_with_hyphens(name: str) -> None:
    """Another spelling is refused with or without the right one, in any letter case (S1)."""
    for spelled in spellings(name):
        for headers in ([(spelled, "v")], [(name, "v"), (spelled, "v")], [(spelled, "v"), (name.upper(), "v")]):
            said = find_head_error(headers, "/v2/queues")
            assert said == f"The header {name.lower()} must be spelled with hyphens.", headers


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_counts_is_given_once(name: str) -> None:
    """A repeated header is refused in any letter case, even with equal values (S1)."""
    headers = [(name, "v"), ("Accept", "*/*"), (name.swapcase(), "v")]
    assert find_head_error(headers, "/") == f"The header {name.lower()} must be given once."


def test_other_headers_may_be_spelled_and_repeated_as_they_like() -> None:
    """List headers may be repeated, and headers that zq does not read are ignored."""
    assert (
        find_head_error([*COMMON, ("Accept", "text/plain"), ("x_forwarded_for", "a"), ("X_Trace", "b")], "/v2/") is None
    )


@pytest.mark.parametrize("target", ["/v2/queues/a%2Fb", "/v2/queues/a%2fb", "/v2/queues/a%5Cb", "http://h/a%5cb?c"])
def test_an_encoded_slash_is_refused(target: str) -> None:
    """A proxy that checks the path would see another one than the server (S16)."""
    assert find_head_error(COMMON, target) == ENCODED_SLASH


@pytest.mark.parametrize("target", ["/v2/queues?marker=a%2Fb", "/v2/queues/a%252Fb", "/", "*", "", "/v2/queues/a%20b"])
def test_any_other_target_is_let_be(target: str) -> None:
    """Query parameters may contain anything, and a slash that is encoded twice stays text."""
    assert find_head_error(COMMON, target) is None


@pytest.mark.parametrize("target", ["//v2/queues", "///healthz", "//v2/queues?marker=a"])
def test_a_path_begins_with_one_slash(target: str) -> None:
    """The router ignores further slashes, so a proxy's rule for ``/v2`` would not match the path (S16)."""
    assert find_head_error(COMMON, target) == LEADING_SLASHES
