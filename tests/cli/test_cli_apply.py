# SPDX-License-Identifier: Apache-2.0
"""``zq apply`` and ``zq export --settings``."""

import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.cli.conftest import Zq
from tests.cli.launcher import Launcher
from tests.servers import ZqServer
from tests.tables import every_row
from zq.auth.tokens import format_token

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
allowed_hosts = memory:
[signed_url]
secret_key = kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk
"""
ADMIN = format_token("a" * 10, "b" * 43)
HOOK = "http://127.0.0.1:9099/hook"
DEAD = (
    "queues: {orders: {settings: {_dead_letter_queue: orders.dead, _max_claim_count: 5, owner: shop}}, orders.dead: }"
)


class Team(Zq):
    """The command line with a token of a project of its own."""

    def __init__(self, url: str, folder: Path, launcher: Launcher, **rights: Any) -> None:
        super().__init__(url, folder, launcher)
        self.env["ZQ_TOKEN"] = make_token(url, self.project, **rights)


def make_token(url: str, project: str, **rights: Any) -> str:
    made = httpx.post(
        f"{url}/v2/admin/tokens",
        params={"project": project},
        json={"name": "ci", **rights},
        headers={"Authorization": f"Bearer {ADMIN}"},
    )
    token: str = made.raise_for_status().json()["token"]
    return token


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZqServer]:
    """A server with tokens, quotas and pools."""
    file = tmp_path_factory.mktemp("bootstrap") / "token"
    file.write_text(ADMIN)
    file.chmod(stat.S_IRUSR | stat.S_IWUSR)
    with ZqServer("memory:", config=CONFIG.format(file)) as server:
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
    """Apply a file, and return the lines of standard output and of standard error."""
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
    done, _ = apply(admin, text)
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
    removed, _ = apply(admin, "queues: {}\nsubscriptions: []\nflavors: {}\nquotas: {}", "--prune")
    assert removed[-1] == "0 created, 0 changed, 9 deleted."
    admin.refused(3, "queue", "show", "orders")


def test_drift_is_found_and_mended(zq: Zq) -> None:
    """A pause is an operator's, so it is kept unless the file names it."""
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
    masked = text(900, "{post_headers: {X-Key: '***'}, subject: s}")
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
    """The target of a declared queue's dead letters, and the caller's own token, are kept."""
    for name in ("old", "empty", "orders.dead"):
        team("queue", "create", name)
    team("post", "old", "1")
    team("topic", "create", "news")
    own = team("whoami")[0]["credential"]
    (other,) = team("token", "create", "--name", "other")
    (unnamed,) = team("token", "create")
    text = "queues: {orders: {settings: {_dead_letter_queue: orders.dead}}}\ntokens: {}"
    lines, errors = apply(team, text, "--prune", code=6)
    assert lines == [
        "+ queue orders",
        "    + _dead_letter_queue: orders.dead",
        f"- token other {other['id']}",
        "- queue old (1 message)",
        "- queue empty",
    ]
    assert errors == [
        "queues.old is not in the file and holds 1 message: use --force to delete it.",
        "Nothing was changed.",
    ]
    assert {queue["name"] for queue in team("queue", "list")} == {"old", "empty", "orders.dead"}
    assert apply(team, text, "--force", code=2)[1] == ["--force needs --prune."]
    assert apply(team, text, "--prune", "--force")[0][-1] == "1 created, 0 changed, 3 deleted."
    assert {queue["name"] for queue in team("queue", "list")} == {"orders", "orders.dead"}
    assert [topic["name"] for topic in team("topic", "list")] == ["news"]
    assert {token["id"] for token in team("token", "list")} == {own, unnamed["id"]}


def test_a_token_with_other_rights_is_made_beside_the_old_one(team: Team) -> None:
    """The rights of a token cannot change."""
    (old,) = team("token", "create", "--name", "shop", "--scope", "produce:**")
    text = 'tokens: {shop: {scopes: ["produce:orders", "observe:orders"]}}'
    lines, _ = apply(team, text)
    assert lines[0] == f"+ token shop (in addition to {old['id']}, with other rights)"
    assert apply(team, text)[0] == ["Nothing to change."]
    own = team("whoami")[0]["credential"]
    kept = {token["id"] for token in team("token", "list")} - {old["id"]}
    assert apply(team, text, "--prune")[0][0] == f"- token shop {old['id']}"
    assert {token["id"] for token in team("token", "list")} == kept
    assert own in kept


def test_parts_of_an_administrator_are_touched_only_if_the_file_names_them(team: Team) -> None:
    apply(team, f"{DEAD}\ntopics: {{}}\nsubscriptions: []", "--prune")
    exported = team.run("export", "--settings")
    assert exported.stderr == "zq: The file omits what this caller may not list: quotas, pools.\n"
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
        ("version: 1\nqueue: {}", "queue is unknown; did you mean queues?"),
        ("queues: {a: {setting: {}}}", "queues.a.setting is unknown; did you mean settings?"),
        (
            "queues: {a: {settings: {_max_claims: 5}}}",
            "queues.a.settings._max_claims is unknown; did you mean _max_claim_count?",
        ),
        (
            "queues: {a: {settings: {_history_ttl: 5}}}",
            "queues.a.settings._history_ttl must be 0, an integer from 60 to 1209600, or null.",
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
        ("queues: {a: {settings: {d: 9223372036854775808}}}", "queues.a.settings.d must fit in 64 bits with sign."),
        ("queues: {a: {settings: &a {b: *a}}}", "The file must be nested at most 64 deep."),
        ("queues: {", "Line 3, column 1 is not valid YAML: did not find expected node content."),
        (
            "queues: {a: {settings: {_retry_policy: {minimum_delay: 25}}}}",
            "queues.a.settings._retry_policy: maximum_delay must exceed minimum_delay by at least 10 seconds "
            "(defaults 30 and 5).",
        ),
        (
            f"queues: {{a: {dead('b')}, b: {dead('c')}, c: {dead('a')}}}",
            "queues.a.settings._dead_letter_queue must not lead back to its own queue: a → b → c → a.",
        ),
        (
            f"queues: {{a: {dead('a')}}}",
            "queues.a.settings._dead_letter_queue must not lead back to its own queue: a → a.",
        ),
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
            "queues.a.settings._flavor: the file has no flavor ['gold']; did you mean gold?",
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
            "queues: {a: }\nsubscriptions: [&a {queue: a, subscriber: 'http://h', ttl: 60}, {<<: *a, ttl: 90}]",
            "subscriptions[1] repeats subscriptions[0]: a subscriber has one subscription to a queue.",
        ),
        ("pools: {p: {uri: 'redis://[h', weight: 1}}", "pools.p.uri is not a valid URI."),
        ("pools: {p: {uri: 'redis://h', weight: -1}}", f"pools.p.weight must be an integer from 0 to {2**32 - 1}."),
        (
            "pools: {p: {uri: 'redis://h', weight: 1}}\nflavors: {f: {pools: [q]}}",
            "flavors.f.pools[0]: the file has no pool q.",
        ),
        ("flavors: {f: {pools: [p]}, g: {pools: [p]}}", "flavors.g.pools[0]: the pool p already has the flavor f."),
        ("flavors: {f: {pools: []}}", "flavors.f.pools must be a list of 1 to 1000 names of pools."),
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
    """After the first, eighth, … change. The final state is always the same."""
    names = [f"q{number}" for number in range(8)]
    queues = ", ".join(f"{name}: {{settings: {{_dead_letter_queue: dead, owner: {name}}}}}" for name in names)
    subscriptions = ", ".join(f"{{queue: {name}, subscriber: '{HOOK}', ttl: 600}}" for name in names[:3])
    file = tmp_path / "zq.yaml"
    file.write_text(
        f"version: 1\nqueues: {{{queues}}}\ntopics: {{t1: , t2: }}\nsubscriptions: [{subscriptions}]\n"
        f"tokens: {{shop: {{scopes: ['produce:**']}}}}"
    )
    left, final = set(), set()
    for moment in (1, 8, 14):
        team = Team(deployment.url, tmp_path, launcher)
        team("queue", "create", "q3", "owner=other")
        team("queue", "create", "stray")
        with team.start("apply", "-f", str(file), "--prune", "-v") as process:
            changes = (line for line in process.stderr or () if re.match(r"zq: > (PUT|POST|PATCH|DELETE)", line))
            for _ in zip(range(moment), changes, strict=False):
                pass
            process.kill()
            process.communicate()
        left.add(team.run("apply", "-f", str(file), "--prune", "--dry-run").stdout)
        apply(team, file.read_text(), "--prune")
        assert apply(team, file.read_text(), "--prune", "--dry-run")[0] == ["Nothing to change."]
        final.add(team.run("export", "--settings").stdout)
        assert [token["name"] for token in team("token", "list")].count("shop") == 1
    assert len(left) > 1
    (exported,) = final
    assert [*yaml.safe_load(exported)["queues"]] == names


def test_a_subscription_of_a_deleted_queue_is_not_exported(team: Team) -> None:
    """It would create the queue again."""
    apply(team, f"queues: {{orders: }}\nsubscriptions: [{{queue: orders, subscriber: '{HOOK}', ttl: 600}}]")
    team("queue", "delete", "orders")
    exported = team.run("export", "--settings")
    assert exported.stderr.splitlines()[0] == "zq: The file omits a subscription of orders, which is gone."
    assert {*yaml.safe_load(exported.stdout)} == {"version", "tokens"}


def test_a_token_for_queues_and_topics_suffices_for_their_sections(
    deployment: ZqServer, tmp_path: Path, launcher: Launcher
) -> None:
    """Also to prune. A narrower token sees only its own names."""
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
