# SPDX-License-Identifier: Apache-2.0
"""Listings for a credential whose scopes hide names: links do not reveal hidden names (tenancy 2)."""

from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.http.api import Api
from zq.auth.credentials import BearerStrategy
from zq.auth.tokens import Grant, Tokens, TokenVerifier
from zq.clock import ManualClock
from zq.core.markers import Markers
from zq.errors import InvalidParameter
from zq.model import QueueRef
from zq.storage.api import Storage

Compose = Callable[..., Api]
WALK = 4


@pytest.fixture
def guarded(compose: Compose, storage: Storage, clock: ManualClock) -> Api:
    """Return a client of a server with tokens that examines at most four names per page."""
    strategy = BearerStrategy(TokenVerifier(storage.documents, clock), bare=True)
    return compose(app={"strategy": strategy}, max_metadata_walk=WALK)


def headers(guarded: Api, storage: Storage, clock: ManualClock, *scopes: str) -> dict[str, str]:
    grant = Grant(project=guarded.project, scopes=scopes or None)
    return {"Authorization": f"Bearer {Tokens(storage.documents, clock).create(grant).text}"}


@pytest.mark.parametrize("kind", ["queues", "topics"])
def test_a_link_names_nothing_that_is_hidden(guarded: Api, storage: Storage, clock: ManualClock, kind: str) -> None:
    """Each page examines a limited number of names, all visible names appear, and no response has a hidden name."""
    everything = headers(guarded, storage, clock)
    hidden = [f"{letter}-hidden-{number:02}" for letter in "atz" for number in range(6)]
    for name in (*hidden, "seen.1", "seen.2"):
        guarded.put(f"/v2/{kind}/{name}", 201, headers=everything)
    if kind == "queues":
        storage.queues.create(QueueRef(guarded.project, "a-hidden-02".ljust(80, "x")), b"{}")
    narrow = headers(guarded, storage, clock, f"observe:{kind[:-1]}/seen.*")
    path, found, markers = f"/v2/{kind}?limit=10", [], []
    while path:
        page = guarded.get(path, 200, narrow)
        assert "hidden" not in page.text
        found += [each["name"] for each in page.json[kind]]
        path = page.json["links"][0]["href"] if page.json["links"] else ""
        markers += parse_qs(urlsplit(path).query).get("marker", [])
        assert len(markers) <= len(hidden)
    assert found == ["seen.1", "seen.2"]
    sealed = [marker for marker in markers if marker.startswith("~")]
    assert len(sealed) >= 20 // WALK - 1
    assert len({len(marker) for marker in sealed}) == 1
    refused = guarded.get(f"/v2/{kind}?marker={sealed[0][:-4]}AAAA", 400, narrow)
    assert "is not valid for this listing" in refused.text


@pytest.mark.parametrize("kind", ["stages", "fences", "commits"])
def test_listings_of_jobs_name_nothing_that_is_hidden(
    guarded: Api, storage: Storage, clock: ManualClock, kind: str
) -> None:
    """This holds for names of any length; each page examines a limited number of them."""
    everything = headers(guarded, storage, clock)
    hidden = [f"{letter * 120}-{number}" for letter in "at" for number in range(6)]
    for name in (*hidden, "seen.1", "seen.2"):
        if kind == "stages":
            body = {"messages": [{"body": 1}]}
            guarded.call("POST", f"/v2/queues/out/messages?stage={name}", 202, body, everything)
        elif kind == "fences":
            guarded.call("POST", f"/v2/fences/{name}", 200, headers=everything)
        else:
            guarded.call("POST", "/v2/commits", 200, {"producer": name, "batch": 1}, everything)
    narrow = headers(guarded, storage, clock, "observe:work/seen.*", "observe+produce:queue/**")
    path, found, markers = f"/v2/{kind}?limit=10", [], []
    while path:
        page = guarded.get(path, 200, narrow)
        assert not any(name in page.text for name in hidden)
        found += [each.get("name") or each["producer"] for each in page.json[kind]]
        path = page.json["links"][0]["href"] if page.json["links"] else ""
        markers += parse_qs(urlsplit(path).query).get("marker", [])
        assert len(markers) <= len(hidden)
    assert found == ["seen.1", "seen.2"]
    sealed = [marker for marker in markers if marker.startswith("~")]
    assert len(sealed) >= len(hidden) // WALK - 1
    assert len({len(marker) for marker in sealed}) == 1
    other = "fences" if kind == "stages" else "stages"
    assert "is not valid for this listing" in guarded.get(f"/v2/{other}?marker={sealed[0]}", 400, narrow).text


@pytest.mark.every_store
def test_a_marker_is_opened_by_every_server(storage: Storage, clock: ManualClock) -> None:
    """A marker opens only in its listing. A text that is not such a marker counts as a name."""
    one, other = (Markers(storage.documents, clock) for _ in range(2))
    for name in ("a", "x" * 64):
        marker = one.seal("queue acme", name)
        assert other.open("queue acme", marker) == name
        for about in ("queue acme2", "topic acme"):
            with pytest.raises(InvalidParameter):
                other.open(about, marker)
    assert one.open("queue acme", "jobs") == "jobs"
    for wrong in ("~", "~é", "~" + "A" * 107, "~!!"):
        with pytest.raises(InvalidParameter):
            one.open("queue acme", wrong)
