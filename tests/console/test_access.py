# SPDX-License-Identifier: Apache-2.0
"""Access to the console: opening a project, signing in, read-only tokens, and a proxy with single sign-on."""

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.abilities import locate, need
from tests.console.conftest import Guarded, Watch, Watching, expect_notice
from tests.rotation import rotated
from tests.servers import ZqServer, free_port, wait_for
from zq.client import Client

pytestmark = pytest.mark.slow

MAIL = "queues/mail"
STORED = "JSON.stringify([{...localStorage}, {...sessionStorage}, location.href, document.cookie])"


def test_a_project_is_opened_by_its_name_and_remembered(client: Client, watch: Watch) -> None:
    """Without authentication, the user types the project's name once; the console then lists the project."""
    client.queue("mail").create()
    page = watch.open("#/")
    page.get_by_label("Project").fill(watch.project)
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("link", name="mail")).to_be_visible()
    watch.open("#/")
    page.get_by_role("link", name=watch.project).click()
    expect(page.get_by_role("link", name="mail")).to_be_visible()


def test_without_a_token_one_signs_in_and_comes_to_the_same_place(tokened: Guarded, watching: Watching) -> None:
    """The console keeps the token in session storage only, and asks again when it is revoked (acceptance 15, 18)."""
    token = tokened.token()
    with Client(tokened.server.url, tokened.project, token=token) as client:
        client.queue("mail").post({"a": 1})
        watch = watching(tokened.server.url)
        watch.expected.add(401)
        page = watch.open(MAIL)
        page.get_by_label("Token").fill("zq_wrong")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text("not valid")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name="mail", level=1)).to_be_visible()
        local, session, *addresses = page.evaluate(f"JSON.parse({STORED})")
        assert token in session.values()
        assert token not in str([local, addresses]) + "".join(request.url for request in watch.requests)
        client.revoke_token(token.split("_")[1])
        expect(page.get_by_label("Token")).to_be_visible(timeout=60_000)
        page.get_by_label("Token").fill(tokened.token())
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name="mail", level=1)).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        assert "zq_" not in page.evaluate(STORED)
    assert token not in tokened.server.output


def test_a_reader_sees_all_and_each_button_says_why_not(tokened: Guarded, watching: Watching) -> None:
    """Disabled buttons give the reason; tests/http/test_matrix.py checks the server's refusals (acceptance 15)."""
    with tokened.client() as client:
        client.queue("mail").post({"a": 1})
        watch = watching(tokened.server.url)
        page = watch.sign_in(tokened.token("observe:**"), "#/")
        page.get_by_role("link", name="mail", exact=True).click()
        purge = page.get_by_role("button", name="Purge…")
        expect(purge).to_have_attribute("title", f"Your credential does not allow queues:purge in {tokened.project}.")
        purge.click(force=True)
        expect_notice(page, "does not allow queues:purge")
        expect(page.get_by_role("dialog")).to_have_count(0)
        assert client.queue("mail").stats().total >= 1


CONF = """
{user}daemon off;
pid {folder}/pid;
error_log stderr warn;
events {{ }}
http {{
    access_log off;
    {temporary}
    server {{
        listen 127.0.0.1:{port};
        location /a/b/zq/ {{
            if ($cookie_sso != yes) {{ return 302 /sso; }}
            proxy_pass {target}/;
        }}
    }}
}}
"""


class Proxy:
    """An nginx proxy that serves zq below a path, for clients with a sign-on cookie."""

    def __init__(self, target: str, folder: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
        user = "user root;" if os.getuid() == 0 else ""
        conf = folder / "nginx.conf"
        conf.write_text(CONF.format(user=user, folder=folder, temporary=temporary, port=self.port, target=target))
        self._process = subprocess.Popen([locate("nginx") or "", "-p", str(folder), "-c", str(conf)])

    def up(self) -> bool:
        assert self._process.poll() is None
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(20)


@pytest.fixture(scope="module")
def proxy(server: ZqServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    need("nginx")
    opened = Proxy(server.url, tmp_path_factory.mktemp("nginx"))
    wait_for(opened.up, 60, "nginx listens")
    yield opened
    opened.close()


@pytest.mark.parametrize("slash", rotated(["", "/"], 1))
def test_it_works_below_any_path_of_a_proxy(client: Client, proxy: Proxy, watching: Watching, slash: str) -> None:
    """The console works below a proxy's path, with and without a slash, with no setting in zq (acceptance 17)."""
    client.queue("mail").post({"a": 1})
    watch = watching(proxy.url)
    watch.context.add_cookies([{"name": "sso", "value": "yes", "url": proxy.url}])
    page = watch.page
    page.goto(f"{proxy.url}/a/b/zq{slash}")
    assert page.url.startswith(f"{proxy.url}/a/b/zq/console/")
    page.get_by_label("Project").fill(watch.project)
    page.get_by_role("button", name="Open").click()
    page.get_by_role("link", name="mail").click()
    page.locator("tbody th a").click()
    expect(page.locator(".tree")).to_contain_text("a: 1")
    page.get_by_role("button", name="Delete…").last.click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect_notice(page, "The message was deleted.")
    assert all(request.url.startswith(f"{proxy.url}/a/b/zq") for request in watch.requests)
