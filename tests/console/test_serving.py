# SPDX-License-Identifier: Apache-2.0
"""How the server serves the console: security headers, files, redirects, and servers without a console."""

import gzip
import re
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from webob import Request
from webtest import TestApp

from zq.cli.root import cli
from zq.clock import ManualClock
from zq.console import page
from zq.console.feature import ConsoleFeature
from zq.console.settings import ConsoleOptions
from zq.core import Broker
from zq.http.app import create_app
from zq.storage import connect

pytestmark = pytest.mark.one_store

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"}
ASKS = {"Client-ID": "5" * 32, "X-Project-ID": "acme"}


class Refusing:
    """An authentication strategy that fails on every call, so that only open resources are served."""

    def authenticate(self, _env: Any, _peer: str) -> Any:
        raise AssertionError("The strategy was asked.")

    cached_validity = look_up = authenticate


@pytest.fixture
def app() -> Iterator[TestApp]:
    """Create an application with a console and a strategy that fails for all other resources."""
    storage = connect("memory:")
    made = create_app(
        Broker(storage, ManualClock(1.0)), strategy=Refusing(), features=[ConsoleFeature(ConsoleOptions())]
    )
    yield TestApp(made)
    storage.close()


def test_a_browser_is_led_to_the_console_and_programs_are_not(app: TestApp) -> None:
    """The redirect is relative, so that it also works below a proxy's path."""
    led = app.get("/", headers=BROWSER, status=303)
    assert led.headers["Location"] == "console/"
    assert app.get("/console", status=308).headers["Location"] == "console/"
    for accept in ("application/json", "*/*", "text/html;q=0.1, application/json", "nonsense"):
        answer = app.get("/", headers={"Accept": accept}, expect_errors=True)
        assert answer.status_int in (300, 406), accept
    assert app.get("/", status=300).json["versions"]


def test_the_document_tells_the_browser_what_it_may(app: TestApp) -> None:
    """The headers forbid foreign content, markup from strings, and frames, and require revalidation (acceptance 18)."""
    answer = app.get("/console/", status=200)
    policy = dict(part.partition(" ")[::2] for part in answer.headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["script-src"].startswith("'self' 'sha256-")
    assert (policy["require-trusted-types-for"], policy["trusted-types"]) == ("'script'", "'none'")
    assert not re.search("unsafe|https?:|\\*|data:", str(policy))
    assert answer.headers["X-Frame-Options"] == "DENY"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["Cache-Control"] == "no-cache"
    assert app.get("/console/", headers={"If-None-Match": answer.headers["ETag"]}, status=304).body == b""
    assert app.head("/console/", status=200).body == b""
    assert not re.search(r'(src|href)="(/|https?:)', answer.text)


def test_the_files_are_kept_for_a_year_by_their_version(app: TestApp) -> None:
    """Each file that the document names is cacheable and compressed on request; other versions are not cacheable."""
    tree = page.read_tree().version
    document = app.get("/console/").text
    named = set(re.findall(rf'(?:src|href)="({tree}/[^"]+)"', document))
    assert len(named) > 20
    for path in named:
        plain = app.get(f"/console/{path}", status=200)
        packed = Request.blank(f"/console/{path}", headers={"Accept-Encoding": "br, gzip"}).get_response(app.app)
        assert plain.headers["Cache-Control"] == "public, max-age=31536000, immutable"
        assert plain.headers["Content-Type"].startswith(("text/javascript", "text/css", "image/svg+xml"))
        assert packed.headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(packed.body) == plain.body
        app.get(f"/console/{path}", headers={"If-None-Match": plain.headers["ETag"]}, status=304)
    other = app.get("/console/0123456789ab/app.js", status=200)
    assert (other.headers["Cache-Control"], "ETag" in other.headers) == ("no-store", False)
    for path in ("nothing.js", "../page.py", "vendor/VENDOR.md", "index.html", "", "vendor/../../page.py"):
        missed = app.get(f"/console/{tree}/{path}", status=404)
        assert missed.json["title"] == "404 Not Found"
    app.post(f"/console/{tree}/app.js", status=[401, 405, 500], expect_errors=True)


def test_the_version_changes_with_any_file(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "index.html").write_text("a")
    (tmp_path / "parts" / "a.js").write_text("b")
    before = page.read_tree(tmp_path)
    assert list(before.files) == ["parts/a.js"]
    (tmp_path / "index.html").write_text("c")
    assert page.read_tree(tmp_path).version != before.version
    (tmp_path / "index.html").write_text("a")
    assert page.read_tree(tmp_path) == before


def test_a_server_without_a_console_has_nothing_of_it() -> None:
    """The server answers 404 for the console's paths and reports its absence in /v2/me (acceptance 21)."""
    storage = connect("memory:")
    app = TestApp(create_app(Broker(storage, ManualClock(1.0))))
    for path in ("/console", "/console/", "/console/0123456789ab/app.js"):
        app.get(path, status=404)
    app.get("/", headers=BROWSER, status=300)
    assert app.get("/v2/me", headers=ASKS).json["console"] is None
    storage.close()


def test_compressed_console_stays_small() -> None:
    """All files together are smaller than 120 kB when compressed."""
    tree = page.read_tree()
    assert sum(len(file.packed) for file in tree.files.values()) < 120_000
    assert len([name for name in tree.files if name.startswith("vendor/")]) <= 4


def test_modules_are_served_without_comments_and_indentation() -> None:
    """Line numbers stay the same, so that errors in the browser refer to source lines; vendored files are unchanged."""
    for name, file in page.read_tree().files.items():
        written, served = (page.ROOT / name).read_bytes(), file.raw
        if name.startswith("vendor/") or not name.endswith(".js"):
            assert served == written, name
            continue
        lines = list(zip(written.decode().split("\n"), served.decode().split("\n"), strict=True))
        omitted = [line.lstrip() for line, there in lines if line.lstrip() != there]
        assert {there for line, there in lines if line.lstrip() != there} <= {""}, name
        assert [line for line in omitted if not line.startswith(("//", "/**", "* ", "*/"))] == [], name
        assert not re.search("^ |^//|^/\\*\\*", served.decode(), re.MULTILINE), name


def test_templates_create_no_markup_from_strings() -> None:
    """Templates, which the linter cannot check, have no markup or styles from strings and no handlers in attributes."""
    unwanted = re.compile(
        r"dangerouslySetInnerHTML|innerHTML|outerHTML|insertAdjacentHTML|document\.write|style=|srcdoc|(?<![\w-])on[a-z]+="
        r"|href=\$\{[^}]*body|https?://(?!www\.w3\.org)"
    )
    for path in sorted(page.ROOT.rglob("*")):
        if path.suffix in (".js", ".html") and path.parent.name != "vendor":
            assert unwanted.findall(path.read_text()) == [], path
            assert len(path.read_text().splitlines()) <= 300


def test_the_command_prints_the_address(tmp_path: Path) -> None:
    """``zq console --print`` prints the address of the profile's project, without a token."""
    told = {"ZQ_URL": "https://zq.example/base/", "ZQ_TOKEN": "zq_secret", "XDG_CONFIG_HOME": str(tmp_path)}
    done = CliRunner().invoke(cli, ["console", "--print", "--project", "a/b"], env=told)
    assert (done.exit_code, done.stdout) == (0, "https://zq.example/base/console/#/p/a%2Fb\n")


def test_the_command_opens_the_browser(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The command prints the address if no browser can be opened."""
    opened: list[str] = []
    told = {"ZQ_URL": "http://localhost:8888", "ZQ_PROJECT": "acme", "XDG_CONFIG_HOME": str(tmp_path)}
    for there in (True, False):
        monkeypatch.setattr(webbrowser, "open", lambda address, there=there: opened.append(address) or there)
        done = CliRunner().invoke(cli, ["console"], env=told)
        assert (done.exit_code, done.stdout) == (0, "" if there else "http://localhost:8888/console/#/p/acme\n")
    assert opened == ["http://localhost:8888/console/#/p/acme"] * 2


def document_of(options: ConsoleOptions) -> str:
    """Return the document that a server without a strategy serves."""
    storage = connect("memory:")
    made = create_app(Broker(storage, ManualClock(1.0)), features=[ConsoleFeature(options)])
    storage.close()
    return TestApp(made).get("/console/").text


def test_the_address_of_grafana_is_an_attribute_and_nothing_else() -> None:
    """Any text of the setting is escaped within the attribute; without the setting the attribute is empty."""
    document = document_of(ConsoleOptions(grafana_url='https://g.example/?a=1&b="><script>'))
    assert 'data-grafana="https://g.example/?a=1&amp;b=&quot;&gt;&lt;script&gt;"' in document
    assert 'data-grafana=""' in document_of(ConsoleOptions())
