# SPDX-License-Identifier: Apache-2.0
"""Settings: an invalid value stops the start with an error that names the option and its limits."""

from pathlib import Path

import pytest

from zq.errors import StartRefused
from zq.serving import settings
from zq.serving.settings.options import OPTIONS, DeclaredOption
from zq.serving.settings.reading import choose_http_server


@pytest.mark.parametrize(
    ("group", "option", "value", "bounds"),
    [
        ("transport", "max_wait", "3601", "from 0 to 3600"),
        ("transport", "max_answer_bytes", "262143", "at least 262144, which is max_messages_post_size; it is 262143"),
        ("transport", "max_answer_bytes", "4M", "max_answer_bytes"),
        ("transport", "max_messages_per_page", "0", "at least 1; it is '0'"),
        ("transport", "stage_ttl", "59", "from 60"),
        ("transport", "producer_ttl", "0", "from 60"),
        ("transport", "idempotency_window", "59", "from 60"),
        ("transport", "max_message_ttl", "99999999999", "to 3153600000"),
        ("transport", "max_claim_ttl", "99999999999", "to 3153600000"),
        ("server", "max_waiters", "57", "at most threads - 8"),
        ("server", "max_streams", "57", "at most threads - 8"),
        ("server", "max_streams", "-1", "at least 0; it is '-1'"),
        ("topics", "topic_log_bytes", "1048575", "from 1048576 to"),
        ("topics", "topic_log_messages", "999", "from 1000 to"),
        ("topics", "topic_log_messages", "", "must be a number; it is empty"),
        ("expiry", "sweep_interval", "0", "from 0.1 to"),
        ("expiry", "sweep_batch_size", "100001", "to 100000;"),
        ("expiry", "sweep_max_deletes", "999", "at least sweep_batch_size, which is 1000"),
        ("expiry", "delete_queue_size", "10000001", "to 10000000;"),
        ("expiry", "compaction_filter_grace", "86401", "to 86400;"),
        ("expiry", "compaction_interval", "59", "from 60 to"),
        ("expiry", "queue_ttl", "a: 1209601", "from 60 to 1209600"),
        ("expiry", "queue_ttl", "a: 60, b c: 60", "line 2 is ' b c: 60'"),
        ("expiry", "queue_ttl", "a: 60, b", "a colon"),
        ("metrics", "max_queues", "0", "from 1 to"),
        ("metrics", "max_counted", "0", "from 1 to"),
        ("expiry", "sweep_interval", "nan", "must be a number; it is nan"),
        ("expiry", "sweep_interval", "", "must be a number; it is empty"),
        ("expiry", "sweep_batch_size", "", "must be a number; it is empty"),
        ("transport", "storage_timeout", "nan", "must be a number; it is nan"),
        ("server", "workers", "", "must be a number; it is empty"),
    ],
)
def test_a_value_out_of_bounds_stops_the_start(
    monkeypatch: pytest.MonkeyPatch, group: str, option: str, value: str, bounds: str
) -> None:
    """The value is set in the environment."""
    monkeypatch.setenv("OS_SERVER__ENGINE", "gunicorn")  # its number of threads limits waiters and streams
    monkeypatch.setenv(settings.variable(group, option), value)
    with pytest.raises(StartRefused) as refusal:
        settings.load()
    assert option in str(refusal.value)
    assert bounds in str(refusal.value)


def setting(monkeypatch: pytest.MonkeyPatch, group: str, **options: int | str) -> None:
    for option, value in options.items():
        monkeypatch.setenv(settings.variable(group, option), str(value))


@pytest.mark.parametrize(
    ("chosen", "lent"),
    [
        ({}, (40, 16)),
        ({"threads": 200}, (40, 16)),
        ({"threads": 12}, (3, 1)),
        ({"threads": 9}, (1, 0)),
        ({"threads": 12, "max_waiters": 4}, (4, 0)),
        ({"threads": 12, "max_streams": 3}, (1, 3)),
        ({"max_waiters": 50}, (50, 6)),
        ({"max_waiters": 0}, (0, 16)),
        ({"max_streams": 0}, (40, 0)),
        ({"max_streams": 50}, (6, 50)),
        ({"max_waiters": 28, "max_streams": 28}, (28, 28)),
    ],
)
def test_waiters_and_streams_are_as_many_as_the_threads_allow(
    monkeypatch: pytest.MonkeyPatch, chosen: dict[str, int], lent: tuple[int, int]
) -> None:
    """The defaults are 40 and 16, or fewer, so that eight threads are reserved; configured values stay."""
    setting(monkeypatch, "server", engine="gunicorn", **chosen)
    loaded = settings.load()
    assert (loaded.max_waiters, loaded.max_streams) == lent


def test_waiters_and_streams_together_leave_threads_for_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value is allowed by itself; the error names both."""
    setting(monkeypatch, "server", engine="gunicorn", max_waiters=40, max_streams=17)
    with pytest.raises(StartRefused, match=r"max_waiters \+ max_streams .* are 40 and 17, and threads is 64"):
        settings.load()


def test_granian_serves_where_it_is_there_and_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """gunicorn is used for client certificates, which Granian does not pass on; a configured engine stays."""
    assert (settings.load().server.engine, settings.load().max_waiters) == ("granian", 10_000)
    monkeypatch.setattr("zq.serving.settings.reading.find_spec", lambda _: None)
    assert (settings.load().server.engine, settings.load().max_waiters) == ("gunicorn", 40)
    monkeypatch.undo()
    assert choose_http_server("auto", "certificates.toml") == "gunicorn"
    assert [choose_http_server(chosen, "") for chosen in ("gunicorn", "granian")] == ["gunicorn", "granian"]


def test_a_log_of_topics_holds_two_of_the_largest_posts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that is one post behind has therefore not missed it."""
    setting(monkeypatch, "transport", max_messages_post_size=2_000_000)
    setting(monkeypatch, "topics", topic_log_bytes=3_999_999, topic_log_messages=1000)
    with pytest.raises(StartRefused, match=r"topic_log_bytes .* 4000000, .*; it is 3999999"):
        settings.load()
    setting(monkeypatch, "topics", topic_log_bytes=4_000_000)
    loaded = settings.load()
    assert (loaded.topics.topic_log_bytes, loaded.topics.topic_log_messages) == (4_000_000, 1000)


@pytest.mark.parametrize(("group", "option"), [("server", "bind"), ("log", "level"), ("storage", "uri")])
def test_an_option_that_refers_to_itself_is_refused(monkeypatch: pytest.MonkeyPatch, group: str, option: str) -> None:
    """oslo.config substitutes ``$group.option`` with the option's value."""
    monkeypatch.setenv(settings.variable(group, option), f"${group}.{option}")
    with pytest.raises(StartRefused) as refusal:
        settings.load()
    assert "$" in str(refusal.value)


@pytest.mark.parametrize(
    ("section", "line", "rule"),
    [
        ("server", "port = abc", "a whole number from 0 to 65535; it is 'abc'"),
        ("server", "engine = abc", "one of auto, gunicorn, granian; it is 'abc'"),
        ("server", "trust_network = maybe", "true or false; it is 'maybe'"),
        ("server", "threads = 3", "a whole number from 9 to 4096; it is '3'"),
        ("expiry", "sweep_interval = often", "a number from 0.1 to 3600; it is 'often'"),
        ("server", "keepalive =", "a number; it is empty"),
    ],
)
def test_a_wrong_value_is_named_with_its_file_and_its_rule(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, section: str, line: str, rule: str
) -> None:
    """The rule applies at the start, at a reload and to variables; the error does not quote the parser."""
    file = tmp_path / "zq.conf"
    file.write_text("")
    option, _, value = line.partition(" =")
    configuration = settings.Configuration(str(file))
    file.write_text(f"[{section}]\n{line}\n")
    expected = f"Option {option} in section [{section}] of {file} must be {rule}."
    for begin in (lambda: settings.load(str(file)), configuration.reload):
        with pytest.raises(StartRefused) as refused:
            begin()
        assert str(refused.value) == expected
    variable = settings.variable(section, option)
    monkeypatch.setenv(variable, value.strip())
    with pytest.raises(StartRefused) as refused:
        settings.load()
    assert str(refused.value) == expected.replace(f" of {file}", f", set by {variable},")


def test_misspelt_variables_cause_a_warning() -> None:
    """The warning suggests the right name if possible; variables of OpenStack clients and others are ignored."""
    ours = {"OS_SERVER__PORT": "1", "OS_STORAGE:ROCKSDB__SYNC": "never", "ZQ_CONFIG": "x"}
    others = {
        "OS_AUTH_URL": "x",
        "OS_PROJECT_NAME": "x",
        "OS_KEYSTONE_AUTHTOKEN__USERNAME": "x",
        "MY_SERVER__PORT": "1",
    }
    assert list(settings.misspelt_variables(ours | others)) == []
    wrong = ["OS_SERVER__PROT", "OS_SERVR__PORT", "OS_STORAGE_ROCKSDB__SYNC", "OS_server__port", "OS_LOG__COLOURS"]
    assert list(settings.misspelt_variables(dict.fromkeys(wrong, "1"))) == [
        "The variable OS_LOG__COLOURS is ignored, because there is no such option. zq-server --sample-config prints "
        "all options.",
        "The variable OS_SERVER__PROT is ignored, because there is no such option; did you mean OS_SERVER__PORT?",
        "The variable OS_SERVR__PORT is ignored, because there is no such option; did you mean OS_SERVER__PORT?",
        "The variable OS_STORAGE_ROCKSDB__SYNC is ignored, because there is no such option; did you mean "
        "OS_STORAGE:ROCKSDB__SYNC?",
        "The variable OS_server__port is ignored, because there is no such option; did you mean OS_SERVER__PORT?",
    ]


@pytest.mark.parametrize(
    "option", [option for options in OPTIONS.values() for option in options], ids=lambda option: option.label
)
def test_a_declared_option_has_a_description_and_a_valid_default(option: DeclaredOption) -> None:
    """A limit that is another option's value is checked with the defaults of all options."""
    assert option.description.endswith(".")
    low, high = option.bounds
    if option.is_number and option.default is not None:
        assert low is None or low <= option.default
        assert high is None or option.default <= high
    assert not option.option.choices or option.default in option.option.choices
