# SPDX-License-Identifier: Apache-2.0
"""Reload of options: new values apply completely or not at all, and options that need a restart stay."""

import logging
from pathlib import Path

import pytest

from zq.errors import StartRefused
from zq.serving import settings, startup, systemd
from zq.serving.settings import Configuration

FIRST = "[expiry]\nsweep_interval = 2\nqueue_ttl = mqtt-*: 86400\nqueue_ttl = *: 600\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    written = tmp_path / "zq.conf"
    written.write_text(FIRST)
    return written


def test_new_values_in_the_file_are_applied(file: Path) -> None:
    """Values are added, changed and removed, including lines of one option; only changed options are reported."""
    configuration = Configuration(str(file))
    assert configuration.current.queue_ttl == (("mqtt-*", 86400), ("*", 600))
    file.write_text(
        "[expiry]\nsweep = false\nqueue_ttl = *: 600\n[transport]\ndefault_message_ttl = 70\n"
        "[topics]\ntopic_log_bytes = 2000000\n"
    )
    assert sorted(configuration.reload()) == [
        "[expiry] queue_ttl = *: 600",
        "[expiry] sweep = False",
        "[expiry] sweep_interval = 5.0",
        "[topics] topic_log_bytes = 2000000",
        "[transport] default_message_ttl = 70",
    ]
    current = configuration.current
    assert (current.expiry.sweep_interval, current.expiry.sweep, current.queue_ttl) == (5.0, False, (("*", 600),))
    assert current.limits.default_message_ttl == 70
    assert current.topics.topic_log_bytes == 2_000_000
    assert configuration.reload() == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "[expiry]\nqueue_ttl = a: 70\nqueue_ttl = b: 59\n",
            r"\[expiry\] queue_ttl .* from 60 to 1209600; line 2 is 'b: 59'",
        ),
        ("[expiry]\nsweep_batch_size = 0\n", "sweep_batch_size"),
        ("[expiry]\nsweep_intervall = 1\n", "sweep_intervall"),
        ("[expiry]\nsweep_batch_size = 500\nsweep_max_deletes = 400\n", "at least sweep_batch_size, which is 500"),
        ("[server]\nworkers = 2\n[expiry]\nsweep_interval = 1\n", "workers must be 1"),
        ("[topics]\ntopic_log_messages = 9\n", "topic_log_messages"),
        ("sweep_interval\n", "cannot be read"),
        (None, "cannot be read"),
    ],
    ids=["line", "bound", "unknown", "pair", "of-the-start", "keep", "broken", "gone"],
)
def test_nonsense_changes_nothing(file: Path, text: str | None, told: str) -> None:
    """A file that would refuse a start is refused with the same error, and a correct file is accepted afterwards."""
    configuration = Configuration(str(file))
    former = configuration.current
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    with pytest.raises(StartRefused, match=told):
        configuration.reload()
    assert configuration.current == former
    file.write_text(FIRST.replace("600", "700"))
    assert configuration.reload() == ["[expiry] queue_ttl = mqtt-*: 86400, *: 700"]


def test_an_option_that_cannot_change_is_reported_and_kept(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The caller logs both values, without the password of a URI; the rest of the file applies."""
    configuration = Configuration(str(file))
    stays = "[server]\nport = 9000\n[storage]\nuri = redis://joe:hush@host/0\n[notification]\nsmtp_user_password = x\n"
    file.write_text(FIRST.replace("= 2", "= 3") + stays)
    with caplog.at_level(logging.WARNING):
        assert configuration.reload() == ["[expiry] sweep_interval = 3.0"]
    assert [record for record in caplog.records if record.name.startswith("zq.serving.settings")] == []
    assert configuration.left == [
        "[server] port is still 8888. It changes to 9000 at the next start.",
        "[storage] uri is still 'rocksdb:var/zq'. It changes to 'redis://***@host/0' at the next start.",
        "[notification] smtp_user_password keeps its old value (not shown) until the next start.",
    ]
    assert (configuration.current.storage.uri, configuration.current.server.port) == ("rocksdb:var/zq", 8888)
    file.write_text(FIRST)
    configuration.reload()
    assert configuration.left == []


def test_new_values_must_be_valid_with_kept_ones(file: Path) -> None:
    """A default above the current largest TTL is refused, although the file raises that TTL too."""
    configuration = Configuration(str(file))
    file.write_text("[transport]\ndefault_message_ttl = 2000000\nmax_message_ttl = 2000000\n")
    with pytest.raises(StartRefused, match="default_message_ttl must be from 60 to 1209600"):
        configuration.reload()
    assert configuration.current.limits.default_message_ttl == 3600
    file.write_text(FIRST)
    assert configuration.reload() == []


def test_the_environment_overrides_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable has precedence; it contains all lines of an option, separated by commas."""
    monkeypatch.setenv(settings.variable("expiry", "sweep_interval"), "9")
    monkeypatch.setenv(settings.variable("expiry", "queue_ttl"), "a*: 60, b: 70")
    configuration = Configuration(str(file))
    file.write_text("[expiry]\nsweep_interval = 3\nqueue_ttl = c: 80\n")
    assert configuration.reload() == []
    assert configuration.current.expiry.sweep_interval == 9
    assert configuration.current.queue_ttl == (("a*", 60), ("b", 70))


def test_without_a_file_nothing_changes() -> None:
    configuration = Configuration()
    assert configuration.path is None
    assert configuration.reload() == []


def test_a_log_level_that_does_not_exist_is_refused(file: Path) -> None:
    """The options of other sections are checked in the same way."""
    configuration = Configuration(str(file))
    file.write_text("[log]\nlevel = LOUD\n")
    with pytest.raises(StartRefused, match="LOUD"):
        configuration.reload()


def test_systemd_is_notified_of_the_end_of_a_reload_that_fails(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, systemd would wait for the end of the reload."""
    states: list[str] = []
    monkeypatch.setattr(systemd, "notify", states.append)

    def fail(*_: object) -> None:
        raise ValueError("unexpected")

    configuration = Configuration(str(file))
    with pytest.raises(ValueError, match="unexpected"):
        startup.reload(configuration, fail)
    monkeypatch.setattr(configuration, "reload", fail)
    with pytest.raises(ValueError, match="unexpected"):
        startup.reload(configuration)
    assert states == [systemd.READY, systemd.RELOADING, systemd.READY]
