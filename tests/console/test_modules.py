# SPDX-License-Identifier: Apache-2.0
"""The console's pure modules, run in the browser: exact JSON, ages, addresses, form fields."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.console.conftest import Watch
from tests.rotation import examples
from zq.client import Client

pytestmark = pytest.mark.slow

IMPORT = "const tree = document.documentElement.dataset.tree; const loaded = await import(`./${tree}/%s.js`);"
NUMBERS = st.one_of(
    st.integers(-(10**30), 10**30).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=3).map(lambda number: f"{number:f}"),
    st.floats(allow_nan=False, allow_infinity=False).map(json.dumps),
)


class Raw(str):
    """The literal text of a JSON number."""


VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS.map(Raw) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=15,
)


def written(value: Any) -> str:
    """Return a value as JSON with numbers unchanged."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{written(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return json.dumps(value)


def known(text: str) -> Any:
    """Parse JSON with Python and keep each number as its text."""
    return json.loads(text, parse_int=Raw, parse_float=Raw)


def run(watch: Watch, module: str, expression: str, argument: Any = None) -> Any:
    """Evaluate an expression in which ``loaded`` is the module and ``given`` the argument."""
    return watch.page.evaluate(f"async (given) => {{ {IMPORT % module} return {expression}; }}", argument)


def test_json_comes_out_as_it_went_in(client: Client, watch: Watch) -> None:
    """The JSON module keeps every number's text, member and string; Python's json is the reference."""
    watch.open("#/")
    assert run(watch, "json", "loaded.exact") is True
    seen: list[str] = []

    @settings(max_examples=examples(200), deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.lists(VALUES, min_size=5, max_size=30))
    def collect(values: list[Any]) -> None:
        seen.extend(map(written, values))

    collect()
    back = run(
        watch,
        "json",
        "given.map((text) => [loaded.write(loaded.parse(text)), loaded.write(loaded.parse(text), 2)])",
        seen,
    )
    for text, (plain, indented) in zip(seen, back, strict=True):
        assert known(plain) == known(text) == known(indented)


def test_texts_are_written_for_people(client: Client, watch: Watch) -> None:
    """The text module formats ages, counts, sizes and times, and escapes invisible characters."""
    watch.open("#/")
    ages = {0: "0 s", 59.9: "59 s", 60: "1 min", 192: "3.2 min", 3600: "1 h", 7000: "1.9 h", 86400 * 12: "12 d"}
    assert run(watch, "text", "given.map(loaded.age)", list(ages)) == list(ages.values())
    assert run(watch, "text", "[loaded.count(1234567), loaded.count(undefined), loaded.bytes(12800)]") == [
        "1,234,567",
        "\u2013",
        "12.5 KiB",
    ]
    assert run(watch, "text", "loaded.moment('2026-01-31T12:00:00.123Z')") == "2026-01-31 12:00:00.123 UTC"
    assert run(watch, "text", "loaded.visible(given)", "a\u202eb\u2066\u0007\n\t\u200f") == (
        "a\\u202eb\\u2066\\u0007\n\t\\u200f"
    )


def test_addresses_are_read_as_they_are_written(client: Client, watch: Watch) -> None:
    watch.open("#/")
    for project, queue, query in [("a/b?c#d%", "q.1", {"m": "x&y=z"}), ("acme", "", {"name": "%"}), ("é ", "q", {})]:
        route = run(watch, "route", "loaded.parsed(loaded.to(...given))", [project, queue, query])
        assert (route["project"], route["queue"], route["query"]) == (project, queue, query)
    route = run(watch, "route", "loaded.parsed(loaded.toTopic('é ', 'news.eu', { tab: 'tail' }))")
    assert (route["page"], route["topic"], route["queue"], route["query"]) == ("topic", "news.eu", "", {"tab": "tail"})
    pages = {"": "", "#/": "", "#/p/a": "overview", "#/p/a/queues/q": "queue", "#/p/a/b": "nowhere", "#/x": "nowhere"}
    pages |= {"#/p/a/topics": "topics", "#/p/a/topics/t": "topic", "#/p/a/topics/t/x": "nowhere"}
    assert run(watch, "route", "given.map((hash) => loaded.parsed(hash).page)", list(pages)) == list(pages.values())


def test_gaps_of_charts_are_spans_longer_than_two_steps(client: Client, watch: Watch) -> None:
    """A single late sample and the time before the first sample are not gaps."""
    watch.open("#/")
    lines = [
        {"name": "ready", "values": [None, 1, None, 2, None, None, 3, None]},
        {"name": "claimed", "values": [None] * 8},
    ]
    found = run(watch, "parts/chart", "loaded.gapsOf(given, [0, 10, 20, 30, 40, 50, 60, 70], 10)", lines)
    assert found == [{"from": 30, "to": 60}]


def test_fields_take_what_their_schemas_say(client: Client, watch: Watch) -> None:
    """A field's kind, range and error message follow the OpenAPI document that the server serves."""
    watch.open("#/")
    schemas = run(watch, "api", "(await loaded.get('openapi.json')).components.schemas.Metadata.properties")
    kinds = run(watch, "parts/form", "given.map((schema) => loaded.fieldOf(schema).kind)", list(schemas.values()))
    by_name = dict(zip(schemas, kinds, strict=True))
    assert by_name["_history_ttl"] == by_name["_default_message_ttl"] == "integer"
    assert (by_name["_redelivery_backoff"], by_name["_enable_encrypt_messages"]) == ("choice", "boolean")
    assert (by_name["_dead_letter_queue"], by_name["_retry_policy"]) == ("text", "json")
    cases = [
        *[("_history_ttl", text, right) for text, right in (("0", True), ("59", False), ("60", True), ("", True))],
        *[("_default_message_ttl", text, right) for text, right in (("-1", False), ("6.5", False), ("60", True))],
        *[("_dead_letter_queue", text, right) for text, right in (("mail.dead", True), ("a b", False))],
        *[("_retry_policy", text, right) for text, right in (("{}", True), ("[]", False), ("{", False))],
        ("_max_claim_count", "-5", True),
    ]
    titled = {"title": "Seconds until ``x``.", "description": "must be an integer from 1 to 2, or null"}
    field = run(watch, "parts/form", "loaded.fieldOf(given)", titled)
    assert (field["meaning"], field["says"]) == ("Seconds until x.", "an integer from 1 to 2")
    given = [[text, schemas[name]] for name, text, _ in cases]
    said = run(watch, "parts/form", "given.map(([text, schema]) => loaded.wrong(text, loaded.fieldOf(schema)))", given)
    assert [(name, text, sentence == "") for (name, text, _), sentence in zip(cases, said, strict=True)] == cases
