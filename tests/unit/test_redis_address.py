# SPDX-License-Identifier: Apache-2.0
"""URIs of Redis stores: every form, and errors, which never contain a password."""

import pytest

from zq.errors import StartRefused
from zq.storage.redis.address import parse


def test_a_plain_server_with_everything_given():
    """The URI has a user, a password with special characters, host, port and database."""
    address = parse("redis://me:p%40ss%3A%2Fw@db.example:6380/3")
    assert (address.hosts, address.db) == ((("db.example", 6380),), 3)
    assert address.credentials == {"username": "me", "password": "p@ss:/w"}
    assert (address.master, address.cluster, address.tls) == ("", False, None)


@pytest.mark.parametrize(
    ("uri", "hosts", "db"),
    [
        ("redis://h", (("h", 6379),), 0),
        ("redis://h:1/", (("h", 1),), 0),
        ("redis://h:1?db=4", (("h", 1),), 4),
        ("redis://[::1]:7000/2", (("::1", 7000),), 2),
        ("redis://[::1]", (("::1", 6379),), 0),
        ("redis://:6380", (("localhost", 6380),), 0),
    ],
)
def test_short_forms(uri: str, hosts: tuple, db: int):
    """Omitted parts have Redis' usual defaults; ``db`` may be in the path or among the options."""
    address = parse(uri)
    assert (address.hosts, address.db) == (hosts, db)


def test_a_password_without_a_user():
    assert parse("redis://:secret@h").credentials == {"password": "secret"}


def test_a_socket():
    """The path is that of the socket, and the database is an option."""
    address = parse("unix:///run/redis/a%20b.sock?db=1")
    assert (address.path, address.db, address.hosts) == ("/run/redis/a b.sock", 1, ())
    assert address.name == "/run/redis/a b.sock"


def test_sentinels_as_zaqar_writes_them():
    """The URI has several hosts with the Sentinels' port, the master's name, and both kinds of credentials."""
    address = parse("redis://u:pw@s1,s2:26380/1?master=main&sentinel_password=other")
    assert address.hosts == (("s1", 26379), ("s2", 26380))
    assert (address.master, address.db) == ("main", 1)
    assert address.credentials == {"username": "u", "password": "pw"}
    assert address.sentinel_credentials == {"password": "other"}


def test_a_cluster():
    address = parse("redis://a:7000,b:7001?cluster=true")
    assert (address.cluster, address.hosts) == (True, (("a", 7000), ("b", 7001)))


def test_tls_options():
    """The options are passed to redis-py unchanged; without checks of certificates, names are not checked either."""
    tls = parse("rediss://h?ssl_ca_certs=/ca.pem&ssl_cert_reqs=required").tls
    assert tls == {"ssl_ca_certs": "/ca.pem", "ssl_cert_reqs": "required", "ssl_check_hostname": True}
    tls = parse("rediss://h?ssl_cert_reqs=none").tls
    assert tls == {"ssl_cert_reqs": "none", "ssl_check_hostname": False}


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("redis://:geheim@h?tineout=3&foo=1", "foo, tineout"),
        ("redis://:geheim@h?ssl_ca_certs=/x", "ssl_ca_certs"),
        ("redis://:geheim@h/abc", "database"),
        ("redis://:geheim@h?db=-1", "database"),
        ("redis://:geheim@h:port", "port"),
        ("redis://:geheim@h:70000", "port"),
        ("redis://:geheim@a,b", "several servers"),
        ("redis://:geheim@a,b/1?cluster=true", "other than 0"),
        ("redis://:geheim@a?cluster=maybe", "cluster"),
        ("redis://:geheim@a?cluster=true&master=m", "both master="),
        ("redis://:geheim@/1", "names no server"),
        ("redis://", "names no server"),
        ("unix://", "names no server"),
        ("rediss://:geheim@h?ssl_cert_reqs=perhaps", "ssl_cert_reqs"),
        ("redis://:geheim@h?garbage", "NAME=VALUE"),
        ("redis://:geheim@[::1", "is not valid"),
    ],
)
def test_nonsense_is_refused_with_a_sentence(uri: str, told: str):
    """The error names the problem and never contains the password."""
    with pytest.raises(StartRefused, match=told) as refusal:
        parse(uri)
    assert "geheim" not in str(refusal.value)
    assert str(refusal.value).endswith(".")
