# SPDX-License-Identifier: Apache-2.0
"""``api-ref/operations.md``, "Deploy on a virtual machine", followed in a folder instead of the root directory.

systemd, pip and the user ``zq`` are replaced; zq and Prometheus are real.
"""

import configparser
import os
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.abilities import need
from tests.blocks import ROOT, section
from tests.packaging.test_systemd import WITHIN, listening
from tests.prometheus import Prometheus
from tests.reader import SHELL, succeed
from tests.servers import ZqServer, free_port, wait_for
from tests.stand_ins import Done, StandIns, done, run_zq_server

# Checks of the doctor that depend on the machine of the tests.
OF_THE_MACHINE = {"machine clock", "open files", "disk space", "disk sync"}
# The first slash of each absolute path outside /dev.
PATHS = re.compile(r"(?<![\w.])/(?!dev/)(?=[a-z]+/)")
LINE = re.compile(r"^(ok|skip|warn|fail) +([\w' ]+): ", re.MULTILINE)


class Machine:
    """A folder with the root directory of a virtual machine, and the programs that administer it."""

    def __init__(self, root: Path, server: ZqServer, notified: str, prometheus: Prometheus) -> None:
        self._root = root
        self._server = server
        self._notified = notified
        self._prometheus = prometheus
        self.enabled: list[str] = []
        self.stand_ins = StandIns(
            root.parent / "programs",
            {
                "chown": lambda words, _: done(f"chown {' '.join(words)}\n".encode()),
                "install": self._install,
                "pip": self._pip,
                "python3": self._venv,
                "runuser": self._runuser,
                "systemctl": self._systemctl,
                "useradd": self._useradd,
                "zq-server": lambda words, _: run_zq_server(words),
            },
        )
        for folder in ("etc/systemd/system", "etc/prometheus", "opt", "srv", "var/lib"):
            (root / folder).mkdir(parents=True)

    def locate(self, text: str) -> str:
        """Return a text with the absolute paths of the virtual machine inside the folder."""
        return PATHS.sub(f"{self._root}/", text)

    def _useradd(self, words: list[str], _: bytes) -> Done:
        assert words[-1] == "zq"
        return done()

    def _install(self, words: list[str], given: bytes) -> Done:
        """Run ``install`` without an owner and a group, which do not exist on this machine."""
        for option in ("-o", "-g"):
            if option in words:
                at = words.index(option)
                assert words[at + 1] == "zq"
                del words[at : at + 2]
        return subprocess.run(["install", *words], input=given, capture_output=True)

    def _runuser(self, words: list[str], _: bytes) -> Done:
        """Run ``zq-server``, which can create a store only below the state directory of the unit."""
        assert words[:4] == ["-u", "zq", "--", str(self._root / "opt/zq/bin/zq-server")]
        if "restore" in words:
            assert words[-1].startswith(f"rocksdb://{self._root}/var/lib/{self._unit('zq')['StateDirectory']}/")
        return run_zq_server(words[4:])

    def _venv(self, words: list[str], _: bytes) -> Done:
        assert words[:2] == ["-m", "venv"]
        programs = Path(words[2]) / "bin"
        programs.mkdir(parents=True)
        self.stand_ins.write(programs / "pip")
        return done()

    def _pip(self, words: list[str], _: bytes) -> Done:
        """Check that the clone has the extras, and provide the server's program."""
        assert words[0] == "install"
        [extras] = re.findall(r"^\.\[([\w,]+)\]$", words[1])
        setup = configparser.ConfigParser()
        setup.read(ROOT / "setup.cfg")
        assert set(extras.split(",")) <= set(setup["options.extras_require"])
        self.stand_ins.write(self._root / "opt/zq/bin/zq-server")
        return done()

    def _systemctl(self, words: list[str], _: bytes) -> Done:
        match words:
            case ["daemon-reload"]:
                return done()
            case ["enable", "--now", *units]:
                self.enabled += units
                self._start("zq")
            case ["start", "zq"]:
                self._start("zq")
            case ["start", "zq-backup"]:
                return self._run("zq-backup")
            case ["stop", "zq"]:
                assert self._server.terminate() == 0
            case ["restart", "prometheus"]:
                self._prometheus.start(self._root / "etc/prometheus/prometheus.yml")
            case ["restart", "zq"]:
                assert self._server.terminate() == 0
                self._start("zq")
            case _:
                raise AssertionError(words)
        return done()

    def _unit(self, name: str) -> dict[str, str]:
        unit = configparser.ConfigParser(strict=False, interpolation=None)
        unit.optionxform = str  # type: ignore[method-assign,assignment]
        unit.read(self._root / "etc/systemd/system" / f"{name}.service")
        return dict(unit["Service"])

    def _start(self, name: str) -> None:
        """Start the server like the unit, and return when it has notified systemd."""
        program, *flags = shlex.split(self.locate(self._unit(name)["ExecStart"]))
        assert program == str(self._root / "opt/zq/bin/zq-server")
        assert flags == ["--config", str(self._root / "etc/zq/zq.conf")]
        with listening(self._notified) as manager:
            self._server.launch()
            assert manager.recv(100) == b"READY=1", self._server.output
        Path(self._notified).unlink()

    def _run(self, name: str) -> Done:
        program, *words = shlex.split(self.locate(self._unit(name)["ExecStart"]))
        assert program == str(self._root / "opt/zq/bin/zq-server")
        return run_zq_server(words)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a folder with the files of a clone that the page copies."""
    shutil.copytree(ROOT / "etc", tmp_path / "clone" / "etc")
    return tmp_path / "clone"


@pytest.mark.slow
def test_the_page_leads_to_a_monitored_server_with_backups(
    clone: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The doctor finds no problem, the token is valid after a restore, and an alert fires if the backup becomes old."""
    need("prometheus", "promtool")
    root, metrics = tmp_path_factory.mktemp("vm") / "root", free_port()
    with ExitStack() as stack:
        notified = str(tmp_path / "notify")
        env = {"OS_METRICS__PORT": str(metrics), "OS_METRICS__ON_MAIN_PORT": "false", "NOTIFY_SOCKET": notified}
        server = ZqServer("", "--config", f"{root}/etc/zq/zq.conf", engine="auto", env=env)
        stack.callback(server.close)
        prometheus = Prometheus(tmp_path / "prometheus")
        stack.callback(prometheus.close)
        machine = Machine(root, server, notified, prometheus)
        stack.enter_context(machine.stand_ins)
        commands = "".join(section("operations", "Deploy on a virtual machine"))
        for written, meant in {
            "bind = 0.0.0.0\n": f"bind = 127.0.0.1\nport = {server.port}\n[metrics]\nport = {metrics}\n[server]\n",
            "localhost:8889": f"localhost:{metrics}",
            "http://localhost:9090": prometheus.url,
            "15s": "1s",
        }.items():
            assert written in commands, written
            commands = commands.replace(written, meant)
        commands = machine.locate(re.sub(r"^(.* doctor .*)$", r"\1 || (($? == 1))", commands, flags=re.MULTILINE))
        said = succeed([*SHELL, f"export PATH={machine.stand_ins.folder}:$PATH\n{commands}"], clone)
        assert machine.enabled == ["zq", "zq-backup.timer"]
        found = [(status, name) for status, name in LINE.findall(said) if name not in OF_THE_MACHINE]
        assert {name for _, name in found} >= {"server", "metrics", "backup", "server's store", "level"}, said
        assert [each for each in found if each[0] in ("warn", "fail")] == [], said
        assert re.search(r'^up\{.*job="zq".*\} => 1 @', said, re.MULTILINE), said
        assert "ALERTS" not in said
        assert len(list((root / "srv/zq-backups").glob("*Z"))) == 2
        [token] = re.findall(r"^zq_\w{10}_\w+$", said, re.MULTILINE)
        trust = ssl.create_default_context(cafile=str(root / "etc/zq/tls/cert.pem"))
        request = urllib.request.Request(f"https://localhost:{server.port}/v2/queues")
        request.add_header("Authorization", f"Bearer {token}")
        request.add_header("Client-ID", "5ef2a3c0-1d4b-4c8e-9a5e-0f6b1c2d3e4f")
        with urllib.request.urlopen(request, context=trust, timeout=WITHIN) as answer:
            assert answer.status == 200
        [restored] = (root / "var/lib/zq").glob("restored-*")
        (restored / ".zq-backed-up").touch()
        os.utime(restored / ".zq-backed-up", (0, 0))
        wait_for(lambda: prometheus.query('ALERTS{alertname="ZqBackupOld",alertstate="firing"}'), WITHIN, "ZqBackupOld")


def test_systemd_finds_no_fault_with_the_units_of_the_backup(tmp_path: Path) -> None:
    need("systemd-analyze")
    for name in ("zq-backup.service", "zq-backup.timer"):
        text = (ROOT / "etc" / name).read_text()
        (tmp_path / name).write_text(text.replace("/opt/zq/bin/zq-server", sys.executable))
    command = ["systemd-analyze", "verify", str(tmp_path / "zq-backup.timer"), str(tmp_path / "zq-backup.service")]
    verified = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")
