# SPDX-License-Identifier: Apache-2.0
"""``zq apply`` and ``zq export --settings``."""

import os
import pty
import re
import stat
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import yaml

from tests.cli.conftest import Zq
from tests.cli.launcher import Launcher
from tests.servers import ZqServer, wait_for
from tests.stores import RedisServer
from tests.tables import every_row
from zq.auth.tokens import format_token
from zq.cli.declared.declaration import Resource, Subscription, read_declaration
from zq.cli.declared.document import FileErrors
from zq.cli.declared.kinds import Mode, Subscriptions, declared_kinds, targets_first
from zq.cli.declared.plan import Plan, carry_out, make_plan
from zq.client import Client
from zq.model.limits import Limits

CONFIG = """\
[DEFAULT]
auth_strategy = token
admin_mode = true
pooling = true
[auth]
bootstrap_token_file = {}
[expiry]
queue_ttl = short.*: 120
[notification]
allowed_networks = 127.0.0.0/8
require_confirmation = false
[pooling:catalog]
enable_virtual_pool = true
queue_moves = true
allowed_hosts = memory:,127.0.0.1
[signed_url]
secret_key = kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk
"""
ADMIN = format_token("a" * 10, "b" * 43)
HOOK = "http://127.0.0.1:9099/hook"
EMPTY = "queues: {}\nsubscriptions: []"
DEAD = (
    "queues: {orders: {settings: {_dead_letter_queue: orders.dead, _max_claim_count: 5, owner: shop}}, orders.dead: }"
)


class Team(Zq):
    """The command line with its own project and a token for it."""

    def __init__(self, url: str, folder: Path, launcher: Launcher, **rights: Any) -> None:
        super().__init__(url, folder, launcher)
        self.env["ZQ_TOKEN"] = make_token(url, self.project, **rights)

    def client(self) -> Client:
        return Client(self.env["ZQ_URL"], self.project, token=self.env["ZQ_TOKEN"])

    def wait_for_a_delivery(self) -> None:
        """Wait until a delivery to a subscriber is pending."""
        with self.client() as client:
            wait_for(lambda: any(each.waiting for each in client.subscriptions()), 30, "a waiting delivery")


def make_token(url: str, project: str, **rights: Any) -> str:
    made = httpx.post(
        f"{url}/v2/admin/tokens",
        params={"project": project},
        json={"name": "ci", **rights},
        headers={"Authorization": f"Bearer {ADMIN}"},
    )
    token: str = made.raise_for_status().json()["token"]
    return token


def server_with_pools(folder: Path) -> ZqServer:
    """Return a server with tokens, quotas and pools, which the caller must start."""
    file = folder / "token"
    file.write_text(ADMIN)
    file.chmod(stat.S_IRUSR | stat.S_IWUSR)
    return ZqServer("memory:", config=CONFIG.format(file))


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZqServer]:
    with server_with_pools(tmp_path_factory.mktemp("bootstrap")) as server:
        yield server


@pytest.fixture
def admin(deployment: ZqServer, tmp_path: Path, launcher: Launcher) -> Team:
    return Team(deployment.url, tmp_path, launcher, roles=["admin", "member"])


@pytest.fixture
def team(deployment: ZqServer, tmp_path: Path, launcher: Launcher) -> Team:
    return Team(deployment.url, tmp_path, launcher)


def dead(queue: str) -> str:
    return f"{{settings: {{_dead_letter_queue: {queue}}}}}"


def apply(zq: Zq, text: str, *options: str, code: int = 0) -> tuple[list[str], list[str]]:
    """Apply a file, and return the lines of standard output and standard error."""
    result = zq.run("apply", "-f", "-", *options, given=text if text.startswith("version") else f"version: 1\n{text}")
    assert result.exit_code == code, result.output
    return result.stdout.splitlines(), [line.removeprefix("zq: ") for line in result.stderr.splitlines()]


def test_all_sections_are_applied_once_and_their_export_changes_nothing(admin: Team) -> None:
    text = f"""\
version: 1
quotas: {{{admin.project}: {{limits: {{queues: 5}}}}}}
pools: {{fast: {{uri: "memory:", weight: 10}}}}
flavors: {{gold: {{pools: [fast]}}}}
queues:
  orders: {{settings: {{_dead_letter_queue: orders.dead, _max_claim_count: 5, _flavor: gold, owner: {{team: shop}}}}}}
  orders.dead: {{settings: {{_flavor: gold, _history_ttl: 600}}}}
  plain:
topics: {{news: {{settings: {{_default_message_ttl: 900}}}}}}
subscriptions:
  - {{queue: orders, subscriber: "{HOOK}", ttl: 86400, options: {{post_headers: {{X-Key: s3cret}}, subject: new}}}}
  - {{topic: news, subscriber: "{HOOK}", ttl: 86400}}
tokens: {{shop: {{scopes: ["produce:orders"], days: 30}}}}
"""
    planned, _ = apply(admin, text, "--dry-run", code=8)
    assert planned[-1] == "9 to create, 1 to change, 0 to delete."
    assert admin("queue", "list") == []
    assert apply(admin, text, code=6)[1] == [
        "tokens.shop does not exist, and standard output is not a terminal: use --create-tokens to create it and print "
        "its secret.",
        "Nothing was changed.",
    ]
    done, _ = apply(admin, text, "--create-tokens")
    assert done[-1] == "9 created, 1 changed, 0 deleted."
    assert done[:-2] == planned[:-1]
    names = [line[2:] for line in done if line[0] in "+~"]
    assert names == [
        f"quota {admin.project}",
        "pool fast",
        "flavor gold",
        "queue orders.dead",
        "queue orders",
        "queue plain",
        "topic news",
        f"subscription queue orders {HOOK}",
        f"subscription topic news {HOOK}",
        "token shop",
    ]
    secret = done[-2].removeprefix("token shop: ")
    assert secret.startswith("zq_")
    assert apply(admin, text, "--dry-run") == (["Nothing to change."], [])
    assert apply(admin, text) == (["Nothing to change."], [])
    exported = admin.run("export", "--settings")
    assert (exported.exit_code, exported.stderr) == (0, "")
    assert apply(admin, exported.stdout, "--prune") == (["Nothing to change."], [])
    assert not re.search(rf"s3cret|{secret}", "".join([*planned, *done[:-2], exported.stdout]))
    document = yaml.safe_load(exported.stdout)
    assert {*document} == {*yaml.safe_load(text)}
    assert document["queues"]["orders.dead"] == {"settings": {"_flavor": "gold", "_history_ttl": 600}}
    # A server can accept the limits of a quota and refuse a queue beyond it: the earlier changes remain.
    more = "queues: {a: , b: , c: , d: , e: }"
    _, errors = apply(admin, more, code=5)
    assert errors == ["queue c: The project may have at most 5 queues. 2 of 5 changes were made."]
    empty = "queues: {}\nsubscriptions: []\nflavors: {}\nquotas: {}"
    removed, errors = apply(admin, empty, "--prune", code=6)
    assert errors[0] == "queue orders.dead is not in the file and holds history: use --force to delete it."
    assert removed[-4:] == ["- flavor gold", '    - pools: ["fast"]', f"- quota {admin.project}", "    - queues: 5"]
    removed, _ = apply(admin, empty, "--prune", "--force")
    assert removed[-1] == "0 created, 0 changed, 9 deleted."
    admin.refused(3, "queue", "show", "orders")


def test_drift_is_found_and_mended(zq: Zq) -> None:
    """Only the pause stays, because an operator sets a pause; a file changes a pause only if it names one."""
    assert apply(zq, DEAD)[0][-1] == "2 created, 0 changed, 0 deleted."
    zq("queue", "set", "orders", "_max_claim_count=7", "colour=red", "--unset", "owner")
    zq("queue", "pause", "orders")
    zq("queue", "delete", "orders.dead")
    expected = [
        "+ queue orders.dead",
        "~ queue orders",
        "    ~ _max_claim_count: 7 → 5",
        "    + owner: shop",
        "    - colour: red",
    ]
    assert apply(zq, DEAD, "--dry-run", code=8)[0] == [*expected, "1 to create, 1 to change, 0 to delete."]
    changes = zq.run("apply", "-f", "-", "--dry-run", "--json", "--query", "fields[].name", given=f"version: 1\n{DEAD}")
    assert (changes.exit_code, '"colour"' in changes.stdout) == (8, False)
    assert apply(zq, DEAD)[0] == [*expected, "1 created, 1 changed, 0 deleted."]
    assert apply(zq, DEAD)[0] == ["Nothing to change."]
    assert zq("queue", "show", "orders")[0]["_paused"] == "all"
    assert apply(zq, "queues: {orders.dead: {settings: {_paused: null, a: true, b: 0}}}")[0][1:3] == [
        "    + a: true",
        "    + b: 0",
    ]
    assert apply(zq, "queues: {orders.dead: {settings: {a: 1, b: 0}}}")[0][1] == "    ~ a: true → 1"
    resumed = apply(zq, "queues: {orders: {settings: {_paused: null}}}")[0]
    assert "    - _paused: all" in resumed
    assert "_paused" not in zq("queue", "show", "orders")[0]


def test_subscriptions_are_compared_by_their_subscriber(team: Team) -> None:
    def text(ttl: int, options: str) -> str:
        one = f"{{queue: orders, subscriber: '{HOOK}', ttl: {ttl}, options: {options}}}"
        return f"queues: {{orders: }}\nsubscriptions: [{one}]"

    first = text(600, "{post_headers: {X-Key: a}}")
    apply(team, first)
    (before,) = team("subscription", "list", "orders")
    masked = text(900, "{post_headers: {X-Key: '***'}, subject: s, trust_id: '***'}")
    assert apply(team, masked)[0][1:3] == ["    ~ ttl: 600 → 900", "    + options.subject: s"]
    (after,) = team("subscription", "list", "orders")
    assert (after["id"], after["ttl"], after["options"]) == (
        before["id"],
        900,
        {"post_headers": {"X-Key": "***"}, "subject": "s"},
    )
    assert apply(team, masked)[0] == ["Nothing to change."]
    unknown = text(900, "{post_headers: {X-Other: '***'}}")
    _, errors = apply(team, unknown, code=6)
    assert errors == [
        f"subscriptions: the header X-Other of queue orders {HOOK} is ***, the placeholder of an export: write its "
        "value.",
        "Nothing was changed.",
    ]
    team("subscription", "delete", "orders", after["id"])
    assert apply(team, first)[0][0] == f"+ subscription queue orders {HOOK}"
    assert (
        apply(team, "queues: {orders: }\nsubscriptions: []", "--prune")[0][0] == f"- subscription queue orders {HOOK}"
    )


def test_a_prune_deletes_only_objects_of_declared_sections_and_no_messages(team: Team) -> None:
    """A prune keeps the dead-letter queue of a declared queue and the caller's own token."""
    for name in ("old", "empty", "orders.dead"):
        team("queue", "create", name)
    team("post", "old", "1")
    team("topic", "create", "news")
    own = team("whoami")[0]["credential"]
    (other,) = team("token", "create", "--name", "other")
    (again,) = team("token", "create", "--name", "other", "--scope", "produce:**")
    (unnamed,) = team("token", "create")
    tokens = (other, "null"), (again, '["produce:**"]')
    text = "queues: {orders: {settings: {_dead_letter_queue: orders.dead}}}\ntokens: {}"
    lines, errors = apply(team, text, "--prune", code=6)
    assert lines == [
        "+ queue orders",
        "    + _dead_letter_queue: orders.dead",
        "- token other",
        *sorted(f'    - {each["id"]}: {{"scopes":{scopes},"roles":["member"]}}' for each, scopes in tokens),
        "- queue old (1 message)",
        "- queue empty",
    ]
    assert errors == [
        "queue old is not in the file and holds 1 message: use --force to delete it.",
        "Nothing was changed.",
    ]
    assert {queue["name"] for queue in team("queue", "list")} == {"old", "empty", "orders.dead"}
    assert apply(team, text, "--force", code=2)[1] == ["--force needs --prune."]
    assert apply(team, text, "--prune", "--force")[0][-1] == "1 created, 0 changed, 3 deleted."
    assert {queue["name"] for queue in team("queue", "list")} == {"orders", "orders.dead"}
    assert [topic["name"] for topic in team("topic", "list")] == ["news"]
    assert {token["id"] for token in team("token", "list")} == {own, unnamed["id"]}


def test_a_token_with_other_rights_is_made_beside_the_old_one(team: Team) -> None:
    """The rights of a token cannot change. A prune keeps both tokens, because consumers may use the old one."""
    (old,) = team("token", "create", "--name", "shop", "--scope", "produce:**")
    text = 'tokens: {shop: {scopes: ["produce:orders", "observe:orders"]}}'
    lines, _ = apply(team, text, "--prune", "--create-tokens")
    assert lines[0] == f"+ token shop (in addition to {old['id']}, with other rights)"
    tokens = {token["id"] for token in team("token", "list")}
    assert len(tokens) == 3
    assert old["id"] in tokens
    for declared in (text, team.run("export", "--settings").stdout):
        assert apply(team, declared, "--prune")[0] == ["Nothing to change."]
    assert {token["id"] for token in team("token", "list")} == tokens


def test_a_token_with_further_roles_is_drift_if_the_file_omits_roles(team: Team) -> None:
    """Without ``roles``, a token must have the roles of a new token, which are the creator's without ``admin``."""
    url, project = team.env["ZQ_URL"], team.project
    (own,) = team("token", "list")
    make_token(url, project, name="shop", roles=["member", "auditor"])
    lines, _ = apply(team, "tokens: {shop: }", "--dry-run", code=8)
    assert re.match(r"\+ token shop \(in addition to \w{10}, with other rights\)", lines[0])
    apply(team, "tokens: {shop: }", "--create-tokens")
    assert apply(team, "tokens: {shop: }") == (["Nothing to change."], [])
    assert sorted(each["roles"] for each in team("token", "list") if each["id"] != own["id"]) == [
        ["auditor", "member"],
        ["member"],
    ]


def test_the_secret_of_a_new_token_is_shown_whatever_the_query(team: Team) -> None:
    text = "version: 1\ntokens: {a: , b: }"
    for form in ("json", "yaml"):
        options = ("--create-tokens", "--output", form, "--query", "[].name")
        shown = team.run("apply", "-f", "-", *options, given=text.replace("a:", f"{form}:"))
        assert shown.exit_code == 0
        assert shown.stdout.count('"token":"zq_' if form == "json" else "token: zq_") == (2 if form == "json" else 1)
        assert form == "json" or isinstance(yaml.safe_load(shown.stdout), list)


def test_a_terminal_suffices_to_create_a_token(team: Team, tmp_path: Path) -> None:
    file = tmp_path / "zq.yaml"
    file.write_text("version: 1\ntokens: {shop: }")
    code, shown, _ = team.on_terminal("apply", "-f", str(file), NO_COLOR="1")
    assert (code, "token shop: zq_" in shown) == (0, True)


def test_a_prune_needs_force_for_history_and_deliveries(team: Team) -> None:
    """The server counts no history, so each queue that keeps one needs ``--force``."""
    old = "old: {settings: {_history_ttl: 600, owner: shop}}"
    apply(team, f"queues: {{{old}}}\nsubscriptions: [{{queue: old, subscriber: '{HOOK}', ttl: 600}}]")
    team("post", "old", "1")
    team.wait_for_a_delivery()
    lines, errors = apply(team, EMPTY, "--prune", code=6)
    assert lines == [
        f"- subscription queue old {HOOK} (waiting deliveries)",
        "    - ttl: 600",
        "- queue old (1 message and history)",
        "    - _history_ttl: 600",
        "    - owner: shop",
    ]
    assert errors == [
        f"subscription queue old {HOOK} is not in the file and holds waiting deliveries: use --force to delete it.",
        "queue old is not in the file and holds 1 message and history: use --force to delete it.",
        "Nothing was changed.",
    ]
    assert apply(team, EMPTY, "--prune", "--force")[0][-1] == "0 created, 0 changed, 2 deleted."


def test_a_deletion_is_confirmed_and_data_that_came_meanwhile_is_kept(team: Team, tmp_path: Path) -> None:
    file = tmp_path / "zq.yaml"
    file.write_text(f"version: 1\n{EMPTY}")
    apply(team, f"queues: {{old: }}\nsubscriptions: [{{queue: old, subscriber: '{HOOK}', ttl: 600}}]")

    def prune(answer: str, meanwhile: Callable[[], object] = list) -> tuple[int, str]:
        ours, theirs = pty.openpty()
        with team.start("apply", "-f", str(file), "--prune", stdin=theirs) as process:
            os.close(theirs)
            assert process.stderr is not None
            prompt = ""
            while not prompt.endswith("]:") and (character := process.stderr.read(1)):
                prompt += character
            meanwhile()
            os.write(ours, f"{answer}\n".encode())
            _, errors = process.communicate(timeout=60)
            os.close(ours)
            return process.returncode, prompt + errors

    def post() -> None:
        team("post", "old", "1")
        team.wait_for_a_delivery()

    assert prune("n") == (130, "Delete 2 objects? [y/N]:")
    code, errors = prune("y", post)
    assert code == 6
    assert errors.endswith(
        f"zq: subscription queue old {HOOK}: The subscription now holds waiting deliveries: use --force to delete it. "
        "0 of 2 changes were made.\n"
    )
    (subscription,) = team("subscription", "list", "old")
    team("subscription", "delete", "old", subscription["id"])
    team("queue", "purge", "old")
    code, errors = prune("y", lambda: team("post", "old", "1"))
    assert code == 6
    assert errors.endswith(
        "Delete 1 object? [y/N]:zq: queue old: The queue now holds 1 message: use --force to delete it. "
        "0 of 1 changes were made.\n"
    )


def test_a_pool_is_changed_without_its_credential(admin: Team) -> None:
    """An export masks the credential, and the server refuses the mask."""
    with RedisServer(None, "--requirepass", "s3cret") as store:
        pool = f"{{uri: '{store.uri.replace('//', '//:s3cret@')}', weight: 1}}"
        apply(admin, f"pools: {{store: {pool}}}")
        masked = pool.replace("s3cret@", "***@").replace(":***", "***")
        assert apply(admin, f"pools: {{store: {masked}}}")[0] == ["Nothing to change."]
        other_weight = masked.replace("weight: 1", "weight: 0")
        assert apply(admin, f"pools: {{store: {other_weight}}}")[0][:2] == ["~ pool store", "    ~ weight: 1 → 0"]
        _, errors = apply(admin, f"pools: {{other: {masked}}}", code=6)
        assert errors[0] == "pools.other.uri contains ***, the placeholder of an export: write the credential."
        with admin.client() as client:
            client.delete_pool("store")


def test_a_pool_that_the_server_keeps_is_reported_before_any_change(tmp_path: Path, launcher: Launcher) -> None:
    """The server keeps a pool with queues of any project, and the last pool of a flavor that the file does not name."""
    with server_with_pools(tmp_path) as server:
        admin = Team(server.url, tmp_path, launcher, roles=["admin", "member"])
        apply(admin, "pools: {full: {uri: 'memory:', weight: 1}}\nflavors: {gold: {pools: [full]}}\nqueues: {kept: }")
        assert apply(admin, "pools: {}\nqueues: {new: , kept: }", "--prune", code=6)[1] == [
            "pool full is not in the file, but the flavor gold would have no pool left. Delete the flavor first.",
            "Nothing was changed.",
        ]
        apply(admin, "queues: {orders: {settings: {_flavor: gold}}}")
        assert apply(admin, "pools: {}\nflavors: {}\nqueues: {new: , kept: }", "--prune", code=6)[1] == [
            "pool full is not in the file, but has queues, or had queues a few minutes ago. Move or delete the queues, "
            "and try again after a few minutes.",
            "Nothing was changed.",
        ]
        moved = "pools: {full: {uri: 'memory:/other', weight: 1}}\nqueues: {new: }"
        assert apply(admin, moved, code=6)[1] == [
            "pools.full.uri refers to another store, but the pool has queues, or had queues a few minutes ago. Move or "
            "delete the queues, and try again after a few minutes.",
            "Nothing was changed.",
        ]
        assert [queue["name"] for queue in admin("queue", "list")] == ["kept", "orders"]


def test_a_flavor_without_pools_is_exported(admin: Team) -> None:
    with admin.client() as client:
        client.put_pool("fast", "memory:", 1)
        client.put_flavor("silver", ["fast"])
        client.queue("orders").create({"_flavor": "silver"})
        client.update_pool("fast", flavor="")
    exported = admin.run("export", "--settings").stdout
    assert yaml.safe_load(exported)["flavors"] == {"silver": {"pools": []}}
    assert apply(admin, exported, "--prune")[0] == ["Nothing to change."]
    _, errors = apply(admin, "flavors: {gold: {pools: []}}", code=6)
    assert errors[0] == "flavors.gold.pools must name at least one pool. Only an existing flavor can have no pools."


def test_a_server_without_pools_has_no_such_sections(zq: Zq) -> None:
    exported = zq.run("export", "--settings")
    assert exported.stderr.splitlines()[1:3] == [
        "zq: The file omits pools, which this server does not support.",
        "zq: The file omits flavors, which this server does not support.",
    ]
    _, errors = apply(zq, "pools: {p: {uri: 'redis://h', weight: 1}}", code=3)
    assert errors == ["pools: This server does not support this section."]


def test_parallel_runs_reach_the_same_settings(running: ZqServer, zq: Zq) -> None:
    """Both runs have planned to remove a key that only the first can remove."""
    zq("queue", "create", "orders", "owner=shop", "colour=red")
    with Client(running.url, zq.project) as client:
        plans = [plan_of(client, "queues: {orders: {settings: {_max_claim_count: 5}}}") for _ in range(2)]
        for plan in plans:
            carry_out(plan, lambda *_: None)
    shown = zq("queue", "show", "orders")[0]
    assert (shown["_max_claim_count"], {"owner", "colour"} & {*shown}) == (5, set())


def plan_of(client: Client, text: str) -> Plan:
    declared = read_declaration(f"version: 1\n{text}".encode(), Limits())
    return make_plan(declared_kinds(declared, client, Limits(), Mode()), Mode())


def test_a_subscription_is_renewed_when_half_of_its_ttl_has_passed(team: Team) -> None:
    """Otherwise it would expire although each run finds nothing to change."""
    apply(team, f"queues: {{orders: }}\nsubscriptions: [{{queue: orders, subscriber: '{HOOK}', ttl: 600}}]")
    with team.client() as client:
        entry = Subscription(queue="orders", subscriber=HOOK, ttl=600)
        kind = Subscriptions(client, Limits(), {entry.label: entry}, Mode())
        actual = kind.read()[entry.label]
        assert kind.fields(entry, msgspec.structs.replace(actual, age=300)) == []
        fields = kind.fields(entry, msgspec.structs.replace(actual, age=301))
        assert [(each.name, each.old, each.new) for each in fields] == [("remaining_ttl", 299, 600)]
        # The new ttl is another one, so that the test sees that it was sent.
        longer = {entry.label: msgspec.structs.replace(entry, ttl=900)}
        Subscriptions(client, Limits(), longer, Mode()).change(entry.label, actual, fields)
        assert kind.read()[entry.label].entry.ttl == 900


def test_the_chain_of_dead_letter_queues_of_a_kept_queue_is_kept(zq: Zq) -> None:
    targets = {"a": "a.dead", "a.dead": "a.dead.dead", "a.dead.dead": "a", "b": "c", "c": "b", "d": "a"}
    for name, target in targets.items():
        zq("queue", "create", name, f"_dead_letter_queue={target}")
    exported = zq.run("export", "--settings").stdout
    assert apply(zq, exported, "--prune")[0] == ["Nothing to change."]
    lines, _ = apply(zq, f"queues: {{a: {dead('a.dead')}}}", "--prune")
    assert [line for line in lines if line[0] == "-"] == ["- queue d", "- queue b", "- queue c"]


def test_many_queues_are_ordered_and_checked_in_time() -> None:
    """Ordering a chain takes linear time, and misspelled names are searched only for the errors that are shown."""
    names = [f"q{number}" for number in range(6000)]
    chain = {name: Resource({"_dead_letter_queue": target}) for name, target in pairwise(names)}
    assert targets_first(chain, chain) == names[-2::-1]
    queues = ", ".join(f"queue.number.{number}: " for number in range(50))
    lines = ", ".join(f"{{queue: queue.numbre.{number}, subscriber: 'http://h', ttl: 60}}" for number in range(50))
    with pytest.raises(FileErrors) as errors:
        read_declaration(f"version: 1\nqueues: {{{queues}}}\nsubscriptions: [{lines}]".encode(), Limits())
    assert len(errors.value.sentences) == 21
    assert errors.value.sentences[-1] == "Further errors are not shown."


def test_parts_of_an_administrator_are_touched_only_if_the_file_names_them(team: Team) -> None:
    apply(team, f"{DEAD}\ntopics: {{}}\nsubscriptions: []", "--prune")
    exported = team.run("export", "--settings")
    assert exported.stderr.splitlines() == [
        "zq: The file omits quotas, which this caller may not list.",
        "zq: The file omits pools, which this caller may not list.",
    ]
    assert apply(team, exported.stdout)[0] == ["Nothing to change."]
    for part in ('pools: {p: {uri: "memory:", weight: 1}}', f"quotas: {{{team.project}: {{limits: {{queues: 9}}}}}}"):
        (error,) = apply(team, f"queues: {{more: }}\n{part}", code=5)[1]
        assert error.endswith("This part of the file needs the role admin.")
    (error,) = apply(team, "flavors: {f: {pools: [p]}}", code=5)[1]
    assert error.endswith("This part of the file needs the role admin. 0 of 1 changes were made.")
    assert {queue["name"] for queue in team("queue", "list")} == {"orders", "orders.dead"}


def test_a_ttl_that_the_server_sets_by_name_is_not_exported(team: Team) -> None:
    team("queue", "create", "short.a")
    team("queue", "create", "short.b", "_default_message_ttl=120")
    team("queue", "create", "long", "_default_message_ttl=700")
    text = team.run("export", "--settings").stdout
    assert yaml.safe_load(text)["queues"] == {
        "long": {"settings": {"_default_message_ttl": 700}},
        "short.a": {},
        "short.b": {"settings": {"_default_message_ttl": 120}},
    }
    assert apply(team, text, "--prune")[0] == ["Nothing to change."]
    longer = "queues: {short.a: {settings: {_default_message_ttl: 3600}}}"
    assert apply(team, longer)[0][1] == "    + _default_message_ttl: 3600"
    assert apply(team, longer)[0] == ["Nothing to change."]


def test_a_setting_that_cannot_change_is_reported_before_any_change(zq: Zq) -> None:
    zq("queue", "create", "payments", "_grouped=ordered")
    _, errors = apply(zq, "queues: {a: , payments: {settings: {_grouped: fair}}}", code=6)
    assert errors[0] == "queues.payments.settings._grouped can only be set when the queue is created."
    _, errors = apply(zq, f"queues: {{a: , {'x' * 65}: }}", code=6)
    assert errors[0] == f"queues.{'x' * 65} does not exist, and a new name must have at most 64 characters."
    assert [queue["name"] for queue in zq("queue", "list")] == ["payments"]


@every_row(
    ("text", "sentence"),
    [
        ("version: 2", "version must be 1."),
        ("version:", "version must be 1."),
        ("version: 1.0", "version must be 1."),
        ("version: true", "version must be 1."),
        ("queues: !!map foo", "queues is not a valid map."),
        ("queues: !!str {a: }", "queues is not a valid str."),
        ("queues: {!!str [a]: }", "queues has a key in line 2 that is not text: quote it."),
        ("queues: !!bool maybe", "queues is not a valid bool."),
        ("queues: !!int ''", "queues is not a valid int."),
        ("queues: !!float ''", "queues is not a valid float."),
        ("version: 1\nqueue: {}", "queue is unknown; did you mean queues?"),
        ("queues: {a: {setting: {}}}", "queues.a.setting is unknown; did you mean settings?"),
        (
            "queues: {a: {settings: {_max_claims: 5}}}",
            "queues.a.settings._max_claims is unknown; did you mean _max_claim_count?",
        ),
        (
            "queues: {a: {settings: {_history_ttl: 5}}}",
            "queues.a.settings._history_ttl must be 0, an integer from 60 to 1209600 (seconds), or null.",
        ),
        ("queues: {a: {settings: {_paused: never}}}", "queues.a.settings._paused must be claims, posts, all or null."),
        (
            "queues: {a: {settings: {_max_claim_count: '5'}}}",
            "queues.a.settings._max_claim_count: '5' is not of type 'integer', 'null'.",
        ),
        ("queues: {a: {settings: [1]}}", "queues.a.settings must be an object."),
        ("queues: [a]", "queues must be an object with a member for each name; {} = none."),
        ("queues:", "queues must be an object with a member for each name; {} = none."),
        (
            "queues: {a b: }",
            "queues.a b is not valid: a name must be 1 to 64 characters from A-Z a-z 0-9 _ - and the dot.",
        ),
        ("queues: {a: , b: , a: }", "queues.a is declared twice, in lines 2 and 2."),
        ("queues: {on: }", "queues has a key in line 2 that is not text: quote it."),
        (
            "queues: {a: {settings: {d: 2026-01-01}}}",
            "queues.a.settings.d has the YAML type timestamp, which JSON does not have: quote it.",
        ),
        ("queues: {a: {settings: {d: .inf}}}", "queues.a.settings.d must be a finite number."),
        (
            "queues: {a: {settings: {d: 9223372036854775808}}}",
            "queues.a.settings.d must fit in a signed 64-bit integer.",
        ),
        ("queues: {a: {settings: &a {b: *a}}}", "The file must be nested at most 64 levels deep."),
        ("queues: {", "Line 3, column 1 is not valid YAML: did not find expected node content."),
        (
            "queues: {a: {settings: {_retry_policy: {minimum_delay: 25}}}}",
            "queues.a.settings._retry_policy: maximum_delay must exceed minimum_delay by at least 10 seconds "
            "(defaults 30 and 5).",
        ),
        (f"queues: {{a: {dead('a')}}}", "queues.a.settings._dead_letter_queue must not be the queue itself."),
        (
            "queues: {a: {settings: {b: %s}}}" % ("x" * 65_536),
            "queues.a.settings must be at most 65536 bytes as JSON; it is 65544.",
        ),
        (
            "queues: {a: {settings: {_flavor: sold}}}\nflavors: {gold: {pools: [p]}}",
            "queues.a.settings._flavor: the file has no flavor sold; did you mean gold?",
        ),
        (
            "queues: {a: {settings: {_flavor: [gold]}}}\nflavors: {gold: {pools: [p]}}",
            'queues.a.settings._flavor: the file has no flavor ["gold"]; did you mean gold?',
        ),
        (
            "topics: {a: {settings: {_paused: all}}}",
            "topics.a.settings._paused is not valid: only queues can be paused.",
        ),
        (
            "queues: {a: }\nsubscriptions: [{queue: b, subscriber: 'http://h', ttl: 60}]",
            "subscriptions[0].queue: the file has no queue b.",
        ),
        (
            "queues: {a: }\nsubscriptions: [{topic: a, subscriber: 'http://h', ttl: 60}]",
            "subscriptions[0].topic: the file has no topic a.",
        ),
        ("subscriptions: [{subscriber: 'http://h', ttl: 60}]", "subscriptions[0] must have either queue or topic."),
        (
            "subscriptions: [{queue: a, subscriber: 'http://h', ttl: 59}]",
            f"subscriptions[0].ttl must be an integer from 60 to {2**53}.",
        ),
        (
            "subscriptions: [{queue: a, subscriber: 'h'}]",
            "subscriptions[0].subscriber must be a URI of at most 2048 characters.",
        ),
        ("subscriptions: [{queue: a, subscriber: 'http://h'}]", "subscriptions[0].ttl is missing."),
        (
            "subscriptions: [{queue: a, subscriber: 'http://h', ttl: 60, options: {post_headers: [x]}}]",
            "subscriptions[0].options.post_headers must be an object.",
        ),
        (
            "queues: {a: }\nsubscriptions: [&a {queue: a, subscriber: 'http://h', ttl: 60}, {<<: *a, ttl: 90}]",
            "subscriptions[1] repeats subscriptions[0]: a subscriber can have only one subscription to a queue.",
        ),
        ("pools: {p: {uri: 'redis://[h', weight: 1}}", "pools.p.uri is not a valid URI."),
        ("pools: {p: {uri: 'redis://h', weight: -1}}", f"pools.p.weight must be an integer from 0 to {2**32 - 1}."),
        (
            "pools: {p: {uri: 'redis://h', weight: 1}}\nflavors: {f: {pools: [q]}}",
            "flavors.f.pools[0]: the file has no pool q.",
        ),
        ("flavors: {f: {pools: [p]}, g: {pools: [p]}}", "flavors.g.pools[0]: the pool p already has the flavor f."),
        ("flavors: {f: {pools: 1}}", "flavors.f.pools must be a list of 0 to 1000 names of pools."),
        ("quotas: {acme: {limits: {queue: 1}}}", "quotas.acme.limits.queue is unknown; did you mean queues?"),
        ("quotas: {acme: {limits: {share: 101}}}", "quotas.acme.limits.share must be an integer from 1 to 100."),
        ("quotas: {acme: }", "quotas.acme must be an object with limits."),
        ("tokens: {ci: {days: 0}}", "tokens.ci.days must be an integer from 1 to 31622400."),
        ("tokens: {ci: {scope: []}}", "tokens.ci.scope is unknown; did you mean scopes?"),
    ],
)
def test_bad_input_is_refused_with_its_path_before_any_change(zq: Zq, text: str, sentence: str) -> None:
    _, errors = apply(zq, text, code=2)
    assert sentence in errors
    assert errors[-1] == "Standard input is not valid. Nothing was changed."


def test_all_errors_of_a_file_are_shown_at_once(zq: Zq) -> None:
    text = "queues: {a: {settings: {_paused: 1}}, b: {x: 1}}\ntokens: {ci: {scopes: [read:all]}}"
    assert len(apply(zq, text, code=2)[1]) == 3
    (sentence, _) = apply(zq, "tokens: {ci: {scopes: [read:all]}}", code=2)[1]
    assert sentence.startswith("tokens.ci.scopes: 'read:all' is not a scope")
    assert "is not valid YAML" in apply(zq, "\x00", code=2)[1][0]
    assert apply(zq, "queues: {a: }\n" + "#" * (4 << 20), code=2)[1][0].startswith(
        "The file must be at most 4194304 bytes"
    )
    assert zq("queue", "list") == []


def test_a_file_can_be_applied_again_after_a_kill_at_any_moment(
    deployment: ZqServer, tmp_path: Path, launcher: Launcher
) -> None:
    """The final state is the same after kills at the first, eighth and fourteenth change."""
    names = [f"q{number}" for number in range(8)]
    queues = ", ".join(f"{name}: {{settings: {{_dead_letter_queue: dead, owner: {name}}}}}" for name in names)
    subscriptions = ", ".join(f"{{queue: {name}, subscriber: '{HOOK}', ttl: 600}}" for name in names[:3])
    file = tmp_path / "zq.yaml"
    file.write_text(
        f"version: 1\nqueues: {{{queues}}}\ntopics: {{t1: , t2: }}\nsubscriptions: [{subscriptions}]\n"
        f"tokens: {{shop: {{scopes: ['produce:**']}}}}"
    )
    options = ("--prune", "--create-tokens")
    left, final = set(), set()
    for moment in (1, 8, 14):
        team = Team(deployment.url, tmp_path, launcher)
        team("queue", "create", "q3", "owner=other")
        team("queue", "create", "stray")
        with team.start("apply", "-f", str(file), *options, "-v") as process:
            changes = (line for line in process.stderr or () if re.match(r"zq: > (PUT|POST|PATCH|DELETE)", line))
            for _ in zip(range(moment), changes, strict=False):
                pass
            process.kill()
            process.communicate()
        left.add(team.run("apply", "-f", str(file), "--prune", "--dry-run").stdout)
        apply(team, file.read_text(), *options)
        assert apply(team, file.read_text(), "--prune", "--dry-run")[0] == ["Nothing to change."]
        final.add(team.run("export", "--settings").stdout)
        assert [token["name"] for token in team("token", "list")].count("shop") == 1
    assert len(left) > 1
    (exported,) = final
    assert [*yaml.safe_load(exported)["queues"]] == names


def test_a_subscription_of_a_deleted_queue_is_not_exported(team: Team) -> None:
    """Its export would create the queue again."""
    apply(team, f"queues: {{orders: }}\nsubscriptions: [{{queue: orders, subscriber: '{HOOK}', ttl: 600}}]")
    team("queue", "delete", "orders")
    exported = team.run("export", "--settings")
    assert (
        exported.stderr.splitlines()[-1]
        == "zq: The file omits a subscription, because its queue orders no longer exists."
    )
    assert {*yaml.safe_load(exported.stdout)} == {"version", "tokens"}


def test_a_token_for_queues_and_topics_suffices_for_their_sections(
    deployment: ZqServer, tmp_path: Path, launcher: Launcher
) -> None:
    """The token can also prune. A narrower token sees only the names that it covers."""
    team = Team(deployment.url, tmp_path, launcher, scopes=["manage+observe+produce:**"])
    text = f"{DEAD}\ntopics: {{news: }}\nsubscriptions: [{{queue: orders, subscriber: '{HOOK}', ttl: 600}}]"
    assert apply(team, text, "--prune")[0][-1] == "4 created, 0 changed, 0 deleted."
    assert apply(team, text, "--prune")[0] == ["Nothing to change."]
    exported = team.run("export", "--settings")
    assert (exported.exit_code, {*yaml.safe_load(exported.stdout)}) == (0, {*yaml.safe_load(text), "version"})
    team.env["ZQ_TOKEN"] = make_token(deployment.url, team.project, scopes=["manage+observe:mine.*"])
    assert apply(team, "queues: {mine.a: }", "--prune")[0] == ["+ queue mine.a", "1 created, 0 changed, 0 deleted."]
    (error,) = apply(team, "queues: {other: }", code=5)[1]
    assert error == (
        "queue other: This credential does not allow queues:create on queue other. 0 of 1 changes were made."
    )
