# SPDX-License-Identifier: Apache-2.0
"""``etc/alerts.yml``, ``etc/slo.yml``, ``etc/grafana.json`` and the runbooks: their content and the names in them.

They may name only metrics, options and commands that exist.
"""

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from tests import blocks
from tests.abilities import locate, need
from tests.tables import every_row
from tests.test_prose import BANNED_WORD, FIRST_WORD
from zq.cli import canary
from zq.cli.root import cli
from zq.serving import server, settings
from zq.serving.metrics.definitions import ALL as DEFINED
from zq.serving.metrics.definitions import PER_QUEUE, Definition, Kind

ETC = Path(__file__).parent.parent / "etc"
ALERTS = ETC / "alerts.yml"
OBJECTIVES = ETC / "slo.yml"
RUNBOOKS = ETC.parent / "api-ref" / "runbooks.md"
KNOWN = DEFINED | {
    name.removeprefix("zq_"): Definition(Kind.HISTOGRAM if name.endswith("_seconds") else Kind.COUNTER, "", labels)
    for name, labels in canary.METRICS.items()
}
"""The metrics of servers and of ``zq canary``."""
OPTIONS = {option.name for options in settings.OPTIONS.values() for option in options}
SCRAPED = {"instance", "job", "le"}
"""Labels that Prometheus adds."""
WATCHED = {
    "up": "server down",
    "expired_waiting": "expired share",
    "sweep_seconds": "sweep above ten minutes",
    "delete_queue_length": "delete queue filling",
    "store_bytes": "space growing",
    "compaction_filter_active": "filter inactive",
    "store_background_errors_total": "background errors",
    "store_corruptions_total": "store damaged",
    "messages_unreadable_total": "message unreadable",
    "sweep_lag_seconds": "sweep behind",
    "sweep_limit_reached_total": "sweep at its limit",
    "store_up": "store down",
    "mode": "mode restricted",
    "requests_total": "errors",
    "backup_age_seconds": "backup old",
    "disk_free_bytes": "disk filling",
    "auth_failures_total": "authentication failures",
    "quota_used_ratio": "quota near",
    "certificate_expires_seconds": "certificate expires",
    "info": "versions differ",
    "canary_missing": "canary loss",
    "canary_received_total": "canary stopped",
    "clock_offset_seconds": "clock",
    "clock_uncertainty_seconds": "clock uncertain",
    "waits_turned_away_total": "waits turned away",
    "streams_refused_total": "streams refused",
    "queue_oldest_ready_seconds": "messages not consumed",
    "queue_oldest_dead_letter_seconds": "dead letters wait",
    "delete_queue_dropped_total": "delete queue dropping",
}
"""Metrics that must have an alert, and the danger."""


def rules(file: Path = ALERTS) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    """Return all alerts, including the alerts of the objectives."""
    return [*rules(), *(rule for rule in rules(OBJECTIVES) if "alert" in rule)]


def recorded() -> set[str]:
    """Return the names of the recorded rules, which have only the label ``job``."""
    return {rule["record"] for rule in rules(OBJECTIVES) if "record" in rule}


def records(expression: str) -> Iterator[tuple[str, str]]:
    """Yield each recorded rule in an expression, and the content of its braces."""
    for found in re.finditer(r"\bzq:([\w:]+)(?:{([^}]*)})?", expression):
        yield f"zq:{found[1]}", found[2] or ""


def sections() -> dict[str, str]:
    """Return the runbook sections about alerts by heading."""
    _, *found = re.split(r"^#+ (.+)$", RUNBOOKS.read_text(), flags=re.MULTILINE)
    return {heading: text for heading, text in zip(found[::2], found[1::2], strict=True) if heading.startswith("Zq")}


def commands(text: str) -> list[list[str]]:
    """Return the words of the commands in code style, without a leading ``zq`` for the command line."""
    return [shlex.split(command) for command in re.findall(r"`(zq(?:-server)? [^`\n]+)`", text)]


def panels() -> list[dict[str, Any]]:
    return json.loads((ETC / "grafana.json").read_text())["panels"]


def targets() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel.get("targets", [])]


def metrics(expression: str) -> Iterator[tuple[str, Definition | None, str]]:
    """Yield each metric in an expression, its definition, and the content of its braces."""
    for found in re.finditer(r"\bzq_(\w+)(?:{([^}]*)})?", expression):
        name, inside = found[1], found[2] or ""
        parts = name.rpartition("_")
        if parts[2] in ("bucket", "count", "sum") and parts[0] in KNOWN:
            definition = KNOWN[parts[0]]
            yield parts[0], definition if definition.kind is Kind.HISTOGRAM else None, inside
        else:
            yield name, KNOWN.get(name), inside


def complaints(expression: str) -> list[str]:
    """Return the metrics and labels in an expression that no server exports and no rule records."""
    wrong, known = [], set(SCRAPED)
    for name, definition, inside in metrics(expression):
        if definition is None:
            wrong.append(name)
            continue
        more = PER_QUEUE if name.startswith("queue_") else ()
        labels = {*definition.labels, *more, *SCRAPED}
        known |= labels
        wrong += [f"{name}: {label}" for label in re.findall(r"(\w+)\s*[!=]~?", inside) if label not in labels]
    for name, inside in records(expression):
        wrong += [] if name in recorded() else [name]
        wrong += [f"{name}: {label}" for label in re.findall(r"(\w+)\s*[!=]~?", inside) if label != "job"]
    for grouping in re.findall(r"\b(?:by|without|on|ignoring) \(([^)]*)\)", expression):
        wrong += [label for label in grouping.replace(" ", "").split(",") if label not in known]
    return wrong


@every_row("rule", alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_has_what_it_needs(rule: dict[str, Any]) -> None:
    """An alert has a severity, plain texts that name an option, and a runbook.

    The runbook first says what users notice, then names up to three commands. It has fewer commands if no other command
    shows more about the cause. For all alerts, the page says once when to page the on-call engineer.
    """
    assert rule["annotations"]["runbook_url"] == f"api-ref/runbooks.md#{rule['alert'].lower()}"
    notice, _, rest = sections()[rule["alert"]].strip().partition("\n\n")
    assert re.match(r"[A-Z][^`]+\.$", notice, re.DOTALL)
    assert rest.startswith("- `zq")
    shown = re.findall(r"^- (.+)$", rest, re.MULTILINE)
    assert 1 <= len(shown) <= 3
    assert all(re.match(r"`zq(-server)? [^`]+`: ", line) for line in shown)
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))
    assert re.search(r"\$labels\.(instance|job)", rule["annotations"]["summary"])
    assert OPTIONS & set(re.findall(r"\w+", rule["annotations"]["description"]))
    assert complaints(rule["expr"]) == []
    for text in (rule["annotations"]["summary"], rule["annotations"]["description"]):
        assert FIRST_WORD.match(text) is BANNED_WORD.search(text) is None, text


def test_every_alert_fires_in_a_test() -> None:
    expected = "".join((Path(__file__).parent / name).read_text() for name in ("alerts.yml", "slo.yml"))
    assert [rule["alert"] for rule in alerts() if f'alertname="{rule["alert"]}"' not in expected] == []


def test_the_query_of_the_kubernetes_page_finds_every_alert() -> None:
    """It selects by name, because rules that add up servers drop the label ``namespace``."""
    [query] = re.findall(r"ALERTS{.*}", "".join(blocks.section("operations", "Deploy on Kubernetes")))
    found = re.fullmatch(r'ALERTS{alertname=~"(.*)"}', query)
    assert found, query
    assert [rule["alert"] for rule in alerts() if not re.fullmatch(found[1], rule["alert"])] == []


def test_every_danger_has_an_alert() -> None:
    """Names are unique, and each metric of ``WATCHED`` is in the expression of an alert.

    ``up`` is a metric of Prometheus itself.
    """
    names = [rule["alert"] for rule in alerts()]
    assert len(set(names)) == len(names)
    assert {*sections()} == {*names}
    named = {name for rule in rules() for name, _, _ in metrics(rule["expr"])}
    named |= {name for rule in rules() for name in re.findall(r"\bup\b", rule["expr"])}
    assert [danger for metric, danger in WATCHED.items() if metric not in named] == []


@pytest.fixture
def server_words(capsys: pytest.CaptureFixture[str]) -> tuple[set[str], set[str]]:
    """Return the commands and the options in the help of ``zq-server``."""
    with pytest.raises(SystemExit):
        server.main(["--help"])
    shown = capsys.readouterr().out
    listed = shown.partition("\ncommands:\n")[2]
    return {*re.findall(r"^  ([\w-]+)", listed, re.MULTILINE)}, {*re.findall(r"--[\w-]+", shown)}


def test_the_runbooks_name_commands_that_exist(server_words: tuple[set[str], set[str]]) -> None:
    found = commands(RUNBOOKS.read_text())
    assert len(found) > 40
    for program, *words in found:
        assert server_parses(words, *server_words) if program == "zq-server" else parses(words), words


def server_parses(words: list[str], commands: set[str], options: set[str]) -> bool:
    """Return whether ``zq-server`` has the options and, if the first word is not an option, the command."""
    named = {word for word in words if word.startswith("--")}
    return named <= options and (words[0] in commands or words[0] in named)


@every_row("words", [["nothing"], ["checks"], ["owner", "--colour"], ["--nothing"], ["create"]], ids=" ".join)
def test_a_wrong_command_of_the_server_is_noticed(server_words: tuple[set[str], set[str]], words: list[str]) -> None:
    """The check notices wrong commands, and does not accept other words of the help."""
    assert not server_parses(words, *server_words)


def parses(words: list[str]) -> bool:
    """Return whether ``zq`` accepts the words as a command."""
    command: click.Command = cli
    while isinstance(command, click.Group) and words:
        name, *words = words
        if name not in command.commands:
            return False
        command = command.commands[name]
    try:
        command.make_context(command.name, words)
    except click.UsageError:
        return False
    return True


@every_row("words", [["nothing"], ["dlq", "lst"], ["top", "--sort", "colour"], ["dlq", "redrive"]], ids=" ".join)
def test_a_wrong_command_is_noticed(words: list[str]) -> None:
    """The check notices wrong commands."""
    assert not parses(words)


@every_row("rule", rules(OBJECTIVES), ids=lambda rule: rule.get("record", rule.get("alert")))
def test_an_objective_names_metrics_and_records_that_exist(rule: dict[str, Any]) -> None:
    """An alert uses only recorded ratios, and the page names each ratio or percentile that is an objective."""
    assert complaints(rule["expr"]) == []
    named = {name for name, _ in records(RUNBOOKS.read_text())}
    assert named == {"zq:errors:ratio30d", *(name for name in recorded() if name.endswith(":p99"))}


def test_the_page_names_the_time_for_which_prometheus_must_keep_data() -> None:
    """Otherwise, the longest range silently covers only Prometheus's default of 15 days."""
    ranges = re.findall(r"\[(\d+)d\]", OBJECTIVES.read_text())
    assert f"--storage.tsdb.retention.time={max(map(int, ranges))}d" in RUNBOOKS.read_text()


def test_an_objective_without_a_record_has_an_alert_with_its_limit() -> None:
    """The alert fires at the number of seconds in the table of the objectives."""
    [(limit, name)] = re.findall(r"^\|.* within (\d+) s \| alert \[(\w+)\]", RUNBOOKS.read_text(), re.MULTILINE)
    [rule] = [rule for rule in rules() if rule["alert"] == name]
    assert rule["expr"].endswith(f"> {limit}")


def test_options_that_alerts_name_exist() -> None:
    """Every ``[section]`` in a description exists, and so does an option that follows it."""
    for rule in alerts():
        for section, name in re.findall(r"\[([\w:]+)\] (\w+)", rule["annotations"]["description"]):
            assert name in [option.name for option in settings.OPTIONS[section]], f"{rule['alert']}: [{section}] {name}"


@every_row("expression", sorted(set(targets())))
def test_panels_use_existing_metrics_and_labels(expression: str) -> None:
    """The metrics, recorded rules and labels of the dashboard exist."""
    assert complaints(expression) == []


def test_the_dashboard_shows_every_metric() -> None:
    """Each metric and each recorded rule is on a panel, and the panels have unique ids and titles."""
    shown = {name for expression in targets() for name, _, _ in metrics(expression)}
    assert set(DEFINED) - shown == set()
    assert recorded() - {name for expression in targets() for name, _ in records(expression)} == set()
    identities = [panel["id"] for panel in panels()]
    titles = [panel["title"] for panel in panels()]
    assert len(set(identities)) == len(identities)
    assert len(set(titles)) == len(titles)


def test_the_dashboard_has_rows_for_objectives_and_quotas() -> None:
    """Each of the rows has all panels of its subject."""
    row, rows = "", dict[str, str]()
    for panel in panels():
        row = panel["title"] if panel["type"] == "row" else row
        rows |= {target["expr"]: row for target in panel.get("targets", [])}
    assert {row for expression, row in rows.items() if "zq:" in expression} == {"Service level objectives"}
    assert {row for expression, row in rows.items() if "zq_quota_" in expression} == {"Quotas and credentials"}


@every_row(
    "expression",
    [
        "zq_nothing > 1",
        "zq:nothing:p99",
        'zq:post_seconds:p99{instance="a"}',
        "rate(zq_waiters_bucket[5m])",
        'zq_waiters{state="ready"}',
        "sum by (queue) (zq_waiters)",
    ],
)
def test_a_wrong_expression_is_noticed(expression: str) -> None:
    """The check notices wrong expressions."""
    assert complaints(expression) != []


@pytest.fixture
def promtool() -> Callable[..., str]:
    """Return a function that runs promtool on a file and returns its output."""
    need("promtool")
    tool = locate("promtool") or ""

    def run(what: str, file: Path) -> str:
        done = subprocess.run(
            [tool, what, "rules", file], capture_output=True, text=True, check=False, timeout=60, cwd=file.parent
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_prometheus_can_read_the_alerts(promtool: Callable[..., str]) -> None:
    """promtool finds as many rules as the files have."""
    for file in (ALERTS, OBJECTIVES):
        assert f"{len(rules(file))} rules found" in promtool("check", file)


def test_prometheus_can_read_the_panels(promtool: Callable[..., str], tmp_path: Path) -> None:
    """promtool accepts the panels' expressions as rules."""
    file = tmp_path / "panels.yml"
    recorded = [{"record": f"panel_{number}", "expr": expression} for number, expression in enumerate(targets())]
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))
    promtool("check", file)


@pytest.mark.slow
def test_alerts_fire_when_they_should(promtool: Callable[..., str]) -> None:
    """No other alert fires, with the metrics of a failing and of a healthy server."""
    promtool("test", Path(__file__).parent / "alerts.yml")


def test_objectives_are_recorded_and_burn_rates_fire(promtool: Callable[..., str]) -> None:
    """The rules are tested with a job that fails often, one that fails sometimes, and one that does not fail.

    The test expects values of each recorded rule.
    """
    file = Path(__file__).parent / "slo.yml"
    promtool("test", file)
    checks = [check for test in yaml.safe_load(file.read_text())["tests"] for check in test["promql_expr_test"]]
    valued = {name for check in checks if check["exp_samples"] for name, _ in records(check["expr"])}
    assert valued == recorded()
