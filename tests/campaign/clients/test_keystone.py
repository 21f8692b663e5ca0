# SPDX-License-Identifier: Apache-2.0
"""``auth_strategy = keystone`` with a simulated Keystone, over plain HTTP and openstacksdk (tenancy 1)."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from zaqarclient.queues.client import Client
from zaqarclient.transport.errors import ServiceUnavailableError

from tests.keystone import Keystone, User
from tests.reader import PYTHON, SHELL, follow, succeed
from tests.servers import ZqServer, ask, wait_for

ANN, BOB = User("ann", "a11"), User("bob", "b0b", ("Admin", "Member"))
LOST = User("lost", "")


@pytest.fixture(scope="module", params=["gunicorn", "granian"])
def keystone(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Keystone, ZqServer]]:
    """Start a Keystone and a server that uses it."""
    with Keystone(ANN, BOB, LOST) as keystone:
        store = f"rocksdb://{tmp_path_factory.mktemp('keystone')}/store"
        with ZqServer(store, engine=request.param, config=keystone.config()) as server:
            keystone.endpoint = server.url
            yield keystone, server


def test_a_token_of_keystone_names_the_project(keystone: tuple[Keystone, ZqServer]) -> None:
    """The token determines the project, whatever the request's headers contain; two users have two projects."""
    issuer, server = keystone
    ann, bob = issuer.token("ann"), issuer.token("bob")
    own = {"X-Project-ID": ANN.project, "X-Auth-Token": ann}
    assert ask(server.url, "PUT", "/v2/queues/anns", headers=own).status == 201
    for headers in (own, own | {"X-Roles": "admin", "X-User-Id": "root", "X-Identity-Status": "Confirmed"}):
        shown = ask(server.url, "GET", "/v2/queues", headers=headers).document
        assert [queue["name"] for queue in shown["queues"]] == ["anns"]
    theirs = {"X-Project-ID": BOB.project, "X-Auth-Token": bob}
    assert ask(server.url, "GET", "/v2/queues", headers=theirs).document["queues"] == []
    assert ask(server.url, "GET", "/v2/queues", headers=theirs | {"X-Project-ID": ANN.project}).status == 403


def test_request_without_valid_token_gets_keystones_answer(keystone: tuple[Keystone, ZqServer]) -> None:
    """The middleware answers before routing, with its own body and challenge; probes are open (contract 1.3)."""
    issuer, server = keystone
    for path in ("/v2/queues", "/v2/480924/queues/", "/v2/openapi.json"):
        for token in ({}, {"X-Auth-Token": "nonsense"}, {"X-Auth-Token": issuer.token("ann", -60)}):
            headers = token | {"X-Identity-Status": "Confirmed", "X-Roles": "admin"}
            refused = ask(server.url, "GET", path, headers=headers)
            assert refused.status == 401
            assert refused.headers["www-authenticate"] == f'Keystone uri="{issuer.url}/v3"'
            assert refused.document["error"]["code"] == 401
    posted = ask(server.url, "POST", "/v2/queues/q/messages", {"messages": [{"body": 1}]})
    assert posted.status == 401
    assert ask(server.url, "GET", "/").status == 300
    assert ask(server.url, "GET", "/healthz").status == 200
    assert ask(server.url, "GET", "/v2/queues", headers={"X-Auth-Token": issuer.token("lost")}).status in (401, 403)


def test_the_roles_are_keystones(keystone: tuple[Keystone, ZqServer]) -> None:
    """The role names are in lower case: Keystone's admin is zq's admin."""
    issuer, server = keystone
    for user, expected in ((ANN, 403), (BOB, 200)):
        headers = {"X-Auth-Token": issuer.token(user.name), "X-Project-ID": user.project, "X-Roles": "admin"}
        assert ask(server.url, "GET", "/v2/admin/tokens", headers=headers).status == expected


def test_a_token_is_remembered_and_forgotten(keystone: tuple[Keystone, ZqServer]) -> None:
    """The server caches the token; after a revocation it is rejected when the cache entry expires."""
    issuer, server = keystone
    token = issuer.token("ann")
    headers = {"X-Auth-Token": token, "X-Project-ID": ANN.project}
    assert ask(server.url, "GET", "/v2/queues", headers=headers).status == 200
    before = issuer.seen
    del issuer.tokens[token]
    wait_for(lambda: ask(server.url, "GET", "/v2/queues", headers=headers).status == 401, 60, "it is refused")
    assert issuer.seen > before


def test_credential_of_waiters_and_streams_is_checked_again(keystone: tuple[Keystone, ZqServer]) -> None:
    """Within 30 s after a revocation, a waiting request gets 401 and a stream ends (tenancy 2)."""
    issuer, server = keystone
    token = issuer.token("ann")
    with ThreadPoolExecutor(2) as pool:
        begun = time.monotonic()
        waiter, stream = (
            pool.submit(ask, server.url, "GET", path, headers={name: token, "X-Project-ID": ANN.project}, timeout=60)
            for name, path in (
                ("X-Storage-Token", "/v2/queues/empty/messages?wait=30"),  # the middleware accepts this name, too
                ("X-Auth-Token", "/v2/stream"),
            )
        )
        wait_for(lambda: issuer.seen, 60, "the token was asked for")
        time.sleep(1)
        assert not waiter.done()
        assert not stream.done()
        del issuer.tokens[token]
        assert (waiter.result(60).status, stream.result(60).status) == (401, 200)
    assert time.monotonic() - begun < 55


def test_outage_of_keystone_is_answered_503(keystone: tuple[Keystone, ZqServer]) -> None:
    """The server answers 503 and grants no access."""
    issuer, server = keystone
    token = issuer.token("ann")
    issuer.down = True
    try:
        headers = {"X-Auth-Token": token, "X-Project-ID": ANN.project}
        assert ask(server.url, "GET", "/v2/queues", headers=headers, timeout=60).status == 503
    finally:
        issuer.down = False


def test_zaqars_client_raises_an_error_for_a_rate_limit(tmp_path: Path) -> None:
    """The client does not know 429, so zq answers 503, which raises an error (tenancy 6)."""
    with Keystone(ANN) as issuer:
        config = f"{issuer.config()}[quota]\nrequests = 1\n"
        with ZqServer(f"rocksdb://{tmp_path}/store", config=config) as server:
            issuer.endpoint = server.url
            options = {
                **{"os_username": "ann", "os_password": ANN.password, "os_auth_url": f"{issuer.url}/v3"},
                **{"os_project_name": ANN.project, "os_project_id": ANN.project},
                **{"os_user_domain_name": "Default", "os_project_domain_name": "Default"},
            }
            conf = {"auth_opts": {"backend": "keystone", "options": options}}
            jobs = Client(server.url, version=2, conf=conf).queue("jobs", auto_create=False)
            posted: list[str] = []

            def post_until_refused() -> None:
                while len(posted) < 1000:
                    posted.extend(jobs.post([{"body": 1, "ttl": 300}])["resources"])

            with pytest.raises(ServiceUnavailableError):
                post_until_refused()
            assert posted
            headers = {"X-Auth-Token": issuer.token("ann"), "X-Project-ID": ANN.project}

            def stored() -> int:
                answer = ask(server.url, "GET", "/v2/queues/jobs/stats", headers=headers)
                return answer.document["messages"]["total"] if answer.status == 200 else -1

            assert wait_for(lambda: stored() + 1, 60, "the rate allows a look") - 1 == len(posted)


SDK = """\
import openstack
conn = openstack.connect(
    auth_url="{url}/v3", username="ann", password="secret", project_name="a11",
    user_domain_name="Default", project_domain_name="Default", region_name="one",
)
conn.message.create_queue(name="sdk")
conn.message.post_message("sdk", [{{"body": 7, "ttl": 300}}])
print([message.body for message in conn.message.messages("sdk", echo=True)])
"""


def test_openstacksdk_works_with_a_session(keystone: tuple[Keystone, ZqServer], tmp_path: Path) -> None:
    """The SDK finds zq in the catalogue and sends the token; the request names no project."""
    issuer, _ = keystone
    assert succeed([*PYTHON, SDK.format(url=issuer.url)], tmp_path) == "[7]\n"


COMMANDS = """\
export OS_AUTH_TYPE=password OS_AUTH_URL={url}/v3 OS_USERNAME=ann OS_PASSWORD=secret OS_PROJECT_NAME=a11
export OS_USER_DOMAIN_NAME=Default OS_PROJECT_DOMAIN_NAME=Default OS_REGION_NAME=one OS_IDENTITY_API_VERSION=3
export OS_MESSAGE_CLIENT_ID=5ef2a3c0-1d4b-4c8e-9a5e-0f6b1c2d3e4f
openstack <<END || true
messaging queue create parcels
messaging message post parcels '{{\\"body\\":{{\\"order\\":3}}}}'
messaging message list parcels --echo -f value -c Body
messaging queue list -f value
END
"""


def test_openstacks_command_line_works_with_a_session(keystone: tuple[Keystone, ZqServer], tmp_path: Path) -> None:
    """The command line uses a password and the catalogue; the project is that of the token."""
    issuer, server = keystone
    done = follow([*SHELL, COMMANDS.format(url=issuer.url)], tmp_path)
    assert "{'order': 3}" in done.stdout, done.stdout + done.stderr
    assert "parcels" in done.stdout
    own = {"X-Project-ID": ANN.project, "X-Auth-Token": issuer.token("ann")}
    names = [queue["name"] for queue in ask(server.url, "GET", "/v2/queues?limit=20", headers=own).document["queues"]]
    assert "parcels" in names
