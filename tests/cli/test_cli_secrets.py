# SPDX-License-Identifier: Apache-2.0
"""Passwords and tokens on the command line: never printed, and warnings if they are not safe."""

from pathlib import Path

import pytest

from tests.cli.conftest import Zq
from zq.cli.profiles import connection

PASSWORD = "s3cretPw"
PROFILE = '[profiles.default]\nurl = "{url}"\nproject = "acme"\ntoken = "t0ken"\n'


@pytest.mark.parametrize(
    "url",
    [
        *(
            f"http://u:{PASSWORD}@host:x",
            f"ftp://u:{PASSWORD}@host",
            f"http://u:{PASSWORD}@host[",
            f"http://u:{PASSWORD}@",
        ),
        *(f"u:{PASSWORD}@host", f"//u:{PASSWORD}@host:8888"),
    ],
)
def test_invalid_url_is_refused_without_its_password(zq: Zq, url: str) -> None:
    """The URL may come from a flag or the environment."""
    for said in (zq.refused(2, "--url", url, "queue", "list"), zq.refused(2, "queue", "list", ZQ_URL=url)):
        assert "is not a server URL" in said
        assert PASSWORD not in said


@pytest.mark.parametrize(
    "words", [["queue", "URL"], ["--ulr", "URL"], ["queue", "list", "URL"], ["URL"], ["--ulr=URL"]]
)
def test_a_usage_error_holds_no_password(zq: Zq, words: list[str]) -> None:
    """Click quotes unknown words in its errors."""
    said = zq.refused(2, *(word.replace("URL", f"http://u:{PASSWORD}@host") for word in words))
    assert PASSWORD not in said


def test_token_that_is_not_utf8_is_named_and_not_shown(zq: Zq) -> None:
    """The error names the variable."""
    said = zq.refused(2, "queue", "list", ZQ_TOKEN=f"{PASSWORD}\udcff")
    assert said == "ZQ_TOKEN is not UTF-8."


@pytest.mark.parametrize(
    ("mode", "warned"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True), (0o666, True)]
)
def test_a_profile_that_others_can_read_is_warned_of(zq: Zq, tmp_path: Path, mode: int, warned: bool) -> None:
    """The command warns only if the profile has a token; the command still runs and never shows the token."""
    file = tmp_path / "profiles.toml"
    file.write_text(PROFILE.format(url=zq.env["ZQ_URL"]))
    file.chmod(mode)
    own = {"ZQ_URL": "", "ZQ_PROJECT": ""}
    done = zq.run("--config", str(file), "queue", "list", **own)
    assert done.exit_code == 0
    assert done.stderr.splitlines() == (
        [f"zq: {file} contains a token, and other users can read or write it. Run: chmod 600 {file}"] if warned else []
    )
    assert zq.run("--config", str(file), "--token", "other", "queue", "list", **own).stderr == ""


@pytest.mark.parametrize(
    ("url", "warned"),
    [
        ("http://10.255.255.1:8888", True),
        ("http://queues.example.invalid", True),
        *((f"http://{here}:1", False) for here in ("localhost", "127.0.0.1", "[::1]")),
        ("https://127.0.0.1:1", False),
    ],
)
def test_a_token_in_clear_over_the_network_is_warned_of(url: str, warned: bool) -> None:
    """A token may be sent to this machine or over TLS without a warning."""
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zq.cli.profiles.note", found.append)
        connection({"url": url, "token": "t0ken", "project": "acme"}, None, None)
        assert [sentence for sentence in found if "t0ken" in sentence] == []
        assert bool(found) is warned
        found.clear()
        connection({"url": url, "project": "acme"}, None, None)
        assert found == []
