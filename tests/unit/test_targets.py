# SPDX-License-Identifier: Apache-2.0
"""Addresses to which zq sends requests (criterion E1): checks at subscription, at the lookup, and at the socket."""

import asyncio
import ipaddress
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from tests.sink import Sink
from zq.auth import jwks
from zq.errors import Invalid
from zq.serving.settings import load
from zq.subscriptions.delivery.options import MailOptions
from zq.subscriptions.delivery.retries import Outcome
from zq.subscriptions.delivery.running import create_target_policy
from zq.subscriptions.delivery.senders import CheckingResolver, Senders, make_socket_factory
from zq.subscriptions.delivery.targets import AddressCheck, Forbidden, TargetPolicy
from zq.subscriptions.model import Subscription
from zq.subscriptions.settings import SECTION

PUBLIC = "93.184.216.34"
LOOPBACK = TargetPolicy(networks=(ipaddress.ip_network("127.0.0.0/8"),))
INSIDE = [
    "127.0.0.1", "127.255.255.254", "10.1.2.3", "172.16.0.1", "192.168.1.1", "0.0.0.0", "0.1.2.3", "169.254.169.254",
    "100.64.0.1", "100.127.255.254", "192.0.0.1", "192.0.2.1", "198.51.100.1", "203.0.113.1", "198.18.0.1",
    "192.88.99.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
    "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "ff02::1", "2001:db8::1", "fec0::1", "100::1",
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1",
    "2002:7f00:1::", "2002:a9fe:a9fe::1", "2001:0:5db8:d822::80ff:fffe", "2001:0:7f00:1::a247:27dd", "2001:10::1",
    "", "a", "127.1",
]  # fmt: skip
OUTSIDE = [PUBLIC, "8.8.8.8", "100.63.255.255", "100.128.0.0", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
# Spellings that a resolver or a browser takes for an address of this machine.
DISGUISED = [
    "2130706433", "0x7f000001", "017700000001", "0177.0.0.1", "0x7f.0.0.1", "127.1", "127.0.1", "0", "[::1]",
    "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "169.254.169.254", "localhost",
    "\uff11\uff12\uff17.0.0.1",
]  # fmt: skip


class Names:
    """A resolver for tests: each name has a list of answers, the last of which stays; literals resolve as usual."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: dict[str, list[list[str]]] = {}
        self.asked: list[str] = []
        real = socket.getaddrinfo

        def ask(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
            name = host.decode() if isinstance(host, bytes) else host
            if name not in self.answers:
                return real(host, port, *args, **kwargs)
            self.asked.append(name)
            left = self.answers[name]
            found = left.pop(0) if len(left) > 1 else left[0]
            return [
                (socket.AF_INET6 if ":" in each else socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port))
                for each in found
            ]

        monkeypatch.setattr(socket, "getaddrinfo", ask)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    return Names(monkeypatch)


@pytest.fixture
def sink() -> Iterator[Sink]:
    with Sink() as started:
        yield started


def post(url: str, policy: TargetPolicy) -> Outcome:
    """Make one delivery with the sender of delivery workers."""

    async def attempt() -> Outcome:
        senders = Senders(policy, MailOptions(), "zq")
        try:
            return await senders.post(Subscription("a" * 32, url, 60, 0.0), "id", b'{"body": 1}', [], 1)
        finally:
            await senders.close()

    return asyncio.run(attempt())


def test_only_public_addresses_are_allowed() -> None:
    assert [address for address in [*INSIDE, *OUTSIDE] if TargetPolicy().allows(address, 80)] == OUTSIDE


# The IANA special-purpose registries, address space that is not unicast, and metadata services of clouds.
REGISTRIES = [
    "0.0.0.0/8", "0.0.0.0/32", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
    "192.0.0.0/24", "192.0.0.0/29", "192.0.0.8/32", "192.0.0.9/32", "192.0.0.10/32", "192.0.0.170/32", "192.0.0.171/32",
    "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.88.99.2/32", "192.168.0.0/16",
    "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
    "255.255.255.255/32", "::1/128", "::/128", "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/23", "2001::/32",
    "2001:1::1/128", "2001:1::2/128", "2001:1::3/128", "2001:2::/48", "2001:3::/32", "2001:4:112::/48", "2001:10::/28",
    "2001:20::/28", "2001:30::/28", "2001:db8::/32", "2620:4f:8000::/48", "3fff::/20", "5f00::/16", "fc00::/7",
    "fe80::/10", "fec0::/10", "ff00::/8", "4000::/3", "::8.8.8.8/128",
    "169.254.169.254/32", "169.254.170.2/32", "168.63.129.16/32", "192.0.0.192/32", "100.100.100.200/32",
    "fd00:ec2::254/128", "fd20:ce::254/128", "fd00:42::42/128",
]  # fmt: skip


@pytest.mark.parametrize("registered", REGISTRIES)
def test_no_address_of_the_special_purpose_registries_is_public(registered: str) -> None:
    """The first and last address of each block are refused, also in IPv6 forms, for webhooks and for key sets."""
    block = ipaddress.ip_network(registered)
    for address in (block[0], block[-1]):
        forms = [str(address)]
        if isinstance(address, ipaddress.IPv4Address):
            number = int(address)
            forms += [f"::ffff:{address}", f"64:ff9b::{address}", f"2002:{number >> 16:x}:{number & 0xFFFF:x}::1"]
        assert not any(map(TargetPolicy().allows, forms, [443] * 4)), forms
        assert not any(map(jwks.is_public, forms)), forms


def test_the_neighbours_of_the_registries_are_public() -> None:
    neighbours = [
        *("1.0.0.0", "9.255.255.255", "11.0.0.0", "168.63.129.15", "168.63.129.17", "191.255.255.255", "192.0.1.0"),
        *("192.31.195.255", "192.31.197.0", "192.88.98.255", "198.17.255.255", "198.20.0.0", "223.255.255.255"),
        *("2001:200::1", "2620:4f:8001::1", "3ffe:ffff::1", "2606:4700::1111", "::ffff:8.8.8.8", "2002:808:808::1"),
    ]
    assert [each for each in neighbours if TargetPolicy().allows(each, 443) and jwks.is_public(each)] == neighbours


def test_a_disguised_address_is_refused_at_subscription_and_at_the_socket(sink: Sink) -> None:
    """No request reaches a server that listens at the address."""
    urls = [f"http://{host}:{sink.url.rpartition(':')[2]}/" for host in DISGUISED]
    for url in urls:
        with pytest.raises(Invalid, match="address is not allowed"):
            AddressCheck(TargetPolicy())(url)
    outcomes = {url: post(url, TargetPolicy()) for url in urls}
    assert {url: (each.delivered, each.status) for url, each in outcomes.items()} == dict.fromkeys(urls, (False, 0))
    assert sink.came("/") == []


@pytest.mark.parametrize(
    ("port", "good"),
    [("", True), (":80", True), (":443", True), (":1024", True), (":22", False), (":25", False), (":26", True)],
)
def test_ports_of_other_services_are_refused(port: str, good: bool) -> None:
    """Ports from 1024 on and those that the operator adds are allowed."""
    judge, url = AddressCheck(TargetPolicy(ports=(26,))), f"http://{PUBLIC}{port}/"
    if good:
        judge(url)
        return
    with pytest.raises(Invalid, match="The port in the field subscriber must be"):
        judge(url)
    assert post(url, TargetPolicy()).is_final


@pytest.mark.parametrize("also", ["10.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_all_addresses_of_a_name_must_be_public(names: Names, also: str) -> None:
    names.answers["two.test"] = [[PUBLIC, also]]
    with pytest.raises(Invalid, match=r"two\.test"):
        AddressCheck(TargetPolicy())("https://two.test/")
    with pytest.raises(Forbidden):
        asyncio.run(CheckingResolver(TargetPolicy()).resolve("two.test", 443))
    assert post("http://two.test/", TargetPolicy()).why == "the address is not allowed"


def test_a_name_is_checked_again_at_delivery(names: Names, sink: Sink) -> None:
    """The name resolves to a public address at subscription, and to this machine at delivery."""
    url = sink.url.replace("127.0.0.1", "rebound.test") + "/"
    names.answers["rebound.test"] = [[PUBLIC], ["127.0.0.1"]]
    AddressCheck(TargetPolicy())(url)
    assert post(url, TargetPolicy()).why == "the address is not allowed"
    assert sink.came("/") == []


def test_a_connection_uses_the_checked_address(names: Names, sink: Sink) -> None:
    """There is one lookup, so a later change of the name has no effect; the Host header contains the name."""
    names.answers["swift.test"] = [["127.0.0.1"], ["10.255.255.1"]]
    assert post(sink.url.replace("127.0.0.1", "swift.test") + "/", LOOPBACK).delivered
    assert names.asked == ["swift.test"]
    assert sink.came("/")[0].headers["Host"].startswith("swift.test:")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_socket_checks_the_address_last(host: str, sink: Sink) -> None:
    """The socket checks the address again, whichever resolver returned it."""
    where = (host, int(sink.url.rpartition(":")[2]))
    info = (socket.AF_INET, socket.SOCK_STREAM, 0, "", where)
    with pytest.raises(Forbidden):
        make_socket_factory(TargetPolicy())(info)
    if host == "127.0.0.1":
        make_socket_factory(LOOPBACK)(info).close()


def test_a_redirection_to_the_cloud_s_metadata_is_not_followed(sink: Sink) -> None:
    def redirect(handler: BaseHTTPRequestHandler) -> int:
        handler.send_response(302)
        handler.send_header("Location", "http://169.254.169.254/latest/meta-data/")
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return 0

    sink.answers["/"] = redirect
    outcome = post(f"{sink.url}/", LOOPBACK)
    assert (outcome.delivered, outcome.status, outcome.is_final) == (False, 302, True)


def test_a_proxy_of_the_environment_is_not_used(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert post(f"{sink.url}/", LOOPBACK).delivered


def test_nothing_is_sent_to_the_service_itself(monkeypatch: pytest.MonkeyPatch, sink: Sink) -> None:
    """The service's own public address is refused unless the operator allows its network."""
    port = int(sink.url.rpartition(":")[2])
    monkeypatch.setattr("zq.subscriptions.delivery.targets.is_public", lambda _address: True)
    assert TargetPolicy().allows("127.0.0.1", port)
    own = TargetPolicy(own=(port,))
    assert not own.allows("127.0.0.1", port)
    assert own.allows("127.0.0.1", port + 1)
    assert own.allows(PUBLIC, port), "That is another machine."
    assert TargetPolicy(networks=LOOPBACK.networks, own=(port,)).allows("127.0.0.1", port)
    assert post(f"{sink.url}/", own).why == "the address is not allowed"


@pytest.mark.parametrize("host", ["127.0.0.1", "[::ffff:127.0.0.1]", "store.test", "alias.test"])
def test_nothing_is_sent_to_the_store(host: str, names: Names, sink: Sink) -> None:
    """The store is refused by name and by address, although the network is allowed."""
    port = int(sink.url.rpartition(":")[2])
    names.answers |= {name: [["127.0.0.1"]] for name in ("store.test", "alias.test")}
    policy = TargetPolicy(LOOPBACK.networks, stores=(("store.test", port), ("127.0.0.1", port)))
    with pytest.raises(Invalid, match="address is not allowed"):
        AddressCheck(policy)(f"http://{host}:{port}/")
    assert not post(f"http://{host}:{port}/", policy).delivered
    assert sink.came("/") == []


@pytest.mark.parametrize(
    ("uri", "stores"),
    [
        ("redis://:secret@store.test/0", {("store.test", 6379)}),
        ("mongodb://u:p@a.test:27018,[2001:db8::1]/zq", {("a.test", 27018), ("2001:db8::1", 27017)}),
        ("rocksdb:/var/lib/zq", set()),
        ("unix:///run/redis.sock", set()),
    ],
)
def test_the_settings_include_own_ports_and_stores(
    uri: str, stores: set[tuple[str, int]], names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stores' names are also resolved to addresses."""
    for option, value in (("STORAGE__URI", uri), ("SERVER__PORT", "7777"), ("METRICS__PORT", "0")):
        monkeypatch.setenv(f"OS_{option}", value)
    names.answers |= {"store.test": [["192.0.2.7"]], "a.test": [["192.0.2.8"]]}
    options = load().of(SECTION)
    assert (set(options.stores), options.own) == (stores, (7777,))
    looked_up = {"store.test": "192.0.2.7", "a.test": "192.0.2.8"}
    assert set(create_target_policy(options).stores) == stores | {
        (looked_up[name], port) for name, port in stores if name in looked_up
    }


@pytest.mark.parametrize("host", ["nowhere.invalid", "127.0.0.1."])
def test_a_name_that_does_not_resolve_yet_may_subscribe(host: str) -> None:
    """The name is checked at delivery."""
    AddressCheck(TargetPolicy())(f"http://{host}/")
    assert not post(f"http://{host}/", TargetPolicy()).delivered


def test_a_name_server_that_does_not_respond_delays_only_its_own_names(
    monkeypatch: pytest.MonkeyPatch, sink: Sink
) -> None:
    """A subscription and a delivery succeed long before the hanging lookups of 40 deliveries end."""
    hanging, early = 180, 90
    real, ended = socket.getaddrinfo, threading.Event()

    def ask(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host not in ("hangs.test", b"hangs.test"):
            return real(host, *args, **kwargs)
        ended.wait(hanging)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    port = sink.url.rpartition(":")[2]

    async def attempt(senders: Senders, host: str) -> tuple[Outcome, float]:
        began = time.monotonic()
        one = Subscription("a" * 32, f"http://{host}:{port}/", 60, 0.0)
        return await senders.post(one, "id", b'{"body": 1}', [], 1), time.monotonic() - began

    async def attempts() -> list[tuple[Outcome, float]]:
        senders = Senders(LOOPBACK, MailOptions(), "zq")
        try:
            return await asyncio.gather(
                *(attempt(senders, "hangs.test") for _ in range(40)), attempt(senders, "localhost")
            )
        finally:
            await senders.close()

    try:
        began = time.monotonic()
        AddressCheck(LOOPBACK)(f"http://hangs.test:{port}/")
        assert time.monotonic() - began < early
        *hung, (outcome, took) = asyncio.run(attempts())
    finally:
        ended.set()
    assert outcome.delivered
    assert took < early
    assert {(each.delivered, each.is_final) for each, _ in hung} == {(False, False)}
    assert max(seconds for _, seconds in hung) < early
