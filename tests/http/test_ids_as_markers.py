# SPDX-License-Identifier: Apache-2.0
"""A message's id as a marker: openstacksdk continues at the last id of a page and ignores the link."""

from typing import Any
from unittest.mock import Mock
from urllib.parse import urlencode

from openstack.message.v2.message import Message

from tests.http.api import Api

URL = "/v2/queues/jobs/messages"
EVERYTHING = "echo=true&include_claimed=true&include_delayed=true"


def page(api: Api, marker: str, limit: int = 20) -> list[object]:
    """Return the bodies of the page after a marker."""
    return api.seen("jobs", f"{EVERYTHING}&limit={limit}&marker={marker}")


def test_paging_by_the_last_id_sees_every_message_once(api: Api) -> None:
    """The SDK requests pages after the id of the last message until a page is empty."""
    api.send("jobs", *range(25))
    seen, marker = [], ""
    while found := api.get(f"{URL}?echo=true&limit=10{marker}", 200).json["messages"]:
        seen += [message["body"] for message in found]
        marker = "&marker=" + found[-1]["id"]
    assert seen == list(range(25))


def test_an_id_is_a_marker_whatever_has_become_of_its_message(api: Api) -> None:
    """An id of a claimed or delayed message is a marker. After an id that is unknown in the queue the page is empty."""
    ids = api.send("jobs", 0, 1, 2)
    api.claim("jobs", 1)
    assert page(api, ids[0]) == [1, 2]
    assert page(api, ids[0], 1) == [1]
    assert page(api, ids[2]) == []
    (foreign,) = api.send("others", 0)
    api.delete(f"{URL}?ids={ids[1]}", 204)
    for unknown in (foreign, ids[1], "f" * 32, "1" * 32, ids[0].upper(), ids[0][:31], ids[0] + "0"):
        assert page(api, unknown) == [], unknown


def test_another_projects_id_is_no_marker(api: Api) -> None:
    """The page does not reveal whether such a message exists."""
    api.send("jobs", 0, 1)
    (theirs,) = api.tenant("other").send("jobs", "theirs")
    assert page(api, theirs) == []


def test_the_sdk_itself_lists_them_all(api: Api) -> None:
    """openstacksdk's own paging sends its requests to the application."""
    api.send("jobs", *range(25))
    listed = Message.list(Session(api), queue_name="jobs", echo=True, project_id=api.project)
    assert [message.body for message in listed] == list(range(25))


class Session:
    """The part of a session that the SDK's listing uses."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def get(self, path: str, headers: dict[str, str], params: dict[str, Any]) -> Mock:
        answer = self._api.get(f"/v2{path}?{urlencode(params)}", 200, headers)
        return Mock(json=lambda: answer.json)
