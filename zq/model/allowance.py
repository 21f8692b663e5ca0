# SPDX-License-Identifier: Apache-2.0
"""The permissions of a request's caller, checked for each object that the request uses."""

from collections.abc import Callable
from typing import Final

from zq.errors import NotAuthorized
from zq.model.identity import Identity
from zq.model.scopes import Kind, Scopes, Verb, parse

# Returns whether the caller's roles permit a rule. Rules are named as in tenancy 4.
Policy = Callable[[str, Identity], bool]


class Allowance:
    """The permissions of one caller under a policy, limited by the scopes of its credential."""

    __slots__ = ("_policy", "identity", "known", "scopes")

    def __init__(self, policy: Policy, identity: Identity) -> None:
        self._policy = policy
        self.known: dict[str, bool] = {}
        """Cached results of ``permits`` by rule."""
        self.identity = identity
        self.scopes: Scopes | None = parse(identity.scopes) if identity.scopes else None

    def permits(self, rule: str) -> bool:
        """Return whether the caller's roles permit the policy rule. Cached."""
        known = self.known.get(rule)
        if known is None:
            self.known[rule] = known = self._policy(rule, self.identity)
        return known

    def authorize(self, rule: str, verb: Verb, kind: Kind, name: str) -> None:
        """Raise ``NotAuthorized`` unless the policy rule and the scopes permit the caller to use the named object."""
        permitted = self.known.get(rule) or self.permits(rule)
        if not permitted or (self.scopes is not None and not self.scopes.allows(verb, kind, name)):
            raise self.refusal(rule, kind, name)

    def allows(self, rule: str, verb: Verb, kind: Kind, name: str) -> bool:
        """Return whether ``authorize`` would succeed."""
        return self.permits(rule) and (self.scopes is None or self.scopes.allows(verb, kind, name))

    def authorize_all(self, rule: str, verb: Verb) -> None:
        """Raise ``NotAuthorized`` unless the policy rule and the scopes permit all objects of the project."""
        if not self.permits(rule) or (self.scopes is not None and not self.scopes.allow_everywhere(verb)):
            raise self.refusal(rule)

    def authorize_glob(self, rule: str, verb: Verb, kind: Kind, glob: str) -> Callable[[str], bool] | None:
        """Check the permission for the objects whose names match a glob pattern.

        If all these objects are permitted, return ``None``. If only some objects are permitted, return a function that
        takes a name and returns whether the object is permitted. Raises ``NotAuthorized`` if no object is permitted.
        """
        scopes = self.scopes
        if not self.permits(rule) or (scopes is not None and not scopes.overlaps(verb, kind, glob)):
            raise self.refusal(rule, kind, glob)
        return self.visible(verb, kind) if scopes is not None and not scopes.covers(verb, kind, glob) else None

    def visible(self, verb: Verb, kind: Kind) -> Callable[[str], bool] | None:
        """Return a function that takes an object's name and returns whether the scopes permit the verb on the object.

        If the scopes permit the verb on all objects of the kind, return ``None``.
        """
        scopes = self.scopes
        if scopes is None or scopes.covers(verb, kind, "**"):
            return None
        return lambda name: scopes.allows(verb, kind, name)

    def refusal(self, rule: str, kind: Kind | None = None, name: str = "") -> NotAuthorized:
        """Return the error for a forbidden operation. Without ``kind``, the error names the project, if any."""
        if not (kind or self.identity.project):
            return NotAuthorized(f"The caller does not have the permission {rule}.")
        about = f"{kind} {name[:128]}" if kind else f"project {self.identity.project}"
        return NotAuthorized(f"This credential does not allow {rule} on {about}.")


# The permissions of internal calls and tests.
EVERYTHING: Final = Allowance(lambda _rule, _identity: True, Identity(""))
