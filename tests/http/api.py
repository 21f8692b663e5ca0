# SPDX-License-Identifier: Apache-2.0
"""A test client for one tenant, which checks every response against the rules of contract 1.4 and 1.8."""

import json
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit
from uuid import uuid4

from webtest import TestApp, TestResponse

CLIENT = "30387f00-39a0-11e2-be4a-a8d15f34bae2"
OTHER_CLIENT = "79ed56f8-2519-11ef-9b1c-93f1d8f4a2c0"
PATCH_TYPE = "application/openstack-messaging-v2.0-json-patch"
RESERVED = {
    "_max_messages_post_size": 262144,
    "_default_message_ttl": 3600,
    "_default_message_delay": 0,
    "_dead_letter_queue": None,
    "_dead_letter_queue_messages_ttl": None,
    "_max_claim_count": None,
    "_enable_encrypt_messages": False,
}
"""Metadata in the response for a queue without metadata of its own (6.1)."""

TOPIC_RESERVED = {key: RESERVED[key] for key in list(RESERVED)[:3]}
"""Metadata in the response for a topic without metadata of its own (13)."""


class Kind(NamedTuple):
    """Queues or topics, for tests of behaviour that both share."""

    word: str
    shown: dict[str, Any]

    @property
    def path(self) -> str:
        """Return the path of the listing."""
        return f"/v2/{self.word}s"


KINDS = [Kind("queue", RESERVED), Kind("topic", TOPIC_RESERVED)]
_REQUEST_ID = re.compile(r"req-[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_TERSE = ("404 Not Found", "405 Method Not Allowed", "Internal server error")
"""Titles of errors that may have no description."""

Headers = Mapping[str, str | None]
NO_HEADERS: Headers = MappingProxyType({})


class Api:
    """A test client with a client id and a project, which checks the status of each response.

    ``project_suffix`` ends every project id, so that tests can share a store. ``environ`` is added to the WSGI
    environment.
    """

    def __init__(
        self,
        app: Callable[..., Any],
        project_suffix: str = "",
        project: str = "acme",
        client: str = CLIENT,
        lint: bool = True,
        **environ: Any,
    ) -> None:
        self.app = app
        self.project = project + project_suffix
        self._realm = project_suffix
        self._web = TestApp(app, extra_environ=environ, lint=lint)
        self._headers = {"Client-ID": client, "X-Project-ID": self.project}

    def tenant(self, project: str = "acme", client: str = CLIENT) -> "Api":
        """Return a client of the same app for another project or client id."""
        return Api(self.app, self._realm, project, client)

    def fresh(self) -> "Api":
        """Return a client of the same app for a new, empty project, such as one for each row of a table."""
        return Api(self.app, f"-{uuid4().hex[:12]}")

    def mounted(self, at: str) -> "Api":
        """Return a client of the same app under a script name."""
        return Api(self.app, self._realm, SCRIPT_NAME=at)

    def unchecked(self, **environ: Any) -> "Api":
        """Return a client of the same app that also sends requests which a WSGI server must reject."""
        return Api(self.app, self._realm, lint=False, **environ)

    def call(
        self, method: str, path: str, status: int | None, body: Any = None, headers: Headers = NO_HEADERS
    ) -> TestResponse:
        """Send a request. Send ``bytes`` unchanged and other bodies as JSON; omit headers that are ``None``."""
        merged = {name: value for name, value in {**self._headers, **headers}.items() if value is not None}
        content = {} if body is None else {"body": body if isinstance(body, bytes) else json.dumps(body).encode()}
        response = self._web.request(path, method=method, headers=merged, expect_errors=True, **content)
        said = f"{method} {path[:200]} -> {response.status} {response.body[:300]!r}"
        assert status is None or response.status_int == status, f"{said}, expected {status}"
        obeys_the_common_rules(response, said)
        return response

    def get(self, path: str, status: int, headers: Headers = NO_HEADERS) -> TestResponse:
        return self.call("GET", path, status, headers=headers)

    def put(self, path: str, status: int, body: Any = None, headers: Headers = NO_HEADERS) -> TestResponse:
        return self.call("PUT", path, status, body, headers)

    def post(self, path: str, status: int, body: Any = None, headers: Headers = NO_HEADERS) -> TestResponse:
        return self.call("POST", path, status, body, headers)

    def delete(self, path: str, status: int, headers: Headers = NO_HEADERS) -> TestResponse:
        return self.call("DELETE", path, status, headers=headers)

    def patch(self, path: str, status: int, body: Any = None, headers: Headers = NO_HEADERS) -> TestResponse:
        """Send a PATCH request with the media type that patches of a queue require."""
        return self.call("PATCH", path, status, body, {"Content-Type": PATCH_TYPE, **headers})

    def send(self, queue: str, *bodies: Any, **fields: Any) -> list[str]:
        """Post one message per body and return the ids of the messages."""
        posted = self.post(
            f"/v2/queues/{queue}/messages", 201, {"messages": [{"body": body, **fields} for body in bodies]}
        )
        return [href.rsplit("/", 1)[1] for href in posted.json["resources"]]

    def seen(self, queue: str, query: str = "echo=true&limit=20") -> list[Any]:
        """Return the bodies of the messages in a listing."""
        return [message["body"] for message in self.get(f"/v2/queues/{queue}/messages?{query}", 200).json["messages"]]

    def claim(self, queue: str, limit: int = 10, **terms: int) -> tuple[str, list[Any]]:
        """Claim at least one message. Return the path of the claim and the messages."""
        made = self.post(f"/v2/queues/{queue}/claims?limit={limit}", 201, terms)
        return made.headers["Location"], made.json["messages"]

    def queues(self) -> list[str]:
        """Return the names of the project's queues (at most 20)."""
        return self.names(KINDS[0])

    def names(self, kind: Kind) -> list[str]:
        """Return the names of the project's queues or topics (at most 20)."""
        return [thing["name"] for thing in self.get(f"{kind.path}?limit=20", 200).json[f"{kind.word}s"]]

    def pages(self, path: str, key: str) -> list[list[Any]]:
        """Follow the next links until a page is empty, as clients do. Return all pages including the empty one."""
        pages: list[list[Any]] = []
        while not pages or pages[-1]:
            assert len(pages) < 100, "the loop of 1.9 does not end"
            page = self.get(path, 200).json
            pages.append(page[key])
            assert len(page["links"]) == (1 if page[key] else 0)
            path = page["links"][0]["href"] if page[key] else path
        return pages


def obeys_the_common_rules(response: TestResponse, said: str) -> None:
    """Assert the rules of contract 1.4 and 1.8: request id, media type, and form of an error."""
    assert _REQUEST_ID.fullmatch(response.headers.get("X-OpenStack-Request-ID", "")), said
    assert response.headers.get("Location", "/v2/").startswith("/v2/"), said
    if response.status_int == 204:
        assert response.body == b"", said
    if response.status_int < 400 or response.status_int == 406:
        return
    assert "Location" not in response.headers or response.headers["X-Zq-Error"] == "SubscriptionExists", said
    if response.body:
        assert response.headers["Content-Type"] == "application/json", said
        assert "accept" in response.headers.get("Vary", "").lower(), said
        error = response.json
        limited = {"limit"} if response.status_int in (429, 503) else set()
        assert error.keys() <= {"title", "description"} | limited, said
        assert isinstance(error["title"], str), said
        assert error.get("description") or error["title"] in _TERSE, said


def query_of(href: str) -> dict[str, str]:
    """Return the query parameters of a link; fail if a name repeats."""
    pairs = parse_qsl(urlsplit(href).query, keep_blank_values=True)
    assert len(dict(pairs)) == len(pairs), href
    return dict(pairs)
