# SPDX-License-Identifier: Apache-2.0
"""Policy files that oslo.policy accepts silently, but that zq refuses as a whole (tenancy 4)."""

import subprocess
import sys
from pathlib import Path

import pytest

from zq.audit import Audit
from zq.auth.policy import RULES, Policy
from zq.errors import StartRefused
from zq.model.audit import Entry
from zq.model.identity import Identity

MEMBER, READER = (Identity("acme", "u1", frozenset({role})) for role in ("member", "reader"))
ADMIN = Identity("acme", "u1", frozenset({"admin"}))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "policy.yaml"


def test_a_file_changes_the_rules_that_it_names_and_no_others(path: Path) -> None:
    path.write_text('"queues:create": "role:member"\n"queues:get": "rule:queues:create or role:reader"\n')
    policy = Policy(str(path))
    assert policy("queues:create", MEMBER)
    assert not policy("queues:create", READER)
    assert policy("queues:get", READER)
    assert policy("messages:create", READER), "as the table has it"
    assert policy("admin:project", ADMIN)
    assert not policy("admin:project", MEMBER)
    assert not policy("queues:invent", ADMIN), "a rule that is not in the table is denied (H4)"


@pytest.mark.parametrize(
    ("check", "allowed"),
    [
        ("!", False),
        ("@", True),
        ("", True),
        ("not role:reader", True),
        ("user_id:u1 and project_id:%(project_id)s", True),
        ("user_id:u2", False),
        ("role:admin or ! or role:member", True),
        ("'acme':%(project_id)s", True),
    ],
)
def test_every_form_of_a_check_is_understood(path: Path, check: str, allowed: bool) -> None:
    path.write_text(f'"queues:create": "{check}"\n')
    assert Policy(str(path))("queues:create", MEMBER) is allowed


def test_roles_are_compared_without_regard_to_case(path: Path) -> None:
    path.write_text('"queues:create": "role:Member"\n')
    assert Policy(str(path))("queues:create", MEMBER)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('"queue:create": "@"', "'queue:create' is not a rule"),
        ('"admin_required": "role:admin"', "'admin_required' is not a rule"),
        ('"queues:create": "role:member or"', "cannot be parsed as a check"),
        ('"queues:create": "nonsense"', "cannot be parsed as a check"),
        ('"queues:create": "role:member or nonsense"', "cannot be parsed as a check"),
        ('"queues:create": "(role:member"', "cannot be parsed as a check"),
        ('"queues:create": "rule:owner"', "it refers to 'owner', which is not a rule"),
        ('"queues:create": "rule:queues:create"', "the rule queues:create refers to itself"),
        ('"queues:create": "rule:queues:get"\n"queues:get": "rule:queues:create"', "refers to itself"),
        ('"queues:create": "projet_id:%(project_id)s"', "'projet_id' is not an attribute of callers"),
        ('"queues:create": "project_id:%(tenant)s"', "is not a target"),
        ('"queues:create": "http://localhost/%(name)s"', "which is not supported"),
        ('"queues:create": 1', "must be a quoted string"),
        ('"queues:create": null', "must be a quoted string"),
        ("- a\n- b", "it must map rule names to checks"),
        ("{", "cannot be used"),
        ('"queues:create": [["role:member"]]', "must be a quoted string"),
    ],
)
def test_a_file_with_one_fault_is_refused_as_a_whole(path: Path, text: str, fault: str) -> None:
    path.write_text(f'"queues:get": "role:member"\n{text}\n' if text[0] == '"' else text)
    with pytest.raises(StartRefused) as refusal:
        Policy(str(path))
    assert str(refusal.value).startswith(f"[oslo_policy] policy_file {path} cannot be used: ")
    assert fault in str(refusal.value)


def test_a_file_that_is_not_there_is_refused(path: Path) -> None:
    with pytest.raises(StartRefused, match=r"cannot be used: .*No such file"):
        Policy(str(path))


def test_a_reload_of_a_wrong_file_keeps_the_old_rules(path: Path) -> None:
    """After HUP, the old rules and cached decisions stay in force."""
    path.write_text('"queues:create": "role:member"\n')
    policy = Policy(str(path))
    assert not policy("queues:create", READER)
    path.write_text('"queues:create": "role:reader"\n"queues:gat": "@"\n')
    with pytest.raises(StartRefused):
        policy.load(str(path))
    assert policy("queues:create", MEMBER)
    assert not policy("queues:create", READER)
    path.write_text('"queues:create": "role:reader"\n')
    policy.load(str(path))
    assert policy("queues:create", READER)
    assert not policy("queues:create", MEMBER)
    policy.load("")
    assert policy("queues:create", MEMBER)


def test_a_reload_is_logged_and_audited(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A wrong file is logged as an ERROR and audited; a changed file is audited; an unchanged file is not."""
    told: list[tuple[str, str]] = []

    class Noted(Audit):
        def log_change(self, entry: Entry) -> None:
            told.append((entry.object, entry.outcome))

    policy = Policy()
    policy.reload("", Noted())
    assert told == []
    path.write_text('"queues:create": "role:reader"\n')
    policy.reload(str(path), Noted())
    policy.reload(str(path), Noted())
    assert told == [("policy", "done")]
    path.write_text('"queues:gat": "@"\n')
    policy.reload(str(path), Noted())
    assert told[1:] == [("policy", "refused")]
    assert "The previous policy stays in use: [oslo_policy] policy_file" in caplog.text
    assert policy("queues:create", READER)


def test_the_file_of_the_page_is_read(path: Path) -> None:
    page = (Path(__file__).parent.parent.parent / "api-ref" / "policy.md").read_text()
    path.write_text(page.partition("```yaml\n")[2].partition("```")[0])
    policy = Policy(str(path))
    operator = Identity("acme", roles=frozenset({"operator"}))
    assert policy("queues:delete", operator)
    assert not policy("queues:delete", MEMBER)
    assert not policy("queues:purge", ADMIN)


def test_every_rule_of_the_table_is_on_the_page() -> None:
    """A rule is documented by its full name, or by its last part in a row that names the prefix."""
    page = (Path(__file__).parent.parent.parent / "api-ref" / "policy.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    for rule in RULES:
        word, _, name = rule.partition(":")
        assert any(f"`{rule}`" in row or (f"`{word}:" in row and f"`{name}`" in row) for row in rows), rule


def test_every_rule_may_stand_in_a_file(path: Path) -> None:
    path.write_text("".join(f'"{name}": "role:auditor"\n' for name in RULES))
    policy = Policy(str(path))
    assert all(policy(name, Identity("p", roles=frozenset({"auditor"}))) for name in RULES)
    assert not any(policy(name, ADMIN) for name in RULES)


def test_without_a_file_its_library_is_not_imported() -> None:
    """The library takes 20 MB of memory."""
    code = "import sys; from zq.auth.policy import Policy; Policy(); print('oslo_policy' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"
