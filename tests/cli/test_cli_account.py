# SPDX-License-Identifier: Apache-2.0
"""``zq login``, ``logout`` and ``whoami``, the project's tokens, its quota, and shared URLs."""

import contextlib
import os
import pty
import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from tests.cli.conftest import Zq
from tests.cli.launcher import Launcher
from tests.servers import wait_for
from zq.testing import Server, server


@pytest.fixture
def guarded() -> Iterator[Server]:
    """Start a server that requires tokens."""
    with server(auth_strategy="token") as running:
        yield running


@pytest.fixture
def asking(guarded: Server, tmp_path: Path, launcher: Launcher) -> Zq:
    """Return a command line with the server's URL and without a project."""
    zq = Zq(guarded.url, tmp_path / "config", launcher)
    zq.env["ZQ_PROJECT"] = ""
    return zq


def log_in(zq: Zq, token: str) -> Path:
    """Log in and return the token file."""
    done = zq.run("login", given=f"{token}\n")
    file = Path(zq.env["XDG_CONFIG_HOME"], "zq", "config.tokens")
    assert (done.exit_code, done.stdout) == (0, ""), done.output
    assert done.stderr == f"zq: The token is stored in {file} and sent only to {zq.env['ZQ_URL']}.\n"
    return file


def test_a_login_holds_until_the_logout(asking: Zq, guarded: Server) -> None:
    """A login needs no project, because the token has one; only the owner can read the token file."""
    assert asking.refused(2, "post", "jobs", "1").startswith("No project is set")
    token = guarded.token("acme")
    file = log_in(asking, token)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not file.with_name("config.toml").exists()
    asking("post", "jobs", '"mine"')
    (found,) = asking("whoami")
    assert (found["project"], found["roles"], found["scopes"], found["credential"]) == (
        "acme",
        ["member"],
        None,
        token.split("_")[1],
    )
    assert found["expires"]
    assert asking.run("logout").exit_code == 0
    assert asking.refused(3, "logout") == "No token is stored for this context."
    assert asking.refused(5, "--project", "acme", "queue", "list").startswith("A credential is required")


def test_what_callers_named_does_not_steer_the_terminal_that_shows_the_audit(asking: Zq, guarded: Server) -> None:
    """A caller can revoke a token with any text as its id, and the audit records that text."""
    log_in(asking, guarded.token("acme"))
    asking("token", "revoke", "\u009b2J\x07mine")
    (entry,) = wait_for(lambda: asking("audit"), 60, "an entry")
    assert entry["object"] == "token \u009b2J\x07mine"
    shown = asking.run("audit", "--table", COLUMNS="200").stdout
    assert "mine" in shown
    assert not {"\u009b", "\x07"} & set(shown)


def test_invalid_token_is_not_stored(asking: Zq) -> None:
    """The command prints the server's message and exits with the code for rejected credentials."""
    done = asking.run("login", given="zq_wrong-secret\n")
    assert (done.exit_code, done.stderr) == (5, "zq: The credential is not valid.\n")
    assert asking.run("login", given="\n").exit_code == 2
    assert not Path(asking.env["XDG_CONFIG_HOME"], "zq", "config.tokens").exists()


def test_a_token_of_a_login_goes_to_its_server_alone(asking: Zq, guarded: Server) -> None:
    log_in(asking, guarded.token("acme"))
    with server(auth_strategy="token") as other:
        said = asking.refused(5, "--url", other.url, "--project", "acme", "queue", "list")
    assert said == "A credential is required: Authorization: Bearer <token>."


def test_a_file_of_logins_that_others_can_read_is_not_used(asking: Zq, guarded: Server) -> None:
    file = log_in(asking, guarded.token("acme"))
    file.chmod(0o640)
    said = asking.refused(2, "queue", "list")
    assert said == f"Other users can read or write the token file {file}, so it is not used. Run: chmod 600 {file}"


def test_tokens_are_made_shown_rotated_and_revoked(asking: Zq, guarded: Server) -> None:
    """A secret is shown once, and a token cannot grant more than its creator has."""
    log_in(asking, guarded.token("acme"))
    (made,) = asking("token", "create", "--name", "shop", "--scope", "produce:queue/orders", "--days", "7")
    assert (made["name"], made["scopes"], made["roles"]) == ("shop", ["produce:queue/orders"], ["member"])
    asking.env["ZQ_TOKEN"] = made["token"]
    asking("post", "orders", "1")
    assert "does not allow" in asking.refused(5, "pop", "orders")
    assert "does not allow" in asking.refused(5, "token", "list")
    (own,) = asking("whoami")
    assert (own["project"], own["scopes"], own["credential"]) == ("acme", ["produce:queue/orders"], made["id"])
    (more,) = asking("whoami", "--rules")
    assert more.items() >= own.items()
    assert ("messages:create" in more["rules"], "queues:purge" in more["rules"]) == (True, False)
    asking.env["ZQ_TOKEN"] = ""
    (twin,) = asking("token", "rotate", made["id"])
    assert twin["token"] != made["token"]
    listed = asking("token", "list")
    assert {made["id"], twin["id"]} < {token["id"] for token in listed}
    assert not [token for token in listed if "token" in token]
    assert "everything" in asking.run("--table", "token", "list").stdout
    assert asking("token", "show", twin["id"])[0]["scopes"] == ["produce:queue/orders"]
    assert asking.run("token", "revoke", made["id"], twin["id"]).exit_code == 0
    asking.refused(3, "token", "show", made["id"])


def test_the_quota_is_a_table_with_limits_and_use(asking: Zq, guarded: Server) -> None:
    log_in(asking, guarded.token("acme"))
    asking("queue", "create", "jobs")
    rows = {row["name"]: row for row in asking("quota")}
    assert (rows["queues"]["limit"], rows["queues"]["used"]) == (1000, 1)
    assert asking.run("--table", "quota").stdout.splitlines()[0].split() == ["name", "limit", "used"]


def test_rate_limited_command_prints_one_notice_and_waits(tmp_path: Path) -> None:
    """All requests succeed after a wait, and standard output has only results."""
    with server(auth_strategy="token", quota={"requests": 1}) as bounded:
        zq = Zq(bounded.url, tmp_path)
        zq.env |= {"ZQ_TOKEN": bounded.token(zq.project)}
        done = [zq.run("--retry", "20", "queue", "create", f"q{number}") for number in range(6)]
    assert [run.exit_code for run in done] == [0] * 6, [run.output for run in done]
    told = [run.stderr for run in done if run.stderr]
    assert told
    assert all(said.startswith("zq: The project may make at most 1 requests per second. Waiting 1 s") for said in told)
    assert all(said.count("\n") == 1 for said in told)


def test_a_queue_is_shared_until_that_is_revoked(zq: Zq) -> None:
    """The output contains the headers that a client has to send."""
    (given,) = zq("share", "orders", "--method", "GET", "--method", "POST", "--path", "claims")
    assert (given["methods"], given["paths"]) == (["GET", "POST"], ["/v2/queues/orders/claims"])
    headers = {
        **{"URL-Signature": given["signature"], "URL-Expires": given["expires"], "X-Project-ID": given["project"]},
        **{
            "URL-Methods": "GET,POST",
            "URL-Paths": given["paths"][0],
            "Client-ID": "5ef2a3c01d4b4c8e9a5e0f6b1c2d3e4f",
        },
    }

    def status() -> int:
        return httpx.post(f"{zq.env['ZQ_URL']}{given['paths'][0]}", headers=headers).status_code

    assert status() == 204
    (short,) = zq("share", "orders", "--expires", f"{datetime.now(UTC) + timedelta(hours=1):%Y-%m-%dT%H:%M:%S}")
    assert short["expires"] < given["expires"]
    assert zq.run("share", "--revoke").exit_code == 0
    assert status() == 404
    assert zq.refused(2, "share").startswith("Give either a queue or --revoke.")


class Terminal:
    """``zq login`` on a new terminal, and the text that was ``shown`` there."""

    def __init__(self, zq: Zq) -> None:
        self._theirs, ours = pty.openpty()
        self.run = zq.start("login", stdin=ours, stdout=ours, stderr=ours, start_new_session=True)
        os.close(ours)
        self.shown = b""
        self._asked = 0

    def answer(self, given: bytes) -> None:
        """Wait for the next token prompt and type the answer."""
        self._asked += 1
        while self.shown.count(b"Token: ") < self._asked:  # the blank follows when the echo is off
            self.shown += os.read(self._theirs, 4096)
        os.write(self._theirs, given)

    def ended(self) -> int:
        """Wait for the end of the run and return the exit code."""
        with self.run, contextlib.suppress(OSError):  # the other end is closed
            while piece := os.read(self._theirs, 4096):
                self.shown += piece
        os.close(self._theirs)
        return self.run.returncode


def test_a_token_is_asked_for_without_an_echo(asking: Zq, guarded: Server) -> None:
    """The token is never shown on the terminal."""
    token, terminal = guarded.token("acme"), Terminal(asking)
    terminal.answer(token.encode() + b"\n")
    assert terminal.ended() == 0, terminal.shown
    assert token.encode() not in terminal.shown
    assert asking("whoami")[0]["credential"] == token.split("_")[1]


def test_an_empty_answer_on_a_terminal_stores_nothing(asking: Zq) -> None:
    """The prompt is repeated after an empty line; blanks are not a token, and end of input ends the command."""
    blanks, ending = Terminal(asking), Terminal(asking)
    blanks.answer(b"\n")
    blanks.answer(b"  \n")
    assert blanks.ended() == 2, blanks.shown
    assert b"Standard input has no token." in blanks.shown
    ending.answer(b"\n")
    ending.answer(b"\x04")
    assert ending.ended() == 130, ending.shown
    assert b"Traceback" not in ending.shown
    assert not Path(asking.env["XDG_CONFIG_HOME"], "zq", "config.tokens").exists()
