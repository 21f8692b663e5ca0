# SPDX-License-Identifier: Apache-2.0
"""``api-ref/migration-from-zaqar.md``: OpenStack's command line without Keystone works as described."""

import re
import subprocess
from importlib.metadata import entry_points
from pathlib import Path

from tests.blocks import ROOT, only
from tests.reader import SHELL, follow
from tests.servers import ZqServer
from zq.core.metadata import NOT_ENCRYPTED

PAGE = ROOT / "api-ref" / "migration-from-zaqar.md"
BY_VARIABLES, BY_CLOUDS = (
    only("api-ref/migration-from-zaqar.md", "sh", part) for part in ("export OS_", "OS_CLOUD=zq")
)
CLOUDS = only("api-ref/migration-from-zaqar.md", "yaml")
COMMANDS = {
    command: works == "yes"
    for cells, works in re.findall(r"^\| ((?:`[a-z ]+`(?:, )?)+) \| (yes|no) \|", PAGE.read_text(), re.MULTILINE)
    for command in re.findall(r"`([a-z ]+)`", cells)
}
BY_FILE_NOW = "unset OS_AUTH_TYPE OS_AODH_ENDPOINT OS_PROJECT_ID OS_USER_ID OS_ROLES; mv later.yaml clouds.yaml"

REFUSED = """\
messaging queue set metadata orders '{\\"_enable_encrypt_messages\\":true}'
messaging pool create north mongodb://localhost 10
messaging pool list
messaging pool show north
messaging pool update north --pool_weight 3
messaging pool delete north
messaging flavor create fast --pool_list north
messaging flavor list
messaging flavor show fast
messaging flavor update fast --pool_list north
messaging flavor delete fast
messaging health
"""


def run(lines: str, server: ZqServer, project: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run lines in a reader's shell, with the page's ``clouds.yaml`` saved as ``later.yaml``."""

    def adapted(text: str) -> str:
        return text.replace("http://localhost:8888", server.url).replace("acme", project)

    (folder / "later.yaml").write_text(adapted(CLOUDS))
    return follow([*SHELL, adapted(lines)], folder)


def test_the_commands_do_what_the_page_says(running: ZqServer, project: str, tmp_path: Path) -> None:
    """The page's session works with variables and with ``clouds.yaml``; unsupported commands are rejected."""
    lines = f"{BY_VARIABLES}\n{BY_FILE_NOW}\n{BY_CLOUDS}".replace("\nEND\n", f"\n{REFUSED}END\n")
    done = run(lines, running, project, tmp_path)
    assert done.returncode == 0, done.stderr
    table = re.sub(r" +", " ", done.stdout)
    assert "is not an openstack command" not in table
    assert len(re.findall(r"^\| \| \d+ \| 600 \| \{'order': 1\} \|$", table, re.MULTILINE)) == 2  # query, renew
    assert "{'order': 1}\n{'order': 2}\n{'order': 3}\n" in table
    assert "| Name | parcels |" in table
    assert "'colour': 'blue'" in table
    assert "| orders |\n| parcels |" in table
    assert re.findall(r"'claimed': \d+, 'free': \d+, 'total': \d+", table) == [
        "'claimed': 0, 'free': 3, 'total': 3",
        "'claimed': 0, 'free': 0, 'total': 0",
    ]
    assert "| Pingable | True |" in table
    assert '"rel/queues"' in table
    assert re.search(r"'?[Ss]ignature'? ?[|:] ?'?[0-9a-f]{64}", table)

    assert "| Subscriber | mailto:ops@example.org |" in table
    # The second list, after the deletion, is empty.
    assert (
        len(re.findall(r"^\| \w{32} \| mailto:ops@example.org \| 700 \| \d+ \| False \| {} \|$", table, re.MULTILINE))
        == 1
    )
    refused = [line.partition("Error response from Zaqar. ")[2].removesuffix(".") for line in done.stderr.splitlines()]
    not_built, unknown = refused[0], refused[1:]
    reason = f"_enable_encrypt_messages: {NOT_ENCRYPTED}"
    assert not_built == f"Code: 400. Title: Not implemented. Description: {reason}"
    assert len(unknown) == 11
    assert {line.partition(". Title")[0] for line in unknown} == {"Code: 404"}


def test_without_a_project_the_sentence_says_so(running: ZqServer, project: str, tmp_path: Path) -> None:
    """The auth type ``none`` reaches zq, and the response names the missing header."""
    lines = "openstack --os-auth-type none --os-endpoint http://localhost:8888 messaging queue list"
    done = run(lines, running, project, tmp_path)
    assert done.returncode == 1
    assert "The header X-Project-ID is missing" in done.stderr


def test_every_command_of_the_plugin_is_on_the_page_and_tried() -> None:
    """The page's table has all commands: the session has the supported ones, and ``REFUSED`` the others."""
    plugin = {point.name.replace("_", " ") for point in entry_points(group="openstack.messaging.v2")}
    assert {f"messaging {command}" for command in COMMANDS} == plugin
    session = BY_VARIABLES + BY_CLOUDS
    assert {command for command in COMMANDS if f"messaging {command}" in session} == {
        command for command, works in COMMANDS.items() if works
    }
    assert [c for c, works in COMMANDS.items() if not works and f"messaging {c}" not in REFUSED] == []
