# SPDX-License-Identifier: Apache-2.0
"""HTTP resources for the administration of access keys: ``/v2/admin/sqs-keys`` and below.

A secret is returned only when its key is created.
"""

from typing import Final

import falcon
import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import astuple

from zq import wire
from zq.errors import Invalid, InvalidParameter
from zq.http import query
from zq.http.context import Request
from zq.http.tenant import Audience
from zq.model import limits
from zq.sqs.keys import SqsKey, SqsKeys
from zq.sqs.operations import OPERATIONS
from zq.wire import encoding
from zq.wire.answers import DateTime, ProjectId
from zq.wire.encoding import timestamp

PATH: Final = "/v2/admin/sqs-keys"
# Maximum number of keys in a page.
MAX_PAGE: Final = 100
# Maximum lifetime of a key in days: ten years.
MAX_DAYS: Final = 3660


class KeyTerms(Struct):
    """The request body that creates a key.

    A key without ``actions`` permits all operations. A key without ``days`` never expires.
    """

    actions: list[str] | None = None
    days: int | UnsetType = UNSET
    plain: bool = False


class KeyChange(Struct):
    """The request body that disables or enables a key."""

    disabled: bool


class KeyAnswer(Struct):
    """An access key without its secret.

    Attributes:
        plain: Whether the secret is stored unencrypted.
    """

    id: str
    project: ProjectId
    actions: list[str] | None
    plain: bool
    disabled: bool
    created: DateTime
    expires: DateTime | None


class NewKeyAnswer(KeyAnswer, kw_only=True):
    """A new access key with its secret, which is returned only once."""

    secret: str


_terms: Final = msgspec.json.Decoder(KeyTerms)
_change: Final = msgspec.json.Decoder(KeyChange)


class _Keys:
    audience = Audience.OPERATOR
    audited_as = "sqs key", "key"

    def __init__(self, keys: SqsKeys) -> None:
        self._keys = keys


class SqsKeyCollection(_Keys):
    """The resource ``/v2/admin/sqs-keys``: the access keys of one project or of all projects."""

    policy = {"GET": "admin:sqs_keys", "POST": "admin:sqs_keys"}

    def on_get(self, req: Request, resp: falcon.Response) -> None:
        project = query.text(req, "project")
        limit = limits.check_range("limit", query.integer(req, "limit") or limits.DEFAULT_PAGE, 1, MAX_PAGE)
        page = self._keys.list(limits.project_id(project) if project else "", query.text(req, "marker"), limit)
        link = query.next_page_query(page.next, limit=query.integer(req, "limit"), project=project)
        resp.data = encoding.page("keys", [_format_key(key) for key in page.items], PATH, link)

    def on_post(self, req: Request, resp: falcon.Response) -> None:
        project = query.text(req, "project")
        if not project:
            raise InvalidParameter("project is missing: set it to the project of the new key.")
        raw = query.body(req)
        terms = wire.decode(_terms, raw) if raw else KeyTerms()
        days = None if terms.days is UNSET else limits.check_range("days", terms.days, 1, MAX_DAYS)
        made = self._keys.create(limits.project_id(project), _check_actions(terms.actions), days, terms.plain)
        req.context.made = made.key.id
        resp.status = falcon.HTTP_201
        resp.set_header("Location", f"{PATH}/{made.key.id}")
        resp.set_header("Cache-Control", "no-store")
        resp.data = wire.encode(NewKeyAnswer(*astuple(_format_key(made.key)), secret=made.secret))


class SqsKeyItem(_Keys):
    """The resource ``/v2/admin/sqs-keys/{key}``: an access key."""

    policy = dict.fromkeys(("GET", "PUT", "DELETE"), "admin:sqs_keys")

    def on_get(self, _req: Request, resp: falcon.Response, key: str) -> None:
        resp.data = wire.encode(_format_key(self._keys.get(key)))

    def on_put(self, req: Request, resp: falcon.Response, key: str) -> None:
        change = wire.decode(_change, query.body(req, required=True))
        resp.data = wire.encode(_format_key(self._keys.disable(key, change.disabled)))

    def on_delete(self, _req: Request, resp: falcon.Response, key: str) -> None:
        self._keys.delete(key)
        resp.status = falcon.HTTP_204


def _check_actions(actions: list[str] | None) -> list[str] | None:
    if actions is not None and (not actions or not OPERATIONS.keys() >= set(actions)):
        raise Invalid("actions must be a list of one or more operations, such as SendMessage, or null for all of them.")
    return actions


def _format_key(key: SqsKey) -> KeyAnswer:
    stored = key.stored
    return KeyAnswer(
        id=key.id,
        project=stored.project,
        actions=stored.actions,
        plain=bool(stored.secret),
        disabled=stored.disabled,
        created=timestamp(stored.created),
        expires=None if stored.expires is None else timestamp(stored.expires),
    )
