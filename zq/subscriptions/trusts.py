# SPDX-License-Identifier: Apache-2.0
"""Keystone trusts for subscribers with the schemes ``trust+http`` and ``trust+https`` (contract sections 9.2, 9.9).

With a trust, the caller delegates its roles in the project to the service user until the subscription expires. Each
delivery contains a token with all of these roles. By default, the server therefore sends tokens only over TLS and only
to services in Keystone's catalogue.
"""

import logging
import threading
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from cachetools import FIFOCache
from keystoneauth1 import loading
from keystoneauth1.exceptions import ClientException, HTTPClientError
from keystoneauth1.loading.session import Session
from keystonemiddleware.auth_token import AuthProtocol, ksm_exceptions
from oslo_config.cfg import ConfigOpts
from webob.exc import HTTPException

from zq.errors import Invalid, Unavailable
from zq.model import Seconds

LOG = logging.getLogger(__name__)
PREFIX: Final = "trust+"
# Section of the options of Keystone's middleware.
SECTION: Final = "keystone_authtoken"
# Maximum number of trusts whose tokens a process caches.
MAX_CACHED: Final = 1000
# Options that set the scope of the service user's token. They are unset for a trust token, whose scope is the trust.
SCOPES: Final = ("project_id", "project_name", "project_domain_id", "project_domain_name", "domain_id", "domain_name")


class Trusts:
    """A Keystone client that creates trusts and trust tokens as the user in ``[keystone_authtoken]``.

    Args:
        middleware: Validates the callers' tokens.
        options: The options of the middleware.
        http: Whether tokens may be sent without TLS.
        targets: URL prefixes that may receive tokens, in addition to the services in Keystone's catalogue.
    """

    def __init__(self, middleware: AuthProtocol, options: ConfigOpts, http: bool, targets: Iterable[str]) -> None:
        self._middleware = middleware
        self._options = options
        own = options[SECTION]
        self._session = Session().load_from_options(
            own.insecure, None, own.cafile, own.certfile, own.keyfile, timeout=own.http_connect_timeout
        )
        self._service = self._create_plugin()
        self._http = http
        self._targets = tuple(targets)
        self._lock = threading.Lock()
        self._plugins: FIFOCache[str, Any] = FIFOCache(MAX_CACHED)

    def create(self, token: str, subscriber: str, until: Seconds) -> str:
        if not token:
            raise Invalid("subscriber must not begin with trust+ unless X-Auth-Token contains a Keystone token.")
        try:
            caller = self._middleware.fetch_token(token)["token"]
            self._check(subscriber, _list_urls(caller.get("catalog") or []))
            session, service = self._session, self._service
            trust = {
                "trustor_user_id": caller["user"]["id"],
                "trustee_user_id": service.get_user_id(session),
                "project_id": caller["project"]["id"],
                "roles": [{"name": role["name"]} for role in caller["roles"]],
                "impersonation": True,
                "expires_at": datetime.fromtimestamp(until, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            }
            place = f"{self._identity(session, service)}/OS-TRUST/trusts"
            headers = {"X-Auth-Token": token}
            answer = session.post(place, json={"trust": trust}, headers=headers, authenticated=False)
            return str(answer.json()["trust"]["id"])
        except (HTTPClientError, ksm_exceptions.InvalidToken) as refusal:
            LOG.info("Keystone did not create a trust: %r", refusal)
            raise Invalid("subscriber cannot begin with trust+: Keystone creates no trust for this token.") from refusal
        except (ClientException, HTTPException) as error:
            raise Unavailable("Keystone is temporarily unavailable. Try again later.") from error

    def headers(self, subscriber: str, options: Mapping[str, Any]) -> Mapping[str, str]:
        """Return HTTP headers that contain a trust token. The token is cached until it is about to expire.

        Raises ``Invalid`` if there is no token, or if the subscriber may not receive it.
        """
        trust = options.get("trust_id")
        if not isinstance(trust, str) or not trust:
            raise Invalid("The subscription has no Keystone trust.")
        try:
            access = self._plugin(trust).get_access(self._session)
            self._check(subscriber, _list_urls(access.service_catalog.catalog))
            return {"X-Auth-Token": access.auth_token}
        except ClientException as error:
            raise Invalid(f"Keystone returned no token for the trust: {type(error).__name__}.") from error

    def _plugin(self, trust: str) -> Any:
        with self._lock:
            if trust not in self._plugins:
                self._plugins[trust] = self._create_plugin(trust_id=trust, **dict.fromkeys(SCOPES))
            return self._plugins[trust]

    def _create_plugin(self, **changes: str | None) -> Any:
        """Create the authentication plugin of the service user; ``changes`` replace options."""
        return loading.load_auth_from_conf_options(self._options, SECTION, **changes)

    def _identity(self, session: Any, service: Any) -> str:
        found = service.get_endpoint(session, service_type="identity", interface="internal", version=(3, 0))
        return str(found or service.auth_url).rstrip("/")

    def _check(self, subscriber: str, catalogue: Iterable[str]) -> None:
        url = subscriber.removeprefix(PREFIX)
        if not (self._http or url.startswith("https:")):
            raise Invalid(
                "subscriber must begin with trust+https:, because the server does not send tokens without TLS."
            )
        if not any(_is_below(place, url) for place in (*self._targets, *catalogue)):
            raise Invalid(
                "subscriber must be a service in Keystone's catalogue: the server sends tokens only to these services."
            )


def _list_urls(catalogue: Iterable[Mapping[str, Any]]) -> list[str]:
    return [str(each.get("url")) for service in catalogue for each in service.get("endpoints", ())]


def _is_below(place: str, url: str) -> bool:
    """Return whether ``url`` is at or below the prefix ``place``.

    Return False if the path of ``url`` contains ``.`` or ``..``.
    """
    ours, theirs = urlsplit(place), urlsplit(url)
    if (ours.scheme, ours.hostname, _port(ours)) != (theirs.scheme, theirs.hostname, _port(theirs)):
        return False
    steps = unquote(unquote(theirs.path)).replace("\\", "/").split("/")
    above = ours.path.rstrip("/")
    return ".." not in steps and "." not in steps and f"{theirs.path}/".startswith(f"{above}/")


def _port(parts: Any) -> int:
    return int(parts.port or (443 if parts.scheme == "https" else 80))
