# SPDX-License-Identifier: Apache-2.0
"""The checks of exposure at the start, and passwords, which do not appear in messages (S8, S13)."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from zq import logs
from zq.errors import StartRefused
from zq.serving import server, settings, startup

PASSWORD = "s3cretPw"


def chosen(monkeypatch: pytest.MonkeyPatch, **options: str) -> settings.Settings:
    """Return the settings with these options of `[server]`; ``admin_mode`` and ``uri`` belong to other groups."""
    groups = {"admin_mode": "default", "uri": "storage"}
    for option, value in options.items():
        monkeypatch.setenv(settings.variable(groups.get(option, "server"), option), value)
    return settings.load()


@pytest.mark.parametrize("bind", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "LOCALHOST"])
def test_a_server_may_listen_on_this_machine(monkeypatch: pytest.MonkeyPatch, bind: str) -> None:
    """A server on this machine's own addresses starts without a warning."""
    assert startup.check_exposure(chosen(monkeypatch, bind=bind)) == []


@pytest.mark.parametrize("bind", ["0.0.0.0", "::", "[::]", "10.1.2.3", "example.org", "localhost.example.org", ""])
def test_a_server_listens_on_the_network_only_if_it_is_trusted(monkeypatch: pytest.MonkeyPatch, bind: str) -> None:
    """The start is refused; with ``trust_network``, each start warns instead (tenancy 1)."""
    with pytest.raises(StartRefused) as refused:
        startup.check_exposure(chosen(monkeypatch, bind=bind))
    assert str(refused.value) == (
        f"Authentication is off (auth_strategy is empty), so --bind {bind} would let everyone who reaches this "
        "machine read and delete all messages. Set auth_strategy, bind to 127.0.0.1, or accept the risk with [server] "
        "trust_network = true."
    )
    (warning,) = startup.check_exposure(chosen(monkeypatch, bind=bind, trust_network="true"))
    assert "Authentication is off" in warning
    assert bind in warning


def test_administration_is_not_open_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without authentication, any client could claim the admin role, from this machine too (tenancy 1)."""
    with pytest.raises(StartRefused, match="admin_mode = true would give everyone"):
        startup.check_exposure(chosen(monkeypatch, admin_mode="true"))
    assert len(startup.check_exposure(chosen(monkeypatch, admin_mode="true", trust_network="true"))) == 1


def test_sqs_without_signatures_is_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start warns; on other addresses than localhost it is refused unless accepted explicitly (SQS contract 3)."""

    def check(**options: str) -> list[str]:
        for option, value in options.items():
            monkeypatch.setenv(settings.variable("sqs", option), value)
        return startup.check_exposure(settings.load())

    assert check() == []
    assert check(enabled="true") == []
    (warning,) = check(auth="none")
    assert warning.startswith("[sqs] auth is none: everyone who reaches 127.0.0.1:8888 can read and delete")
    monkeypatch.setenv(settings.variable("server", "bind"), "10.1.2.3")
    monkeypatch.setenv(settings.variable("server", "trust_network"), "true")
    with pytest.raises(StartRefused, match=r"\[sqs\] auth is none, so --bind 10\.1\.2\.3 would let everyone"):
        check()
    assert len(check(auth_none_anywhere="true")) == 2


@pytest.mark.parametrize(
    ("option", "value"), [("project", "a,b"), ("public_url", "sqs.example.org"), ("region", "EU"), ("kms", "yes")]
)
def test_options_of_sqs_make_sense(monkeypatch: pytest.MonkeyPatch, option: str, value: str) -> None:
    """The start is refused with an error that names the option."""
    monkeypatch.setenv(settings.variable("sqs", option), value)
    with pytest.raises(StartRefused, match=option):
        settings.load()


def test_the_server_ends_with_the_sentence(capsys: pytest.CaptureFixture[str], tidy: None) -> None:
    """The exit code is 2, and the store is not opened."""
    assert server.main(["--bind", "0.0.0.0", "--store", "rocksdb:///nowhere/at/all"]) == 2
    assert capsys.readouterr().err.startswith("zq-server: Authentication is off (auth_strategy is empty), so --bind")


@pytest.mark.parametrize(
    ("uri", "hosts"),
    [
        ("redis://db.example/0", "db.example"),
        (f"redis://u:{PASSWORD}@10.0.0.1:6379,127.0.0.1:6379,db:6380?cluster=true", "10.0.0.1, db"),
        (f"mongodb://u:{PASSWORD}@a:27017,[::1]:27018,b/zq?replicaSet=rs0", "a, b"),
        ("mongodb://a/zq?tls=false", "a"),
        ("mongodb+srv://a/zq?ssl=false", "a"),
        *((uri, "") for uri in ("redis://127.0.0.1/0", "redis://[::1]:6379", "rediss://db/0", "unix:///a.sock")),
        *((uri, "") for uri in ("mongodb://localhost/zq", "mongodb://a/zq?tls=true", "mongodb://a/zq?ssl=true")),
        *((uri, "") for uri in ("mongodb+srv://a/zq", "rocksdb:///var/lib/zq", "mongodb://%2Ftmp%2Fm.sock/zq")),
    ],
)
def test_a_store_in_clear_beyond_this_machine_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, uri: str, hosts: str
) -> None:
    """The warning names the store's hosts and never contains the password (tenancy 9)."""
    warnings = startup.check_exposure(chosen(monkeypatch, uri=uri))
    assert len(warnings) == bool(hosts)
    if hosts:
        assert f"unencrypted to the store at {hosts}:" in warnings[0]
        assert PASSWORD not in warnings[0]


@pytest.fixture
def tidy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables that the command line adds to the environment."""
    for option in ("bind", "port", "engine"):
        monkeypatch.delenv(settings.variable("server", option), raising=False)
    for option in ("uri", "wait"):
        monkeypatch.setenv(settings.variable("storage", option), "")
        monkeypatch.delenv(settings.variable("storage", option))
    monkeypatch.setenv(settings.variable("server", "bind"), "127.0.0.1")


@pytest.mark.parametrize(
    "uri",
    [
        *(f"redis://:{PASSWORD}@h/0", f"redis://u:{PASSWORD}@h/0", f"mongodb://u:{PASSWORD}@a,b/zq?x=y"),
        *(f"redis://h?sentinel_password={PASSWORD}", f"rediss://h?ssl_keyfile_password={PASSWORD}"),
        f"mongodb://h/?tls=true;tlsCertificateKeyFilePassword={PASSWORD}",
        *(f"mongodb://a/zq?tlsCertificateKeyFilePassword={PASSWORD}", f"redis://u:{PASSWORD}@h[::/0"),
        *(f"redis:u:{PASSWORD}@h/0", f"u:{PASSWORD}@h/0"),
        *(f"mongodb://h/zq?authMechanismProperties=AWS_SESSION_TOKEN{colon}{PASSWORD}" for colon in (":", "%3a")),
    ],
)
def test_a_password_on_the_command_line_is_refused(capsys: pytest.CaptureFixture[str], tidy: None, uri: str) -> None:
    """Every user of the machine can read command lines; the error suggests alternatives and omits the password."""
    assert logs.holds_password(uri)
    assert PASSWORD not in logs.without_secrets(f"The store {uri}.")
    assert server.main(["--store", uri]) == 2
    said = capsys.readouterr()
    assert "use OS_STORAGE__URI or the configuration file" in said.err
    assert PASSWORD not in said.err + said.out


@pytest.mark.parametrize("arguments", [["--stroe", "URI"], ["URI"], ["--port", "URI"], ["--engine", "URI"]])
def test_a_usage_error_says_no_password(capsys: pytest.CaptureFixture[str], tidy: None, arguments: list[str]) -> None:
    """argparse quotes unknown arguments in its errors."""
    uri = f"redis://user:{PASSWORD}@host/0"
    with pytest.raises(SystemExit) as ended:
        server.main([uri if each == "URI" else each for each in arguments])
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert "host/0" in said.err
    assert PASSWORD not in said.err + said.out


FILES: Mapping[str, str] = {
    "a $ before a name": f"[storage]\nuri = redis://:a${PASSWORD}@host/0\n",
    "a $ before a name in braces": f"[storage]\nuri = redis://:a${{{PASSWORD}}}@host/0\n",
    "a $ before a name with a dot": f"[storage]\nuri = redis://:a${{{PASSWORD}.b}}@host/0\n",
    "no equals sign": f"[storage]\n  redis://:{PASSWORD}@host/0\n",
    "no section": f"redis://:{PASSWORD}@host/0\n",
    "another option": f"[server]\nport = redis://:{PASSWORD}@host/0\n",
    "no uri": f"[storage]\nuri = redis://:{PASSWORD}@host[::/0\n",
}


@pytest.mark.parametrize("slip", FILES)
def test_a_file_with_a_typo_is_refused_without_the_password(tmp_path: Path, slip: str) -> None:
    """oslo.config quotes parts of values in its errors."""
    file = tmp_path / "zq.conf"
    file.write_text(FILES[slip])
    with pytest.raises(StartRefused) as refused:
        settings.load(str(file))
    assert PASSWORD not in str(refused.value)
    assert len(str(refused.value)) > 20


def test_a_dollar_is_written_twice(tmp_path: Path) -> None:
    """A single dollar sign causes an error that suggests two."""
    file = tmp_path / "zq.conf"
    file.write_text("[storage]\nuri = redis://:a$b@host/0\n")
    with pytest.raises(StartRefused, match=r"write \$\$"):
        settings.load(str(file))
    file.write_text("[storage]\nuri = redis://:a$$b@host/0\n")
    assert settings.load(str(file)).storage.uri == "redis://:a$b@host/0"


def test_allowed_hosts_are_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are converted to lower case; a port, a scheme or a space is refused with the option's name."""
    assert chosen(monkeypatch, allowed_hosts="A.example, b").server.allowed_hosts == ("a.example", "b")
    assert chosen(monkeypatch, allowed_hosts="*").server.allowed_hosts == ("*",)
    for wrong in ("a:80", "http://a", "a b", "*.a", "é"):
        with pytest.raises(StartRefused, match="allowed_hosts"):
            chosen(monkeypatch, allowed_hosts=wrong)
