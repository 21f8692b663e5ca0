# SPDX-License-Identifier: Apache-2.0
"""Callers with roles and scopes, for authorization tests, and an authentication strategy that trusts the tests."""

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

from tests.http.api import CLIENT, Api
from tests.http.test_streams import Reader
from zq.errors import NotAuthenticated
from zq.model.identity import Identity

TOKEN = "HTTP_X_AUTH_TOKEN"


class Impersonation:
    """An authentication strategy whose credentials are the strings that ``admit`` returns."""

    def __init__(self) -> None:
        self._identities: list[Identity] = []

    def admit(self, identity: Identity) -> str:
        self._identities.append(identity)
        return str(len(self._identities) - 1)

    def authenticate(self, env: Mapping[str, Any], _peer: str) -> Identity:
        if TOKEN not in env:
            raise NotAuthenticated(challenge='Bearer realm="zq"')
        return self._identities[int(env[TOKEN])]


class Scoped:
    """Callers of one app. The ids of their projects end in ``suffix``."""

    def __init__(self, compose: Callable[[dict[str, Any]], Any], suffix: str) -> None:
        """Build the app by ``compose``, which accepts the options of an app."""
        self._compose = compose
        self.broker: Any = None
        """The app's broker, if the code that built the app sets it."""
        self._suffix = suffix
        self.strategy = Impersonation()
        self.app = self.build()

    def build(self, **options: Any) -> Any:
        """Return an app on the same store."""
        return self._compose({"strategy": self.strategy, **options})

    def api(
        self, *scopes: str, project: str = "acme", app: Any = None, roles: frozenset[str] = frozenset({"member"})
    ) -> "Caller":
        """Return a caller with these scopes, or without scopes for the whole project."""
        token = self.strategy.admit(Identity(project + self._suffix, "u", roles, scopes or None, "test"))
        return Caller(app or self.app, self._suffix, project, token)

    def streamed(self, scopes: list[str], query: str, count: int) -> list[Any]:
        """Return the bodies of the first ``count`` messages of a stream."""
        reading = self.api(*scopes)
        with closing(Reader(reading, f"/v2/stream?{query}", x_auth_token=reading.token)) as reader:
            return reader.bodies(count)


class Caller(Api):
    """A client that sends a credential instead of a project."""

    def __init__(self, app: Any, suffix: str, project: str, token: str) -> None:
        super().__init__(app, suffix, project, CLIENT)
        self.token = token
        self._headers = {"Client-ID": CLIENT, "X-Auth-Token": token}
