# SPDX-License-Identifier: Apache-2.0
"""Access keys of SQS: their storage, lookup and administration."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.http.api import Api
from tests.tables import every_row
from zq.clock import ManualClock
from zq.errors import Invalid, NotFound, QuotaExceeded, StartRefused, TooManyRequests
from zq.model.documents import DocumentRef
from zq.serving import control, credential_commands
from zq.sqs.feature import SqsFeature
from zq.sqs.key_command import COMMAND
from zq.sqs.keys import KEY, MAX_KEYS, SqsKeyLookup, SqsKeys
from zq.sqs.sigv4 import SignatureRejection
from zq.storage.api import Storage

Compose = Callable[..., Api]
MASTERS = {"new": b"n" * 32, "old": b"o" * 32}
PATH = "/v2/admin/sqs-keys"


@pytest.fixture
def keys(storage: Storage, clock: ManualClock) -> SqsKeys:
    return SqsKeys(storage.documents, clock, MASTERS)


def test_a_secret_is_sealed_and_opened(
    keys: SqsKeys, storage: Storage, clock: ManualClock, project_suffix: str
) -> None:
    """The first key of the file seals, and any key of it opens; another key's sealed secret cannot be opened."""
    project = f"sealed{project_suffix}"
    made, other = keys.create(project, ["SendMessage"]), keys.create(project)
    assert len(made.secret) == 40
    document = storage.documents.get(DocumentRef("", KEY, made.key.id), clock.now())
    assert document is not None
    assert made.secret.encode() not in document.value
    assert json.loads(document.value)["master"] == "new"
    holder = keys.find_valid(made.key.id)
    assert holder is not None
    assert (holder.project, holder.actions, holder.secret) == (project, {"SendMessage"}, made.secret)
    keys.replace(dict(reversed(MASTERS.items())))
    assert keys.find_valid(made.key.id) == holder
    taken = storage.documents.get(DocumentRef("", KEY, other.key.id), clock.now())
    assert taken is not None
    storage.documents.put(document.ref, taken.value, clock.now())
    assert keys.find_valid(made.key.id) is None
    keys.replace({"old": MASTERS["old"]})
    assert keys.find_valid(other.key.id) is None


def test_without_a_key_file_a_key_is_plain(storage: Storage, clock: ManualClock, project_suffix: str) -> None:
    """The caller must request a plain key."""
    keys = SqsKeys(storage.documents, clock, {})
    with pytest.raises(Invalid, match="key_file"):
        keys.create(f"plain{project_suffix}")
    made = keys.create(f"plain{project_suffix}", plain=True)
    holder = keys.find_valid(made.key.id)
    assert holder is not None
    assert holder.secret == made.secret


def test_a_key_ends(keys: SqsKeys, clock: ManualClock, project_suffix: str) -> None:
    """A key ends when it expires, is disabled or is deleted; an enabled key is valid again."""
    project = f"ends{project_suffix}"
    short, long = keys.create(project, days=1), keys.create(project)
    assert {key.id for key in keys.list(project, "", 10).items} == {short.key.id, long.key.id}
    keys.disable(short.key.id)
    assert keys.find_valid(short.key.id) is None
    keys.disable(short.key.id, disabled=False)
    assert keys.find_valid(short.key.id) is not None
    clock.advance(86_401)
    assert keys.find_valid(short.key.id) is None
    assert [key.id for key in keys.list(project, "", 10).items] == [long.key.id]
    keys.delete(long.key.id)
    assert keys.find_valid(long.key.id) is None
    assert keys.list(project, "", 10).items == []
    for verb in (keys.delete, keys.disable, keys.get):
        with pytest.raises(NotFound):
            verb(long.key.id)


def test_a_project_has_a_bounded_number_of_keys(keys: SqsKeys, project_suffix: str) -> None:
    """A deleted key makes room."""
    project = f"many{project_suffix}"
    made = [keys.create(project, plain=True) for _ in range(MAX_KEYS)]
    with pytest.raises(QuotaExceeded):
        keys.create(project, plain=True)
    keys.delete(made[0].key.id)
    keys.create(project, plain=True)


def test_a_key_is_remembered_for_a_second(keys: SqsKeys, clock: ManualClock, project_suffix: str) -> None:
    """A key that another server disables is refused within a second."""
    now = [100.0]
    lookup = SqsKeyLookup(keys, clock, lambda: now[0])
    made = keys.create(f"recent{project_suffix}")
    assert lookup.find(made.key.id, "::1").secret == made.secret
    keys.disable(made.key.id)
    now[0] += 0.9
    assert lookup.find(made.key.id, "::1").secret == made.secret
    now[0] += 0.2
    with pytest.raises(SignatureRejection, match=r"The security token included in the request is invalid\."):
        lookup.find(made.key.id, "::1")


def test_an_address_that_guesses_is_slowed(keys: SqsKeys, clock: ManualClock, project_suffix: str) -> None:
    """The address cannot look up other keys for a while; other addresses can."""
    now = [100.0]
    lookup = SqsKeyLookup(keys, clock, lambda: now[0])
    made = keys.create(f"guess{project_suffix}")
    for number in range(50):
        with pytest.raises(SignatureRejection):
            lookup.find(f"ZQGUESS{number}", "192.0.2.1")
    with pytest.raises(TooManyRequests):
        lookup.find(made.key.id, "192.0.2.1")
    assert lookup.find(made.key.id, "192.0.2.2").project == f"guess{project_suffix}"


def test_a_key_that_was_valid_is_looked_up_whatever_its_address_did(
    keys: SqsKeys, clock: ManualClock, project_suffix: str
) -> None:
    """The key is valid beyond its cache entry of a second; once the key ends, the address is limited."""
    now = [100.0]
    lookup = SqsKeyLookup(keys, clock, lambda: now[0])
    made = keys.create(f"neighbour{project_suffix}")
    assert lookup.find(made.key.id, "192.0.2.1")
    for number in range(60):
        with pytest.raises((SignatureRejection, TooManyRequests)):
            lookup.find(f"ZQGUESS{number}", "192.0.2.1")
    now[0] += 1.1
    for number in range(60):
        with pytest.raises((SignatureRejection, TooManyRequests)):
            lookup.find(f"ZQGUESS{number}", "192.0.2.1")
    assert lookup.find(made.key.id, "192.0.2.1")
    keys.disable(made.key.id)
    now[0] += 1.1
    for number in range(60):
        with pytest.raises((SignatureRejection, TooManyRequests)):
            lookup.find(f"ZQGUESS{number}", "192.0.2.1")
    with pytest.raises(SignatureRejection):
        lookup.find(made.key.id, "192.0.2.1")
    now[0] += 1.1
    for number in range(60):
        with pytest.raises((SignatureRejection, TooManyRequests)):
            lookup.find(f"ZQGUESS{number}", "192.0.2.1")
    with pytest.raises(TooManyRequests):
        lookup.find(made.key.id, "192.0.2.1")


def test_administrators_make_and_end_keys(compose: Compose, keys: SqsKeys) -> None:
    """The secret is shown once, the list has pages, and other callers get 403."""
    administrator = compose(app={"features": [SqsFeature(keys)], "trusts_network": True})
    admin = {"X-Roles": "admin"}
    where = f"{PATH}?project={administrator.project}"
    administrator.get(where, 403)
    made = administrator.post(where, 201, {"actions": ["SendMessage"], "days": 1}, admin)
    assert made.headers["Cache-Control"] == "no-store"
    assert (made.json["project"], made.json["actions"], made.json["plain"]) == (
        administrator.project,
        ["SendMessage"],
        False,
    )
    another = administrator.post(where, 201, headers=admin).json
    first = administrator.get(f"{where}&limit=1", 200, admin).json
    second = administrator.get(first["links"][0]["href"], 200, admin).json
    listed = [*first["keys"], *second["keys"]]
    assert {key["id"] for key in listed} == {made.json["id"], another["id"]}
    assert all("secret" not in key for key in listed)
    one = f"{PATH}/{another['id']}"
    assert administrator.put(one, 200, {"disabled": True}, admin).json["disabled"] is True
    assert administrator.get(one, 200, admin).json | {"secret": another["secret"]} == another | {"disabled": True}
    administrator.delete(one, 204, admin)
    administrator.get(one, 404, admin)


@every_row(
    ("query", "terms"),
    [
        ("", {}),
        ("?project=" + "p" * 300, {}),
        ("?project=p", {"actions": []}),
        ("?project=p", {"actions": ["Fly"]}),
        ("?project=p", {"days": 0}),
        ("?project=p", {"days": 3661}),
        ("?project=p", {"plain": 1}),
    ],
)
def test_terms_that_make_no_key_are_refused(compose: Compose, keys: SqsKeys, query: str, terms: Any) -> None:
    compose(app={"features": [SqsFeature(keys)], "trusts_network": True}).post(
        f"{PATH}{query}", 400, terms, {"X-Roles": "admin"}
    )


def test_the_command_makes_and_ends_keys(
    compose: Compose, keys: SqsKeys, tmp_path: Path, project_suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command calls the server that has the store open: it creates, lists, disables, enables and deletes keys."""
    socket = str(tmp_path / "c.sock")
    control.serve(socket, compose(app={"features": [SqsFeature(keys)]}).app)
    project = f"command{project_suffix}"

    def command(*arguments: str) -> str:
        ask = credential_commands.connect(socket, lambda: pytest.fail("not asked"))
        assert credential_commands.run(COMMAND, credential_commands.parse(COMMAND, arguments), ask) == 0
        return capsys.readouterr().out

    id, secret = command("create", "--project", project, "--action", "SendMessage", "--days", "2").split()
    holder = keys.find_valid(id)
    assert holder is not None
    assert (holder.secret, holder.actions) == (secret, {"SendMessage"})
    assert command("list", "--project", project).startswith(f"{id} of {project}: SendMessage; enabled; until 2")
    command("disable", id)
    assert "; disabled;" in command("list", "--project", project)
    command("enable", id)
    assert keys.find_valid(id) is not None
    command("delete", id)
    assert command("list", "--project", project) == ""
    with pytest.raises(StartRefused, match="no SQS access key"):
        command("disable", id)
