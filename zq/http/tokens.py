# SPDX-License-Identifier: Apache-2.0
"""HTTP resources for tokens (tenancy contract, section 5) and pre-signed URLs (contract section 10).

A token's secret is returned only once, when the token is created. A new token never has more rights than the credential
that creates it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import falcon
from msgspec import UNSET
from msgspec.structs import astuple

from zq import __version__, wire
from zq.auth.policy import RULES
from zq.auth.signatures import METHODS, PATHS, Signatures, format_time, make_scope, parse_time
from zq.auth.tokens import DEFAULT_DAYS, FORM, Grant, NewToken, StoredToken, Token, Tokens
from zq.errors import Invalid, InvalidBody, InvalidParameter, NotAuthorized
from zq.http import query
from zq.http.context import Request
from zq.http.features import Page
from zq.http.tenant import Audience
from zq.model import QueueRef, Seconds, limits
from zq.model.allowance import Allowance
from zq.model.identity import ADMIN, MEMBER, Identity
from zq.model.scopes import Kind, Verb, parse, scopes_exceed
from zq.wire import encoding
from zq.wire import tokens as shapes
from zq.wire.tokens import MAX_ROLES, MAX_TEXT, ROLE, Share, ShareTerms, TokenTerms, share_terms

# Maximum number of tokens per page.
MAX_PAGE: Final = 100
EXCEEDS_MAKER: Final = "A token must not exceed the rights of the credential that creates it."
# Default validity of a signature in seconds.
DEFAULT_VALIDITY: Final = 86400
EXCEEDS_SIGNER: Final = "A signed URL must not exceed the rights of the credential that signs it."


class _TokenResource:
    """Base class of resources for the project's tokens. The caller must have rights to manage the whole project."""

    path = "/v2/tokens"

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def _id(self, token_id: str) -> str:
        if token_id.startswith("zq_"):
            raise Invalid("Refer to a token by its id, the ten characters after zq_.")
        return token_id

    def _caller(self, req: Request) -> Identity:
        identity: Identity = req.context.identity
        scopes = parse(identity.scopes)
        if not identity.credential or not (scopes is None or scopes.allow_everywhere(Verb.MANAGE)):
            raise req.context.allowance.refusal(type(self).policy[req.method])  # type: ignore[attr-defined]
        return identity

    def _project(self, req: Request) -> str | None:
        return self._caller(req).project

    def _grant(self, req: Request, terms: TokenTerms) -> Grant:
        maker = self._caller(req)
        own = _grantable_roles(maker)
        roles = _roles(terms.roles) or sorted(own)
        if not own.issuperset(roles) or scopes_exceed(parse(terms.scopes), parse(maker.scopes)):
            raise NotAuthorized(EXCEEDS_MAKER)
        return _grant(terms, maker.project, roles=roles, user=maker.user, by=maker.credential, expires=maker.expires)

    def _reject_excess(self, terms: Grant | StoredToken, maker: Identity) -> None:
        if _exceeds(terms, maker):
            raise NotAuthorized(EXCEEDS_MAKER)


class _AdminTokenResource(_TokenResource):
    """Base class of resources with which an administrator manages the tokens of any project.

    The query parameter ``project`` names the project.
    """

    path = "/v2/admin/tokens"
    audience = Audience.OPERATOR

    def _project(self, req: Request) -> str | None:
        project = query.text(req, "project")
        return limits.project_id(project) if project else None

    def _grant(self, req: Request, terms: TokenTerms) -> Grant:
        project = self._project(req)
        if project is None:
            raise InvalidParameter("project must name the project of the token.")
        maker: Identity = req.context.identity
        more = {"user": terms.user, "by": maker.credential, "expires": maker.expires}
        grant = _grant(terms, project, roles=_roles(terms.roles) or [MEMBER], **more)
        self._reject_excess(grant, maker)
        return grant

    def _reject_excess(self, terms: Grant | StoredToken, maker: Identity) -> None:
        if maker.scopes is not None and (terms.project != maker.project or _exceeds(terms, maker)):
            raise NotAuthorized(EXCEEDS_MAKER)


class _TokenCollection(_TokenResource):
    def on_get(self, req: Request, resp: falcon.Response) -> None:
        project = self._project(req)
        limit = limits.check_range("limit", query.integer(req, "limit") or limits.DEFAULT_PAGE, 1, MAX_PAGE)
        page = self._tokens.list(project or "", query.text(req, "marker"), limit)
        given = {"limit": query.integer(req, "limit"), "project": query.text(req, "project")}
        items, link = [_document(token) for token in page.items], query.next_page_query(page.next, **given)
        resp.data = encoding.page("tokens", items, self.path, link)

    def on_post(self, req: Request, resp: falcon.Response) -> None:
        grant = self._grant(req, shapes.token_terms(query.body(req)))
        made = self._tokens.create(grant)
        req.context.made = made.token.id
        _show_once(resp, self.path, made)


class _TokenItem(_TokenResource):
    def on_get(self, req: Request, resp: falcon.Response, token: str) -> None:
        resp.data = wire.encode(_document(self._tokens.get(self._id(token), self._project(req))))

    def on_delete(self, req: Request, resp: falcon.Response, token: str) -> None:
        self._tokens.revoke(self._id(token), self._project(req))
        resp.status = falcon.HTTP_204


class _TokenRotation(_TokenResource):
    """Base class of resources that rotate a token. The old token expires within a day."""

    def on_post(self, req: Request, resp: falcon.Response, token: str) -> None:
        project, maker = self._project(req), req.context.identity
        old = self._tokens.get(self._id(token), project).stored
        self._reject_excess(old, maker)
        made = self._tokens.rotate(token, project, by=maker.credential, expires=maker.expires)
        req.context.why = f"Its replacement is {made.token.id}."
        _show_once(resp, self.path, made)


class WhoAmI:
    """``/v2/whoami``: the caller's credential without its secret."""

    policy = {"GET": "identity:get"}

    def on_get(self, req: Request, resp: falcon.Response) -> None:
        identity: Identity = req.context.identity
        shown = shapes.Identity(
            project=identity.project,
            user=identity.user,
            roles=sorted(identity.roles),
            scopes=None if identity.scopes is None else list(identity.scopes),
            credential=identity.credential,
            expires=None if identity.expires is None else encoding.timestamp(identity.expires),
        )
        resp.data = wire.encode(shown)


class Me:
    """``/v2/me``: the caller's identity and permitted operations, and properties of the server.

    The response lists each policy rule that the caller satisfies for at least one object.
    """

    policy = {"GET": "identity:get"}

    def __init__(self, auth: str, page: Page | None) -> None:
        """Initialize the resource.

        Args:
            auth: Name of the authentication strategy, or "" if the server does not authenticate callers.
            page: The web console, or ``None`` if the server has no console.
        """
        self._server: dict[str, Any] = {"auth": auth or "none", "console": page.version if page else None}

    def on_get(self, req: Request, resp: falcon.Response) -> None:
        allowance: Allowance = req.context.allowance
        identity = allowance.identity
        shown = shapes.Me(
            project=identity.project,
            projects=[identity.project] if identity.credential else None,
            roles=sorted(identity.roles),
            rules=[rule for rule in RULES if _allowed(allowance, rule)],
            admin=ADMIN in identity.roles,
            version=__version__,
            **self._server,
        )
        resp.data = wire.encode(shown)


def _allowed(allowance: Allowance, rule: str) -> bool:
    known, scopes = RULES[rule], allowance.scopes
    if not allowance.permits(rule):
        return False
    verb = known.verb or known.strongest
    if scopes is None or verb is None:
        return True
    if known.everywhere:
        return scopes.allow_everywhere(verb)
    word = rule.partition(":")[0].removesuffix("s")
    kinds = [Kind(word)] if word in (Kind.QUEUE, Kind.TOPIC) else list(Kind)
    return any(scopes.overlaps(verb, kind, "**") for kind in kinds)


class TokenCollection(_TokenCollection):
    """``/v2/tokens``: list and create tokens of the project."""

    policy = {"GET": "tokens:get_all", "POST": "tokens:create"}


class TokenItem(_TokenItem):
    """``/v2/tokens/{token}``: get or revoke a token."""

    policy = {"GET": "tokens:get", "DELETE": "tokens:delete"}


class TokenRotation(_TokenRotation):
    """``/v2/tokens/{token}/rotate``: replace a token."""

    policy = {"POST": "tokens:create"}


class AdminTokenCollection(_AdminTokenResource, _TokenCollection):
    """``/v2/admin/tokens``: list and create tokens of any project, and revoke JSON Web Tokens."""

    policy = {"GET": "admin:tokens", "POST": "admin:tokens", "DELETE": "admin:tokens"}

    def on_delete(self, req: Request, resp: falcon.Response) -> None:
        """Revoke a JSON Web Token by its id, which is the query parameter ``jti``."""
        self._tokens.deny(_check_token_id(query.text(req, "jti")))
        resp.status = falcon.HTTP_204


class AdminTokenItem(_AdminTokenResource, _TokenItem):
    """``/v2/admin/tokens/{token}``: get or revoke a token. DELETE also accepts the id of a JSON Web Token."""

    policy = {"GET": "admin:tokens", "DELETE": "admin:tokens"}

    def on_delete(self, req: Request, resp: falcon.Response, token: str) -> None:
        if not self._tokens.revoke(self._id(token), self._project(req)):
            self._tokens.deny(_check_token_id(token))
        resp.status = falcon.HTTP_204


class AdminTokenRotation(_AdminTokenResource, _TokenRotation):
    """``/v2/admin/tokens/{token}/rotate``: replace a token of any project."""

    policy = {"POST": "admin:tokens"}


ROUTES: Final[Mapping[str, type[_TokenResource]]] = {
    "/v2/tokens": TokenCollection,
    "/v2/tokens/{token}": TokenItem,
    "/v2/tokens/{token}/rotate": TokenRotation,
    "/v2/admin/tokens": AdminTokenCollection,
    "/v2/admin/tokens/{token}": AdminTokenItem,
    "/v2/admin/tokens/{token}/rotate": AdminTokenRotation,
}


def _grant(terms: TokenTerms, project: str, roles: Sequence[str], **more: Any) -> Grant:
    days = DEFAULT_DAYS if terms.days is UNSET else limits.check_range("days", terms.days, 1, limits.MAX_REMEMBERED)
    for field in ("name", "user"):
        text = getattr(terms, field)
        if len(text) > MAX_TEXT or not text.isprintable():
            raise Invalid(f"{field} must be at most {MAX_TEXT} printable characters.")
    parse(terms.scopes)
    return Grant(project=project, name=terms.name, scopes=terms.scopes or None, days=days, roles=roles, **more)


def _check_token_id(token_id: str) -> str:
    """Return ``token_id`` if it is a valid id of a JSON Web Token. Raises ``Invalid`` if not.

    A zq token with its secret is rejected, because URLs must not contain secrets.
    """
    if not 1 <= len(token_id) <= MAX_TEXT or not token_id.isprintable():
        raise Invalid(f"jti, the id of a JSON Web Token, must be 1 to {MAX_TEXT} printable characters.")
    if FORM.fullmatch(token_id):
        raise Invalid("Refer to a token by its id, the ten characters after zq_.")
    return token_id


def _roles(names: Sequence[str]) -> list[str]:
    roles = [role.lower() for role in names]
    if len(roles) > MAX_ROLES or not all(map(ROLE.fullmatch, roles)):
        raise Invalid(f"roles must be at most {MAX_ROLES} words of 1 to 64 characters from a-z 0-9 _ . : and -.")
    return roles


def _grantable_roles(maker: Identity) -> frozenset[str]:
    """Return the roles that ``maker`` can grant: all its roles except the administrator role.

    If no role remains, return the member role.
    """
    return maker.roles - {ADMIN} or frozenset({MEMBER})


def _exceeds(terms: Grant | StoredToken, maker: Identity) -> bool:
    other = terms.user not in ("", maker.user) or not _grantable_roles(maker) | maker.roles >= {*terms.roles}
    return other or scopes_exceed(parse(terms.scopes), parse(maker.scopes))


def _document(token: Token) -> shapes.Token:
    stored = token.stored
    return shapes.Token(
        id=token.id,
        project=stored.project,
        user=stored.user,
        name=stored.name,
        roles=list(stored.roles),
        scopes=None if stored.scopes is None else list(stored.scopes),
        created=encoding.timestamp(stored.created),
        expires=encoding.timestamp(stored.expires),
        by=stored.by,
        last_used=None if token.used is None else encoding.timestamp(token.used),
    )


def _show_once(resp: falcon.Response, path: str, made: NewToken) -> None:
    resp.status = falcon.HTTP_201
    resp.set_header("Location", f"{path}/{made.token.id}")
    resp.set_header("Cache-Control", "no-store")
    resp.data = wire.encode(shapes.MadeToken(*astuple(_document(made.token)), token=made.text))


class QueueShare:
    """``/v2/queues/{queue}/share``: sign a URL for a queue."""

    policy = {"POST": "queues:share"}

    def __init__(self, signatures: Signatures) -> None:
        self._signatures = signatures

    def on_post(self, req: Request, resp: falcon.Response, queue: str) -> None:
        terms = share_terms(query.body(req))
        paths = _check_names("paths", terms.paths, PATHS) or ["messages"]
        methods = _check_names("methods", terms.methods, METHODS) or ["GET"]
        identity: Identity = req.context.identity
        if scopes_exceed(parse([make_scope(queue, methods)]), parse(identity.scopes)):
            raise NotAuthorized(EXCEEDS_SIGNER)
        expires = self._expiry(terms, identity)
        resp.data = wire.encode(self._signed(req.context.queue, paths, methods, expires))

    def _expiry(self, terms: ShareTerms, identity: Identity) -> Seconds:
        """Return the expiry time: by default one day from now, or the latest allowed time if that is earlier."""
        now, max_seconds = self._signatures.clock.now(), self._signatures.options().max_seconds
        last = min(now + max_seconds, identity.expires or now + max_seconds)
        if terms.expires is None:
            return min(now + DEFAULT_VALIDITY, last)
        try:
            asked = parse_time(terms.expires)
        except ValueError as error:
            raise InvalidBody("expires must be an ISO 8601 date and time, such as 2030-01-01T00:00:00.") from error
        if not now < asked <= last:
            raise Invalid(f"expires must be between now and {format_time(last)}, not {format_time(asked)}.")
        return asked

    def _signed(self, queue: QueueRef, paths: list[str], methods: list[str], expires: Seconds) -> Share:
        whole = sorted(f"/v2/queues/{queue.name}/{path}" for path in paths)
        signature = self._signatures.sign(queue.project, whole, methods, expires)
        return Share(whole, sorted(methods), queue.project, format_time(expires), signature)


class ShareRevocation:
    """``/v2/share/revoke``: revoke all signed URLs of the project."""

    policy = {"POST": "share:revoke"}

    def __init__(self, signatures: Signatures) -> None:
        self._signatures = signatures

    def on_post(self, req: Request, resp: falcon.Response) -> None:
        self._signatures.revoke(req.context.project)
        resp.status = falcon.HTTP_204


def _check_names(name: str, given: list[str] | None, names: Any) -> list[str]:
    if unknown := set(given or ()) - set(names):
        raise Invalid(f"{name} may contain {', '.join(names)}, not {min(unknown)[:64]!r}.")
    return list(dict.fromkeys(given or ()))
