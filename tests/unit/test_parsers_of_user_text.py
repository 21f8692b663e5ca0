# SPDX-License-Identifier: Apache-2.0
"""Parsers of user input: each text is parsed or refused with the parser's own error, never with a 500."""

from collections.abc import Callable
from contextlib import suppress

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from zq.auth import signatures
from zq.cli.declared.declaration import Declaration, Resource, read_declaration
from zq.cli.declared.document import FileErrors
from zq.cli.output import as_yaml
from zq.clock import ManualClock
from zq.errors import Invalid, StartRefused, Unavailable
from zq.model.limits import Limits, pattern
from zq.model.store_uri import mask_uri
from zq.pools.catalogue import Pools
from zq.sqs import sigv4
from zq.storage import connect, mongodb
from zq.storage.mongodb import startup
from zq.storage.redis import address
from zq.subscriptions.delivery.targets import AddressCheck, TargetPolicy
from zq.subscriptions.subscribers import TYPES, check_options, check_subscriber
from zq.wire.extensions import parse_time

MARKS = "@<>()[]{}:;,.%?#&=+-*/\\\"' \t0129abTZ\u0660é\0"
TEXTS = st.one_of(st.text(MARKS, max_size=40), st.text(max_size=40))
DATES = st.one_of(
    TEXTS,
    st.text("0123456789-:.,+ TZWGMTFriJan", max_size=32),
    st.from_regex(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.,][0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})?"),
    st.from_regex(r"[A-Z][a-z]{2}, [0-9]{1,3} [A-Z][a-z]{2} [0-9]{2,5} [0-9]{2}:[0-9]{2}:[0-9]{2} [+-][0-9]{4,6}"),
)
STORES = st.builds(
    "{}{}{}".format,
    st.sampled_from(["redis://", "rediss://", "unix://", "mongodb://", "mongodb://h/", "memory:", "redis:", "", "://"]),
    TEXTS,
    st.one_of(st.just(""), st.builds("?{}={}".format, st.sampled_from(["db", "tls", "replicaSet", "w", "x"]), TEXTS)),
)
quick = settings(max_examples=200, deadline=None)


@quick
@given(scheme=st.sampled_from([*TYPES, ""]), between=st.sampled_from([":", "://", ""]), text=TEXTS)
@example("mailto", ":", "<a@b.org>")
@example("mailto", ":", "@b.org")
@example("http", "://", "[::1")
def test_a_subscriber_is_returned_or_refused(scheme: str, between: str, text: str) -> None:
    uri = scheme + between + text
    try:
        assert check_subscriber(uri) == uri
    except Invalid:
        return
    with suppress(Invalid):
        TargetPolicy().check_url(uri.removeprefix("trust+"))


@quick
@given(name=TEXTS, value=TEXTS)
def test_options_are_returned_or_refused(name: str, value: str) -> None:
    for options in ({"post_headers": {name: value}}, {"from": value}, {"post_data": value}, {name: value}):
        try:
            assert check_options(options) == options
        except Invalid:
            continue


@quick
@given(text=DATES)
@example("0001-01-01T00:00:00+14:00")
@example("9999-12-31T23:59:59-14:00")
def test_a_moment_is_read_or_none(text: str) -> None:
    found = parse_time(text)
    assert found is None or found >= 0


@quick
@given(text=DATES)
@example("0001-01-01T00:00:00+14:00")
@example("9999-12-31T23:59:59-14:00")
def test_an_expiry_of_a_signed_url_is_read_and_written_or_refused(text: str) -> None:
    try:
        found = signatures.parse_time(text)
    except ValueError:
        return
    assert signatures.format_time(found)


@quick
@given(text=DATES, header=st.sampled_from(["x-amz-date", "date"]))
@example("00010101T000000Z", "date")
@example("Fri, 31 Dec 9999 23:59:59 -1400", "date")
def test_a_moment_of_a_signed_request_is_read_or_refused(text: str, header: str) -> None:
    credential = "Credential=k/20300101/r/sqs/aws4_request"
    given = {"authorization": f"{sigv4.ALGORITHM} {credential}, SignedHeaders=host, Signature={'0' * 64}"}
    try:
        sigv4.check_time(sigv4.read(sigv4.Head("POST", "/", "", given | {header: text}, False)), 0.0)
    except sigv4.SignatureRejection:
        return


@quick
@given(text=TEXTS)
def test_a_pattern_is_returned_or_refused(text: str) -> None:
    try:
        pattern(text)
    except Invalid:
        return


def _open(uri: str) -> None:
    if uri.startswith("mongodb"):
        startup.parse(uri, 1.0, "zq", "majority", True)
    elif not uri.startswith("memory"):
        address.parse(uri)


@quick
@given(uri=STORES)
@example("redis://[::1/0")
def test_a_uri_of_a_pool_is_taken_or_refused(uri: str) -> None:
    store = connect("memory:")
    pools = Pools(store.documents, ManualClock(store.now()), Limits(), _open, _Everything, "memory:")
    try:
        pools._check_uri(uri)
        pools._try(uri, False)
    except Invalid:
        return
    finally:
        store.close()
    assert mask_uri(uri)


class _Everything:
    """A container of hosts that allows every host."""

    def __contains__(self, _host: object) -> bool:
        return True


@quick
@given(uri=STORES)
@pytest.mark.parametrize("parse", [address.parse, lambda uri: startup.parse(uri, 1.0, "zq", "majority", True)])
def test_a_uri_of_a_store_is_parsed_or_refused(parse: Callable[[str], object], uri: str) -> None:
    try:
        parse(uri)
    except (StartRefused, Unavailable):
        return


def test_a_host_that_cannot_be_encoded_is_judged_later() -> None:
    """The hosts have a label of more than 63 characters, or one that IDNA refuses."""
    judge = AddressCheck(TargetPolicy())
    for host in ("a" * 64, "xn--a", "a..b", "é" * 64):
        judge(f"http://{host}.example:8080/")


@pytest.mark.parametrize("option", ["tlsCAFile", "tlsCertificateKeyFile", "tlsCRLFile"])
@pytest.mark.parametrize("file", ["/dev/null", "/nonexistent", "/"])
def test_a_file_of_a_mongodb_uri_that_cannot_be_read_is_refused(option: str, file: str) -> None:
    """PyMongo raises ``OSError`` for such a file, when it parses the URI or when the client is constructed."""
    with pytest.raises(StartRefused, match="option"):
        mongodb.connect(f"mongodb://127.0.0.1:1/x?tls=true&replicaSet=a&{option}={file}", timeout=0.1)


TAGGED = [
    f"!!{tag} {text}" for tag in ("bool", "int", "float", "map", "seq", "str") for text in ("a", "''", "[a]", "{a: }")
]
YAML = st.one_of(
    TEXTS,
    st.text(" \n:-{}[],&*<!|>'\"#%@`a1.=?~_\t", max_size=60),
    st.lists(st.sampled_from([*TAGGED, "{", "}", "[", "]", ": ", ", ", "? ", "- ", "\n "]), max_size=9).map("".join),
)
WORDS = st.one_of(
    TEXTS, st.sampled_from(["on", "1e3", "=", "<<", "~", "2026-01-01", "1:30", "0x1f", "- a", "!!a", "&a", ".inf"])
)
VALUES = st.recursive(
    st.one_of(
        WORDS,
        st.booleans(),
        st.none(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=3)),
    max_leaves=6,
)


@quick
@given(start=st.sampled_from(["", "version: 1\nqueues:\n ", "version: "]), text=YAML)
def test_a_file_of_settings_is_read_or_refused(start: str, text: str) -> None:
    with suppress(FileErrors):
        read_declaration((start + text).encode(), Limits())


@settings(max_examples=50, deadline=None)
@given(chosen=st.dictionaries(WORDS.filter(lambda key: key.strip() != "" and key[0] != "_"), VALUES, max_size=3))
def test_exported_settings_are_read_as_they_were(chosen: dict[str, object]) -> None:
    read = read_declaration(as_yaml(Declaration(version=1, queues={"q": Resource(chosen)})), Limits())
    assert read.queues is not None
    assert msgspec.json.encode(read.queues["q"].settings) == msgspec.json.encode(chosen)
