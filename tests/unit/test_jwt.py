# SPDX-License-Identifier: Apache-2.0
"""JSON Web Tokens under the attacks of RFC 8725, and the issuer's published keys (tenancy 3; attacks C1 to C3)."""

import base64
import hashlib
import hmac
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any, ClassVar

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tests.certificates import issue
from zq.auth import check_jwt, create_strategy, jwks
from zq.auth.credentials import BearerStrategy
from zq.auth.jwks import MAX_SIZE, KeySet, fetch_https, is_public
from zq.auth.jwt import JwtVerifier
from zq.auth.tokens import Grant, Tokens
from zq.clock import ManualClock
from zq.errors import NotAuthenticated, StartRefused, Unavailable
from zq.model.identity import ALGORITHMS as KNOWN
from zq.model.identity import AuthOptions, JwtOptions
from zq.storage import connect
from zq.storage.api import Storage

NOW = 1_800_000_000.0
RSA = rsa.generate_private_key(65537, 2048)
SMALL = rsa.generate_private_key(65537, 1024)
CURVE = ec.generate_private_key(ec.SECP256R1())
OTHER_CURVE = ec.generate_private_key(ec.SECP384R1())
EDWARDS = ed25519.Ed25519PrivateKey.generate()
STRANGER = rsa.generate_private_key(65537, 2048)
ALGORITHMS: dict[str, tuple[Any, str]] = {"RS256": (RSA, "r"), "ES256": (CURVE, "e"), "EdDSA": (EDWARDS, "o")}
OPTIONS = JwtOptions(issuer="https://id.example", audience="zq", jwks="set.json")
CLAIMS = {"iss": "https://id.example", "aud": "zq", "iat": NOW, "exp": NOW + 600, "zq_project": "acme", "sub": "ann"}


def published(*more: dict[str, Any]) -> bytes:
    """Return the issuer's key set in JSON."""
    made = [
        RSAAlgorithm.to_jwk(RSA.public_key(), as_dict=True) | {"kid": "r", "use": "sig"},
        ECAlgorithm.to_jwk(CURVE.public_key(), as_dict=True) | {"kid": "e"},
        OKPAlgorithm.to_jwk(EDWARDS.public_key(), as_dict=True) | {"kid": "o", "alg": "EdDSA"},
    ]
    return json.dumps({"keys": [*made, *more]}).encode()


def public_pem() -> bytes:
    return RSA.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


@pytest.fixture
def storage() -> Iterator[Storage]:
    opened = connect("memory:")
    yield opened
    opened.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write the issuer's key set to a file."""
    path = tmp_path / "set.json"
    path.write_bytes(published())
    return path


Make = Callable[..., JwtVerifier]


@pytest.fixture
def make(storage: Storage, clock: ManualClock, file: Path) -> Make:
    """Return a factory of verifiers with other options."""

    def build(**options: Any) -> JwtVerifier:
        chosen = JwtOptions(**{"issuer": OPTIONS.issuer, "audience": "zq", "jwks": str(file), **options})
        return JwtVerifier(chosen, KeySet(str(file), 3600), storage.documents, clock)

    return build


def signed(alg: str = "RS256", header: dict[str, Any] | None = None, key: Any = None, **claims: Any) -> str:
    """Return a signed token; a claim of `None` is omitted."""
    own, kid = ALGORITHMS[alg]
    content = {name: value for name, value in (CLAIMS | claims).items() if value is not None}
    return jwt.encode(content, key or own, alg, {"kid": kid} | (header or {}))


def by_hand(header: dict[str, Any], claims: dict[str, Any], secret: bytes | None = None) -> str:
    """Return a token that no library would make: with an HMAC, or without a signature."""
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, claims)]
    text = b".".join(parts)
    mac = hmac.new(secret, text, hashlib.sha256).digest() if secret else b""
    return (text + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")).decode()


@pytest.mark.parametrize("alg", ALGORITHMS)
def test_a_token_of_the_issuer_identifies_the_caller(make: Make, alg: str) -> None:
    """Project, roles, scopes and user are taken from the claims; the result may be cached for at most five minutes."""
    more = {"zq_roles": ["Admin", "ops"], "zq_scopes": "produce:a.* consume:b", "jti": "t1"}
    found = make().verify(signed(alg, **more))
    assert isinstance(found, tuple)
    identity, seconds = found
    assert (identity.project, identity.user, identity.credential) == ("acme", "ann", "jwt:t1")
    assert identity.roles == {"admin", "ops"}
    assert identity.scopes == ("produce:a.*", "consume:b")
    assert seconds == 300
    assert make().verify(signed(alg, exp=NOW + 100))[1] == 130  # type: ignore[index]
    plain = make().verify(signed(alg, aud=["x", "zq"]))
    assert isinstance(plain, tuple)
    assert (plain[0].roles, plain[0].scopes) == ({"member"}, None)


UNFIT: list[dict[str, Any]] = [
    *({"aud": "other"}, {"aud": None}, {"aud": ["x"]}, {"aud": []}, {"iss": "https://id.example/"}, {"iss": None}),
    *({"exp": None}, {"exp": NOW - 31}, {"exp": NOW + 86401, "iat": NOW}, {"exp": NOW + 86402, "iat": None}),
    *({"exp": "soon"}, {"exp": True}, {"exp": 1e300}, {"nbf": NOW + 31}, {"iat": NOW + 31}, {"nbf": "x"}),
    *({"zq_project": None}, {"zq_project": ""}, {"zq_project": "a,b"}, {"zq_project": 7}, {"zq_project": ["acme"]}),
    *({"zq_project": "x" * 257}, {"zq_project": " a"}, {"zq_project": "é"}, {"zq_project": "a\nb"}),
    *(
        {"zq_scopes": []},
        {"zq_scopes": ""},
        {"zq_scopes": ["nonsense"]},
        {"zq_scopes": {"a": 1}},
        {"zq_scopes": [1]},
    ),
    *({"zq_roles": 7}, {"zq_roles": [7]}),
]


def test_a_token_whose_claims_do_not_fit_is_refused(make: Make) -> None:
    """A wrong audience or issuer, invalid times or a missing project are errors; there is no default project."""
    verifier = make()
    assert [claims for claims in UNFIT if not isinstance(verifier.verify(signed(**claims)), str)] == []


def test_clocks_may_differ_a_little(make: Make) -> None:
    """The leeway applies in both directions."""
    verifier = make()
    assert isinstance(verifier.verify(signed(exp=NOW - 29)), tuple)
    assert isinstance(verifier.verify(signed(nbf=NOW + 29, iat=NOW + 29)), tuple)
    assert isinstance(make(leeway=0).verify(signed(exp=NOW - 1)), str)


def test_only_a_listed_algorithm_is_accepted(make: Make, file: Path) -> None:
    """``none``, HS256 with a public key as its secret, and unlisted algorithms are refused (RFC 8725, 3.1 and 3.2)."""
    verifier = make()
    assert isinstance(verifier.verify(by_hand({"alg": "none"}, CLAIMS)), str)
    assert isinstance(verifier.verify(by_hand({"alg": "None", "kid": "r"}, CLAIMS)), str)
    for secret in (public_pem(), file.read_bytes(), b"r"):
        for header in ({"alg": "HS256", "kid": "r"}, {"alg": "RS256", "kid": "r"}, {"alg": "hs256"}):
            assert isinstance(verifier.verify(by_hand(header, CLAIMS, secret)), str)
    assert isinstance(make(algorithms=("ES256",)).verify(signed("RS256")), str)
    assert isinstance(verifier.verify(jwt.encode(CLAIMS, RSA, "PS256", {"kid": "r"})), str)
    assert isinstance(make(algorithms=("PS256",)).verify(jwt.encode(CLAIMS, RSA, "PS256", {"kid": "r"})), tuple)


def test_an_algorithm_must_fit_its_key(make: Make, file: Path) -> None:
    """The key has another type, curve or algorithm, is for encryption, or is too small."""
    other = ECAlgorithm.to_jwk(OTHER_CURVE.public_key(), as_dict=True) | {"kid": "p384"}
    small = RSAAlgorithm.to_jwk(SMALL.public_key(), as_dict=True) | {"kid": "small"}
    sealing = RSAAlgorithm.to_jwk(STRANGER.public_key(), as_dict=True) | {"kid": "enc", "use": "enc"}
    bound = RSAAlgorithm.to_jwk(STRANGER.public_key(), as_dict=True) | {"kid": "ps", "alg": "PS256"}
    odd = [{"kty": "oct", "k": "AAAA", "kid": "oct"}, {"kty": "RSA", "kid": "bad"}, 7, {"kid": "nothing"}]
    file.write_bytes(published(other, small, sealing, bound, *odd))  # type: ignore[arg-type]
    verifier = make()
    assert isinstance(verifier.verify(signed("RS256")), tuple)
    assert isinstance(verifier.verify(signed("RS256", {"kid": "e"})), str)
    assert isinstance(verifier.verify(signed("ES256", {"kid": "r"})), str)
    assert isinstance(verifier.verify(signed("RS256", {"kid": "small"}, SMALL)), str)
    assert isinstance(verifier.verify(signed("RS256", {"kid": "enc"}, STRANGER)), str)
    assert isinstance(verifier.verify(signed("RS256", {"kid": "ps"}, STRANGER)), str)
    assert isinstance(verifier.verify(by_hand({"alg": "HS256", "kid": "oct"}, CLAIMS, b"\0\0\0")), str)


@pytest.mark.parametrize(
    "header", [{"crit": ["exp"]}, {"crit": ["b64"], "b64": False}, {"cty": "JWT"}, {"enc": "A128GCM"}]
)
def test_unknown_demands_of_the_header_are_refused(make: Make, header: dict[str, Any]) -> None:
    """Unknown ``crit`` headers, nested tokens and encrypted tokens are refused (RFC 8725, 3.10)."""
    assert isinstance(make().verify(signed(header=header)), str)


def test_keys_in_the_header_are_ignored(make: Make) -> None:
    """``jku``, ``x5u`` and ``jwk`` are ignored; only keys of the configured set count (RFC 8725, 3.10)."""
    own = {"jwk": RSAAlgorithm.to_jwk(STRANGER.public_key(), as_dict=True), "jku": "https://evil.example", "x5u": "x"}
    assert isinstance(make().verify(signed(header=own, key=STRANGER)), str)
    assert isinstance(make().verify(signed(header=own)), tuple)


def test_a_required_type_must_match(make: Make) -> None:
    """If a type is configured, the token's ``typ`` must match (RFC 8725, 3.11)."""
    verifier = make(type="at+jwt")
    assert isinstance(verifier.verify(signed()), str)
    for kind in ("at+jwt", "AT+JWT", "application/at+jwt"):
        assert isinstance(verifier.verify(signed(header={"typ": kind})), tuple)


@pytest.mark.parametrize("text", ["", ".", "..", "a.b.c", "a.b", "....", "e30.e30.", "\xe9.\xe9.\xe9"])
def test_a_text_that_is_not_a_token_is_refused(make: Make, text: str) -> None:
    assert isinstance(make().verify(text), str)


def test_every_part_of_a_token_counts(make: Make) -> None:
    """A truncated or changed token is refused, as is a token that another key signed."""
    verifier, text = make(), signed("ES256")
    assert isinstance(verifier.verify(text), tuple)
    for at in range(0, len(text) - 1, 7):
        assert isinstance(verifier.verify(text[:at]), str)
        assert isinstance(verifier.verify(text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]), str)
    assert isinstance(verifier.verify(signed(key=STRANGER)), str)


def test_without_an_id_every_key_that_fits_is_tried(make: Make) -> None:
    """Issuers with one key omit the key id."""
    assert isinstance(make().verify(jwt.encode(CLAIMS, RSA, "RS256")), tuple)
    assert isinstance(make().verify(jwt.encode(CLAIMS, STRANGER, "RS256")), str)


def test_claims_may_be_nested(make: Make) -> None:
    """A claim's option may be a path of names; a name that contains dots itself is one name."""
    verifier = make(project_claim="realm.zq.project", roles_claim="https://x.example/roles")
    deep = {"zq_project": None, "realm": {"zq": {"project": "deep"}}, "https://x.example/roles": ["a"]}
    identity = verifier.verify(signed(**deep))[0]  # type: ignore[index]
    assert (identity.project, identity.roles) == ("deep", {"a"})
    assert isinstance(verifier.verify(signed(**(deep | {"realm": ["zq"]}))), str)


def test_a_token_can_be_revoked(make: Make, storage: Storage, clock: ManualClock) -> None:
    """The token's id is denied until the token would have expired; its cached identity is dropped."""
    verifier, forgotten = make(), []
    verifier.listen(forgotten.append)
    assert isinstance(verifier.verify(signed(jti="t1")), tuple)
    Tokens(storage.documents, clock).deny("t1")
    for _ in range(2):
        verifier.read_denied()
    assert forgotten == [{"jwt:t1"}] * 2, "one that was verified meanwhile may be remembered after the first"
    assert isinstance(verifier.verify(signed(jti="t1")), str)
    assert isinstance(verifier.verify(signed(jti="t2")), tuple)


def test_revoked_ids_are_read_before_the_first_token_is_accepted(
    make: Make, storage: Storage, clock: ManualClock
) -> None:
    """The first token triggers a read of the denied ids.

    While the store does not respond, tokens are neither valid nor invalid.
    """
    Tokens(storage.documents, clock).deny("t1")
    assert isinstance(make().verify(signed(jti="t1")), str)
    verifier = make()
    verifier._documents = Silent()  # type: ignore[assignment]
    with pytest.raises(Unavailable):
        verifier.verify(signed(jti="t2"))


class Silent:
    """Documents of a store that does not respond."""

    def list(self, *_: object) -> None:
        raise Unavailable


@pytest.mark.parametrize(
    "wrong",
    [
        *({"issuer": ""}, {"audience": ""}, {"jwks": ""}, {"algorithms": ()}, {"algorithms": ("none",)}),
        *({"algorithms": ("RS256", "HS256")}, {"algorithms": ("XS1",)}),
    ],
)
def test_options_that_let_anyone_sign_stop_the_start(wrong: dict[str, Any]) -> None:
    """Each error names the option."""
    check_jwt(OPTIONS)
    with pytest.raises(StartRefused, match=r"\[auth\] jwt_"):
        check_jwt(JwtOptions(**{"issuer": "i", "audience": "a", "jwks": "j", **wrong}))


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"keys": 1}', b"\xff", None])
def test_a_file_without_a_key_set_stops_the_start(tmp_path: Path, content: bytes | None) -> None:
    """A key set URL without https stops the start too."""
    file = tmp_path / "set.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(StartRefused, match="JSON Web Key Set"):
        KeySet(str(file), 3600)
    with pytest.raises(StartRefused, match="https"):
        KeySet("http://id.example/keys", 3600)


class Issuer:
    """An issuer that serves keys and counts fetches; ``moment`` is the clock."""

    def __init__(self) -> None:
        self.fetches = 0
        self.moment = 1000.0
        self.content = published()
        self.keys = KeySet("https://id.example/keys", 3600, self.fetch, lambda: self.moment)

    def fetch(self, url: str) -> bytes:
        assert url == "https://id.example/keys"
        self.fetches += 1
        if not self.content:
            raise OSError("away")
        return self.content

    def turn(self) -> None:
        """Refresh the keys if that is due, as the refreshing thread does."""
        if self.keys.seconds_until_refresh(succeeded=True) <= 0:
            self.keys.refresh()


def test_without_a_key_set_no_token_can_be_judged() -> None:
    """Without a recent key set the server answers 503, not 401 (tenancy 1)."""
    issuer = Issuer()
    with pytest.raises(Unavailable):
        issuer.keys.find("r", "RS256")
    issuer.keys.refresh()
    assert issuer.keys.find("r", "RS256")
    issuer.content = b""
    issuer.moment += 600
    assert not issuer.keys.refresh()
    issuer.moment += 3600
    assert issuer.keys.find("r", "RS256")
    issuer.moment += 1
    with pytest.raises(Unavailable):
        issuer.keys.find("r", "RS256")


def test_a_flood_of_unknown_keys_is_one_fetch() -> None:
    """A thousand unknown keys cause one fetch a minute; known keys cause none within ten minutes (C3)."""
    issuer = Issuer()
    issuer.keys.refresh()
    issuer.moment += 61
    for number in range(1000):
        assert issuer.keys.find(f"k{number}", "RS256") == []
        issuer.turn()
    assert issuer.fetches == 2
    issuer.moment += 60
    issuer.turn()
    assert issuer.fetches == 3  # for the unknown keys since the last fetch
    issuer.moment += 599
    issuer.keys.find("r", "RS256")
    issuer.turn()
    assert issuer.fetches == 3
    issuer.moment += 1
    issuer.turn()
    assert issuer.fetches == 4


def test_a_key_that_was_changed_is_found_within_a_minute() -> None:
    """An unknown key is fetched; the old key is removed with its set."""
    issuer = Issuer()
    issuer.keys.refresh()
    issuer.content = json.dumps(
        {"keys": [RSAAlgorithm.to_jwk(STRANGER.public_key(), as_dict=True) | {"kid": "new"}]}
    ).encode()
    assert issuer.keys.find("new", "RS256") == []
    issuer.turn()
    assert issuer.keys.find("new", "RS256") == []
    issuer.moment += 60
    issuer.turn()
    assert issuer.keys.find("new", "RS256")
    assert issuer.keys.find("r", "RS256") == []


PRIVATE = [
    *(
        "127.0.0.1",
        "10.1.2.3",
        "192.168.1.1",
        "172.16.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
    ),
    *("240.0.0.1", "192.0.2.1", "255.255.255.255", "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "ff02::1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1", "2002:7f00:1::", "2001:db8::1"),
]
PUBLIC = ["1.1.1.1", "8.8.8.8", "2606:4700::1111", "64:ff9b::808:808"]


def test_only_public_addresses_are_connected_to() -> None:
    """A private address is refused in any notation (E1)."""
    assert all(ip_address(address.partition("%")[0]) for address in PRIVATE)
    assert [address for address in [*PRIVATE, *PUBLIC] if is_public(address)] == PUBLIC


def test_every_algorithm_that_may_be_allowed_has_its_keys() -> None:
    """The tables of key requirements and of known algorithms have the same algorithms."""
    assert set(jwks.KEY_REQUIREMENTS) == set(KNOWN)


class Pages(BaseHTTPRequestHandler):
    """The pages of an issuer's server, including hostile ones."""

    seen: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.seen.append(self.path)
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/keys")
            self.end_headers()
        elif self.path == "/slow-head":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            with suppress(OSError):
                for _ in range(1000):
                    time.sleep(0.05)
                    self.wfile.write(b"x")
        elif self.path == "/slow":
            self.send_response(200)
            self.end_headers()
            for _ in range(1000):
                time.sleep(0.05)
                self.wfile.write(b" ")
        else:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(published() if self.path == "/keys" else b" " * (MAX_SIZE + 100))

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests."""


@pytest.fixture
def issuer_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run an https server on this machine whose certificate is trusted and whose address counts as public."""
    pem = issue(tmp_path, "server", "CN=localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, pem.with_suffix(".key"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    trusting = ssl.create_default_context(cafile=str(pem))
    monkeypatch.setattr(jwks.ssl, "create_default_context", lambda: trusting)
    yield f"https://localhost:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_keys_are_fetched_by_https(issuer_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are fetched completely and within limits; a response that hangs, is too large or redirects is an error."""
    with pytest.raises(ValueError, match="not public"):
        fetch_https(f"{issuer_url}/keys")
    monkeypatch.setattr(jwks, "is_public", lambda _: True)
    assert fetch_https(f"{issuer_url}/keys") == published()
    Pages.seen.clear()
    with pytest.raises(ValueError, match="302"):
        fetch_https(f"{issuer_url}/moved")
    assert Pages.seen == ["/moved"]
    with pytest.raises(ValueError, match="larger"):
        fetch_https(f"{issuer_url}/large")
    monkeypatch.setattr(jwks, "TIMEOUT", 0.5)
    for path in ("/slow", "/slow-head"):
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            fetch_https(issuer_url + path)
        assert time.monotonic() - begun < 25
    with pytest.raises(ValueError, match="no user"):
        fetch_https("https://u:p@localhost/keys")


def test_both_strategies_at_once(storage: Storage, clock: ManualClock, file: Path) -> None:
    """With ``token,jwt``, the prefix selects the strategy; ``jwt`` accepts neither zq tokens nor ``X-Auth-Token``."""
    options = JwtOptions(issuer=OPTIONS.issuer, audience="zq", jwks=str(file))
    token = Tokens(storage.documents, clock).create(Grant(project="ours")).text

    def strategy(name: str) -> BearerStrategy:
        found = create_strategy(lambda: AuthOptions(strategy=name, jwt=options), storage.documents, clock)
        assert isinstance(found, BearerStrategy)
        return found

    both, alone = strategy("token,jwt"), strategy("jwt")
    assert both.authenticate({"HTTP_AUTHORIZATION": f"Bearer {token}"}, "").project == "ours"
    assert both.authenticate({"HTTP_X_AUTH_TOKEN": token}, "").project == "ours"
    for each in (both, alone):
        assert each.authenticate({"HTTP_AUTHORIZATION": f"Bearer {signed()}"}, "").project == "acme"
    for headers in ({"HTTP_AUTHORIZATION": f"Bearer {token}"}, {"HTTP_X_AUTH_TOKEN": signed()}):
        with pytest.raises(NotAuthenticated):
            alone.authenticate(headers, "")
