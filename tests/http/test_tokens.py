# SPDX-License-Identifier: Apache-2.0
"""Tokens: their form, storage and administration (tenancy 2 and 5)."""

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from msgspec import structs

from tests.http.api import Api
from tests.tables import every_row
from zq import audit
from zq.audit import Audit
from zq.auth import check, open_tokens
from zq.auth.credentials import BearerStrategy
from zq.auth.tokens import ADMINS, DENIED, KIND, MAX_TOKENS, Grant, NewToken, Tokens, TokenVerifier, parse_token
from zq.clock import ManualClock
from zq.errors import NotFound, QuotaExceeded, StartRefused
from zq.http.tokens import TokenItem
from zq.model.documents import DocumentRef
from zq.model.identity import AuthOptions
from zq.serving import control, credential_commands
from zq.serving.credential_commands import COMMAND
from zq.storage import connect
from zq.storage.api import Storage

Compose = Callable[..., Api]
DAY = 86400
BY_ID = "Refer to a token by its id, the ten characters after zq_."
NONE = "There is no token with this id."


@pytest.fixture
def tokens(storage: Storage, clock: ManualClock) -> Tokens:
    """Return the tokens in the shared store."""
    return Tokens(storage.documents, clock)


@pytest.fixture
def guarded(compose: Compose, storage: Storage, clock: ManualClock) -> Api:
    """Return a client of a server with tokens, which notices revocations at once."""
    moments = iter(range(10, 10**9, 10))
    verifier = TokenVerifier(storage.documents, clock)
    return compose(app={"strategy": BearerStrategy(verifier, bare=True, monotonic=lambda: float(next(moments)))})


@pytest.fixture
def owner(guarded: Api, tokens: Tokens) -> dict[str, str]:
    """Return the headers of an owner of the project."""
    return bearer(tokens.create(Grant(project=guarded.project, user="ann")).text)


@pytest.fixture
def admin(tokens: Tokens) -> dict[str, str]:
    """Return the headers of an administrator of the deployment, without project and client."""
    text = tokens.create(Grant(project="admin", roles=["admin"])).text
    return bearer(text) | {"X-Project-ID": None, "Client-ID": None}  # type: ignore[dict-item]


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


@pytest.mark.one_store
def test_the_form_of_a_token(tokens: Tokens) -> None:
    """A token has 64 characters in four parts; a changed or truncated token is invalid."""
    text = tokens.create(Grant(project="form")).text
    assert len(text) == 64
    assert [len(part) for part in text.split("_")] == [2, 10, 43, 6]
    assert parse_token(text) is not None
    for place in range(64):
        other = "1" if text[place] != "1" else "2"
        assert parse_token(text[:place] + other + text[place + 1 :]) is None
        assert parse_token(text[:place]) is None
    assert parse_token(text + "\n") is None


def test_the_store_has_no_secret(tokens: Tokens, storage: Storage, clock: ManualClock, project_suffix: str) -> None:
    """The store has the token's hash and an empty entry for listings; neither contains the secret."""
    project = f"hold{project_suffix}"
    made = tokens.create(Grant(project=project, name="n"))
    id, secret = made.text.split("_")[1:3]
    stored = storage.documents.get(DocumentRef("", "token", id), clock.now())
    entry = storage.documents.get(DocumentRef(project, "token", id), clock.now())
    assert stored is not None
    assert entry is not None
    assert secret.encode() not in stored.value + entry.value
    assert stored.expires == entry.expires == clock.now() + 90 * DAY


def test_a_token_is_made_and_shown_once(guarded: Api, owner: dict[str, str]) -> None:
    """The response to POST has the secret; GET and lists have not. The token works."""
    made = guarded.post("/v2/tokens", 201, {"name": "ci", "days": 3}, owner)
    assert made.headers["Cache-Control"] == "no-store"
    assert made.headers["Location"] == f"/v2/tokens/{made.json['id']}"
    text = made.json["token"]
    guarded.put("/v2/queues/jobs", 201, headers=bearer(text))
    shown = guarded.get(made.headers["Location"], 200, owner).json
    assert shown | {"token": text} == made.json | {"last_used": shown["last_used"]}
    assert shown["last_used"].endswith(":00:00.000Z")
    assert (shown["user"], shown["roles"], shown["scopes"]) == ("ann", ["member"], None)
    listed = guarded.get("/v2/tokens?limit=100", 200, owner)
    assert shown in listed.json["tokens"]
    assert text.split("_")[2] not in listed.text


def test_a_token_is_revoked(guarded: Api, owner: dict[str, str]) -> None:
    """The token gets 401 from then on and is not listed; revoking it again succeeds."""
    made = guarded.post("/v2/tokens", 201, headers=owner).json
    guarded.get("/v2/queues", 200, bearer(made["token"]))
    for _ in range(2):
        guarded.delete(f"/v2/tokens/{made['id']}", 204, owner)
    guarded.get("/v2/queues", 401, bearer(made["token"]))
    guarded.get(f"/v2/tokens/{made['id']}", 404, owner)
    assert made["id"] not in guarded.get("/v2/tokens?limit=100", 200, owner).text


def test_a_rotated_token_has_a_day_left(guarded: Api, owner: dict[str, str], clock: ManualClock) -> None:
    """The new token keeps the original expiry."""
    old = guarded.post("/v2/tokens", 201, {"days": 10, "name": "x"}, owner).json
    clock.advance(5 * DAY)
    twin = guarded.post(f"/v2/tokens/{old['id']}/rotate", 201, headers=owner).json
    assert (twin["name"], twin["id"] != old["id"]) == ("x", True)
    for text in (old["token"], twin["token"]):
        guarded.get("/v2/queues", 200, bearer(text))
    clock.advance(DAY + 1)
    guarded.get("/v2/queues", 401, bearer(old["token"]))
    clock.advance(8 * DAY)
    guarded.get("/v2/queues", 200, bearer(twin["token"]))
    guarded.post(f"/v2/tokens/{old['id']}/rotate", 404, headers=owner)


def test_rotation_never_lengthens_a_life(tokens: Tokens, clock: ManualClock) -> None:
    """A token that expires in an hour still ends within the hour."""
    old = tokens.create(Grant(project="late", days=1)).token
    clock.advance(DAY - 3600)
    tokens.rotate(old.id)
    assert tokens.get(old.id).stored.expires == old.stored.expires
    clock.advance(3600)
    with pytest.raises(NotFound):
        tokens.get(old.id)


def test_a_token_revoked_amid_its_rotation_stays_revoked(tokens: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rotation limits the old token to a day, and must not write it back."""
    old = tokens.create(Grant(project="amid")).token
    create = tokens.create

    def revoked_meanwhile(grant: Grant) -> NewToken:
        tokens.revoke(old.id)
        return create(grant)

    monkeypatch.setattr(tokens, "create", revoked_meanwhile)
    tokens.rotate(old.id)
    with pytest.raises(NotFound):
        tokens.get(old.id)


def test_tokens_of_another_project_are_not_visible(guarded: Api, owner: dict[str, str], tokens: Tokens) -> None:
    """This holds for reads by id, listings and revocations."""
    other = tokens.create(Grant(project="somebody"))
    where = f"/v2/tokens/{other.token.id}"
    guarded.get(where, 404, owner)
    guarded.post(f"{where}/rotate", 404, headers=owner)
    guarded.delete(where, 204, owner)
    assert other.token.id not in guarded.get("/v2/tokens?limit=100", 200, owner).text
    assert tokens.get(other.token.id).stored.project == "somebody"


def test_a_token_never_exceeds_its_maker(guarded: Api, tokens: Tokens, clock: ManualClock) -> None:
    """This holds for scopes, roles and expiry (tenancy 2)."""
    ends = clock.now() + DAY
    scopes = ["manage+produce:**", "manage:work/**"]
    maker = bearer(tokens.create(Grant(project=guarded.project, scopes=scopes, expires=ends)).text)
    made = guarded.post("/v2/tokens", 201, {"scopes": ["produce:a.*"], "days": 90}, maker).json
    assert tokens.get(made["id"]).stored.expires == ends
    more: list[dict[str, list[str]]] = [{"scopes": ["consume:a.*"]}, {"scopes": ["produce:work/a"]}]
    for terms in ({}, *more, {"scopes": scopes, "roles": ["admin"]}):
        refused = guarded.post("/v2/tokens", 403, terms, maker).json
        assert refused["description"] == "A token must not exceed the rights of the credential that creates it."
    wide = tokens.create(Grant(project=guarded.project))
    guarded.post(f"/v2/tokens/{wide.token.id}/rotate", 403, headers=maker)


def test_a_twin_never_exceeds_its_maker(guarded: Api, tokens: Tokens) -> None:
    """The rotated token has no role that the caller lacks and no other user's name, as a policy may use either."""
    maker = bearer(tokens.create(Grant(project=guarded.project, user="bob", roles=["auditor"])).text)
    for more in ({"roles": ["member"]}, {"roles": ["member", "auditor"]}, {"roles": ["auditor"], "user": "ann"}):
        wide = tokens.create(Grant(project=guarded.project, **more))  # type: ignore[arg-type]
        refused = guarded.post(f"/v2/tokens/{wide.token.id}/rotate", 403, headers=maker).json
        assert refused["description"] == "A token must not exceed the rights of the credential that creates it."
    for user in ("", "bob"):
        own = tokens.create(Grant(project=guarded.project, user=user, roles=["auditor"]))
        guarded.post(f"/v2/tokens/{own.token.id}/rotate", 201, headers=maker)


def test_a_token_is_not_named_by_its_secret(
    guarded: Api, owner: dict[str, str], admin: dict[str, str], tokens: Tokens, storage: Storage, clock: ManualClock
) -> None:
    """A revocation by the token's full text is refused with an error, and the text is not stored."""
    text = tokens.create(Grant(project=guarded.project)).text
    for path, headers in (("/v2/tokens", owner), ("/v2/admin/tokens", admin)):
        for verb, target in (("GET", text), ("DELETE", text), ("DELETE", text[:13]), ("POST", f"{text}/rotate")):
            refused = guarded.call(verb, f"{path}/{target}", 400, headers=headers)
            assert "by its id" in refused.text
            assert text not in refused.text
    assert not any(text in each.ref.name for each in storage.documents.list("", DENIED, "", "", 100, clock.now()).items)


@pytest.mark.parametrize("scopes", [["produce:**"], ["manage:orders.*"], ["manage:**"], ["*:queue/**"]])
def test_tokens_are_managed_by_whoever_manages_everything(guarded: Api, tokens: Tokens, scopes: list[str]) -> None:
    """The scopes must cover the whole project."""
    narrow = bearer(tokens.create(Grant(project=guarded.project, scopes=scopes)).text)
    guarded.get("/v2/tokens", 403, narrow)
    guarded.post("/v2/tokens", 403, {"scopes": scopes}, narrow)
    assert TokenItem.policy == {"GET": "tokens:get", "DELETE": "tokens:delete"}


def test_who_was_not_authenticated_makes_no_tokens(api: Api) -> None:
    """Without authentication no tokens can be created: they would be valid once authentication is enabled."""
    for path in ("/v2/tokens", "/v2/admin/tokens?project=x"):
        api.post(path, 403)
        api.get(path, 403)


@every_row(
    "terms",
    [
        *({"days": 0}, {"days": "x"}, {"name": "x" * 257}, {"name": "\n"}, {"scopes": ["x"]}, {"roles": ["A B"]}),
        *({"roles": ["r"] * 21}, {"scopes": ["produce:**"] * 21}, [], {"scopes": "produce:**"}),
    ],
)
def test_terms_out_of_bounds_are_refused(guarded: Api, owner: dict[str, str], terms: object) -> None:
    """The server answers 400 and creates no token."""
    before = len(guarded.get("/v2/tokens?limit=100", 200, owner).json["tokens"])
    guarded.post("/v2/tokens", 400, terms, owner)
    assert len(guarded.get("/v2/tokens?limit=100", 200, owner).json["tokens"]) == before


def test_lifetime_and_number_are_bounded(storage: Storage, clock: ManualClock, project_suffix: str) -> None:
    """The limits are [auth] token_max_days and 100 live tokens per project; expired tokens do not count."""
    tokens = Tokens(storage.documents, clock, max_days=5)
    grant = Grant(project=f"many{project_suffix}", days=90)
    assert tokens.create(grant).token.stored.expires == clock.now() + 5 * DAY
    for _ in range(MAX_TOKENS - 1):
        tokens.create(grant)
    with pytest.raises(QuotaExceeded):
        tokens.create(grant)
    clock.advance(5 * DAY + 1)
    tokens.create(grant)
    few = Tokens(storage.documents, clock, max_tokens=lambda project: int(project == grant.project))
    with pytest.raises(QuotaExceeded):
        few.create(grant)
    few.create(Grant(project=f"others{project_suffix}"))


def index(storage: Storage, clock: ManualClock, project: str) -> int:
    return len(storage.documents.list(project, KIND, "", "", 1000, clock.now()).items)


@pytest.mark.every_store
def test_servers_that_make_tokens_at_once_keep_to_the_number(
    storage: Storage, clock: ManualClock, project_suffix: str
) -> None:
    """Each thread has a server of its own. Refused requests leave nothing, and every created token counts."""
    grant, made = Grant(project=f"racing{project_suffix}"), []
    for _ in range(5):

        def create(server: Tokens, together: threading.Barrier) -> None:
            together.wait(60)
            with suppress(QuotaExceeded):
                made.append(server.create(grant).token.id)

        together = threading.Barrier(4)
        servers = [Tokens(storage.documents, clock, max_tokens=lambda _: 7) for _ in range(4)]
        threads = [threading.Thread(target=create, args=(server, together)) for server in servers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(made) == index(storage, clock, grant.project) <= 7


@pytest.mark.one_store
def test_a_token_that_is_made_while_another_is_counted_takes_its_room(
    storage: Storage, clock: ManualClock, project_suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other server saw room for a token before its write, and sees none after it."""
    grant, put = Grant(project=f"late{project_suffix}"), storage.documents.put
    early, late = (Tokens(storage.documents, clock, max_tokens=lambda _: 1) for _ in range(2))

    def overtaken(ref: DocumentRef, *terms: Any, **more: Any) -> bool:
        if (ref.project, ref.kind) == (grant.project, KIND):
            monkeypatch.setattr(storage.documents, "put", put)
            early.create(grant)
        return put(ref, *terms, **more)

    monkeypatch.setattr(storage.documents, "put", overtaken)
    with pytest.raises(QuotaExceeded):
        late.create(grant)
    assert index(storage, clock, grant.project) == len(early.list(grant.project, "", 10).items) == 1


def test_administrators_manage_everybodys(guarded: Api, admin: dict[str, str], owner: dict[str, str]) -> None:
    """Only the role is required to create, list, rotate and revoke tokens of the project in the parameter."""
    guarded.get("/v2/admin/tokens", 403, owner)
    guarded.post("/v2/admin/tokens", 400, headers=admin)
    where = f"/v2/admin/tokens?project={guarded.project}"
    made = guarded.post(where, 201, {"roles": ["Auditor"], "user": "bob"}, admin).json
    assert (made["project"], made["roles"], made["user"]) == (guarded.project, ["auditor"], "bob")
    guarded.get("/v2/queues", 200, bearer(made["token"]))
    pages = guarded.get(f"{where}&limit=1", 200, admin).json
    assert len(pages["tokens"]) == 1
    assert f"project={guarded.project}" in pages["links"][0]["href"]
    guarded.get(pages["links"][0]["href"], 200, admin)
    page = guarded.get("/v2/admin/tokens?limit=100", 200, admin)
    while made["id"] not in page.text:  # the shared store has tokens of all tests
        page = guarded.get(page.json["links"][0]["href"], 200, admin)
    guarded.get(f"/v2/admin/tokens/{made['id']}", 200, admin)
    guarded.get(f"/v2/admin/tokens/{made['id']}?project=other", 404, admin)
    guarded.post(f"/v2/admin/tokens/{made['id']}/rotate", 201, headers=admin)
    guarded.delete(f"/v2/admin/tokens/{made['id']}", 204, admin)
    guarded.get("/v2/queues", 401, bearer(made["token"]))


def test_a_json_web_token_is_revoked_by_any_id(
    guarded: Api, admin: dict[str, str], tokens: Tokens, storage: Storage, clock: ManualClock, socket: str
) -> None:
    """The id may have characters that a path cannot have, over HTTP and in the command. Own tokens are unaffected."""
    own = tokens.create(Grant(project=guarded.project))

    def denied(jti: str) -> bool:
        return storage.documents.get(DocumentRef("", DENIED, jti), clock.now()) is not None

    for jti in (f"urn:a/{own.token.id}", "x?y=1&z#%2F", "é ü\\", "zq_else", own.token.id):
        guarded.delete(f"/v2/admin/tokens?{urlencode({'jti': jti})}", 204, admin)
        assert denied(jti)
        command = credential_commands.parse(COMMAND, ["revoke", "--jti", f"{jti}/2"])
        assert credential_commands.run(COMMAND, command, credential_commands.connect(socket, compose_nothing)) == 0
        assert denied(f"{jti}/2")
    assert tokens.get(own.token.id)
    for wrong in ("", "x" * 257, "a\n", own.text):
        refused = guarded.delete(f"/v2/admin/tokens?{urlencode({'jti': wrong})}", 400, admin)
        assert own.text not in refused.text
        assert wrong == "" or not denied(wrong)
    guarded.delete("/v2/admin/tokens", 400, admin)
    guarded.delete("/v2/admin/tokens?jti=a", 403, bearer(own.text) | {"X-Project-ID": None})  # type: ignore[arg-type]
    for arguments in (["revoke"], ["revoke", "abc", "--jti", "abc"]):
        with pytest.raises(SystemExit):
            credential_commands.parse(COMMAND, arguments)


def compose_nothing() -> control.Application:
    raise AssertionError("the server was not asked")


def test_audit_lines_name_the_token(
    guarded: Api, owner: dict[str, str], admin: dict[str, str], tokens: Tokens, socket: str, tmp_path: Path
) -> None:
    """This holds for create, rotate and revoke, over HTTP and the control socket. Lines contain only the token's id."""
    told = tmp_path / "audit.log"
    audit.configure(str(told))
    try:
        expected = []
        for path, headers in (("/v2/tokens", owner), ("/v2/admin/tokens", admin)):
            made = guarded.post(f"{path}?project={guarded.project}", 201, headers=headers).json
            twin = guarded.post(f"{path}/{made['id']}/rotate", 201, headers=headers).json
            guarded.delete(f"{path}/{twin['id']}", 204, headers)
            guarded.delete(f"{path}/{made['token']}", 400, headers)
            guarded.post(f"{path}/0000000000/rotate", 404, headers=headers)
            whys = [f"token {made['id']}", ""], [f"token {made['id']}", f"Its replacement is {twin['id']}."]
            expected += [*whys, [f"token {twin['id']}", ""], ["token", BY_ID], ["token 0000000000", NONE]]
        guarded.delete("/v2/admin/tokens?jti=urn:a/b", 204, admin)
        status, made = control.send(socket, "POST", "/v2/admin/tokens?project=p", {})
        assert status == 201
        command = credential_commands.parse(COMMAND, ["revoke", made["id"]])
        credential_commands.run(COMMAND, command, credential_commands.connect(socket, compose_nothing))
        expected += [["token urn:a/b", ""], *[[f"token {made['id']}", ""]] * 2]
    finally:
        audit.configure("off")
    lines = [json.loads(line) for line in told.read_text().splitlines()]
    assert [[line["object"], line["why"]] for line in lines] == expected
    assert [line["credential"] for line in lines[-2:]] == ["control", "control"]


def test_an_administrators_token_never_exceeds_its_maker(
    guarded: Api, tokens: Tokens, clock: ManualClock, project_suffix: str
) -> None:
    """Without scopes, an administrator creates tokens that end no later than its own.

    With scopes, it creates only tokens for its own scopes.
    """
    ends, project = clock.now() + DAY, f"ops{project_suffix}"
    others = {"X-Project-ID": None, "Client-ID": None}
    grant = Grant(project=project, user="ann", roles=["admin"], expires=ends)
    whole: dict[str, str] = bearer(tokens.create(grant).text) | others  # type: ignore[assignment]
    foreign = guarded.post("/v2/admin/tokens?project=else", 201, {"roles": ["any"], "user": "bob"}, whole).json
    twin = guarded.post(f"/v2/admin/tokens/{foreign['id']}/rotate?project=else", 201, headers=whole).json
    assert [tokens.get(made["id"]).stored.expires for made in (foreign, twin)] == [ends, ends]
    scopes = ["manage+produce:**", "manage:work/**"]
    text = tokens.create(structs.replace(grant, scopes=scopes)).text
    narrow: dict[str, str] = bearer(text) | others  # type: ignore[assignment]
    for named, terms, status in (
        (project, {"scopes": ["produce:a.*"], "roles": ["admin"]}, 201),
        (project, {"scopes": ["produce:a.*"], "user": "ann"}, 201),
        ("else", {"scopes": ["produce:a.*"]}, 403),
        (project, {}, 403),
        (project, {"scopes": ["consume:a.*"]}, 403),
        (project, {"scopes": ["produce:a.*"], "roles": ["auditor"]}, 403),
        (project, {"scopes": ["produce:a.*"], "user": "bob"}, 403),
    ):
        answer = guarded.post(f"/v2/admin/tokens?project={named}", status, terms, narrow).json
        if status == 201:
            assert tokens.get(answer["id"]).stored.expires == ends
            guarded.post(f"/v2/admin/tokens/{answer['id']}/rotate", 201, headers=narrow)
        else:
            assert answer["description"] == "A token must not exceed the rights of the credential that creates it."
    for id in (twin["id"], tokens.create(Grant(project=project)).token.id):
        before = tokens.get(id)
        guarded.post(f"/v2/admin/tokens/{id}/rotate", 403, headers=narrow)
        assert tokens.get(id) == before


def test_tokens_of_administrators_are_no_projects(
    guarded: Api, storage: Storage, clock: ManualClock, tokens: Tokens, project_suffix: str
) -> None:
    """A tenant's project of the same name cannot see or change them, and they do not count towards its limit."""
    project = f"admin{project_suffix}"
    administrator = tokens.create(Grant(project=project, roles=["admin"]))
    tenant = tokens.create(Grant(project=project)).token.id
    owner = bearer(tokens.create(Grant(project=project)).text) | {"X-Project-ID": project}
    where = f"/v2/tokens/{administrator.token.id}"
    listed = guarded.get("/v2/tokens?limit=100", 200, owner)
    assert tenant in listed.text
    assert administrator.token.id not in listed.text
    guarded.get(where, 404, owner)
    guarded.post(f"{where}/rotate", 404, headers=owner)
    guarded.delete(where, 204, owner)
    others = {"X-Project-ID": None, "Client-ID": None}
    admin: dict[str, str] = bearer(administrator.text) | others  # type: ignore[assignment]
    guarded.get("/v2/queues", 200, bearer(administrator.text) | {"X-Project-ID": project})
    guarded.get(f"/v2/admin{where[3:]}", 200, admin)
    guarded.get(f"/v2/admin{where[3:]}?project={project}", 404, admin)
    assert administrator.token.id not in guarded.get(f"/v2/admin/tokens?project={project}", 200, admin).text
    assert index(storage, clock, project) == 2
    full = Tokens(storage.documents, clock, max_tokens=lambda _: 2)
    with pytest.raises(QuotaExceeded):
        full.create(Grant(project=project))
    twin = full.rotate(administrator.token.id).token.id
    for id in (twin, administrator.token.id):
        guarded.delete(f"/v2/admin/tokens/{id}", 204, admin)
        with pytest.raises(NotFound):
            tokens.get(id)
        assert storage.documents.get(DocumentRef("", ADMINS, id), clock.now()) is None


def test_the_number_of_administrators_is_bounded(clock: ManualClock) -> None:
    """Administrator tokens have a limit of their own."""
    storage = connect("memory:")
    tokens = Tokens(storage.documents, clock, max_tokens=lambda _: 0)
    for number in range(MAX_TOKENS):
        tokens.create(Grant(project=f"p{number}", roles=["admin"]))
    with pytest.raises(QuotaExceeded, match="administrator tokens"):
        tokens.create(Grant(project="p", roles=["admin"]))
    tokens.create(Grant(project="p"))
    storage.close()


def test_a_deployment_begins_with_a_token(clock: ManualClock, tmp_path: Path) -> None:
    """[auth] bootstrap_token_file creates the first administrator's token; an invalid token stops the start."""
    storage = connect("memory:")
    text = Tokens(storage.documents, clock).create(Grant(project="elsewhere")).text
    fresh = connect("memory:")
    file = tmp_path / "token"
    file.write_text(text + "\n")
    options = AuthOptions(strategy="token", bootstrap_token_file=str(file))
    file.chmod(0o644)
    for start in (lambda: open_tokens(options, fresh.documents, clock, Audit()), lambda: check(options)):
        with pytest.raises(StartRefused, match=r"bootstrap_token_file must be readable only by its owner.* has 0644\."):
            start()
    file.chmod(0o600)
    for _ in range(2):
        tokens = open_tokens(options, fresh.documents, clock, Audit())
        assert tokens.has_admin()
    other = Tokens(fresh.documents, clock).create(Grant(project="p")).token.id
    tokens.revoke(parse_token(text)[0])  # type: ignore[index]
    assert not tokens.has_admin()
    assert tokens.get(other)
    assert not open_tokens(options, fresh.documents, clock, Audit()).has_admin(), "it stays revoked"
    file.write_text("zq_nothing")
    with pytest.raises(StartRefused, match="bootstrap_token_file must contain a token"):
        open_tokens(options, fresh.documents, clock, Audit())
    with pytest.raises(NotFound):
        tokens.get(parse_token(text)[0])  # type: ignore[index]
    for each in (storage, fresh):
        each.close()


def test_a_rotated_bootstrap_token_is_not_adopted_again(clock: ManualClock) -> None:
    """This holds even after the new token is removed and the old token has expired."""
    storage = connect("memory:")
    tokens = Tokens(storage.documents, clock)
    text = tokens.create(Grant(project="elsewhere")).text
    tokens.revoke(text[3:13])
    assert tokens.adopt(text, "admin")
    twin = tokens.rotate(text[3:13]).token.id
    tokens.revoke(twin)
    clock.advance(DAY + 1)
    assert not tokens.adopt(text, "admin")
    assert not tokens.has_admin()
    storage.close()


@pytest.fixture
def socket(compose: Compose, tmp_path: Path) -> str:
    """Return the path of the control socket of a server without authentication."""
    path = str(tmp_path / "c.sock")
    control.serve(path, compose().app)
    return path


@pytest.mark.one_store
def test_a_file_that_is_not_a_socket_is_not_removed(compose: Compose, tmp_path: Path) -> None:
    """If the option names another file, the server starts without a socket and keeps the file."""
    file = tmp_path / "notes"
    file.write_text("mine")
    control.serve(str(file), compose().app)
    assert file.read_text() == "mine"


def test_the_control_socket_is_the_operators(socket: str, project_suffix: str) -> None:
    """The socket offers administrators' routes without a credential to this user only, and no project's routes."""
    assert Path(socket).stat().st_mode & 0o777 == 0o600
    status, made = control.send(socket, "POST", f"/v2/admin/tokens?project=p{project_suffix}", {"name": "x"})
    assert (status, made["by"]) == (201, "control")
    status, listed = control.send(socket, "GET", f"/v2/admin/tokens?project=p{project_suffix}")
    assert [token["id"] for token in listed["tokens"]] == [made["id"]]
    assert control.send(socket, "GET", "/v2/queues")[0] == 400
