# SPDX-License-Identifier: Apache-2.0
"""What the caller of one request may do: asked for each thing that the request names, before anything is done."""

from collections.abc import Callable
from typing import Final

from zq.errors import NotAuthorized
from zq.model.identity import Identity
from zq.model.scopes import Kind, Scopes, Verb, parse

# (rule, who asks) -> whether the roles allow it. Rules are named as in tenancy 4.
Policy = Callable[[str, Identity], bool]


class Allowance:
    """One caller's rights by the policy and, where the credential has scopes, by these; as long as the policy holds."""

    __slots__ = ("_policy", "identity", "known", "scopes")

    def __init__(self, policy: Policy, identity: Identity) -> None:
        self._policy = policy
        self.known: dict[str, bool] = {}
        """Rules of which it has been found out whether the roles allow them."""
        self.identity = identity
        self.scopes: Scopes | None = parse(identity.scopes) if identity.scopes else None

    def permits(self, rule: str) -> bool:
        """Whether the roles allow the rule, found out once."""
        known = self.known.get(rule)
        if known is None:
            self.known[rule] = known = self._policy(rule, self.identity)
        return known

    def judge(self, rule: str, verb: Verb, kind: Kind, name: str) -> None:
        """Raise ``NotAuthorized`` if the caller may not do that to what has this name, whether it exists or not."""
        if not self.permits(rule) or (self.scopes is not None and not self.scopes.allows(verb, kind, name)):
            raise self.refusal(rule, kind, name)

    def allows(self, rule: str, verb: Verb, kind: Kind, name: str) -> bool:
        """Whether ``judge`` would let it pass."""
        return self.permits(rule) and (self.scopes is None or self.scopes.allows(verb, kind, name))

    def judge_all(self, rule: str, verb: Verb) -> None:
        """Raise ``NotAuthorized`` if the caller may not do that to everything of the project."""
        if not self.permits(rule) or (self.scopes is not None and not self.scopes.everywhere(verb)):
            raise self.refusal(rule)

    def judge_glob(self, rule: str, verb: Verb, kind: Kind, glob: str) -> Callable[[str], bool] | None:
        """Which of the names that the glob matches the caller may do that to; None: to all of them.

        Raises ``NotAuthorized`` if to none.
        """
        scopes = self.scopes
        if not self.permits(rule) or (scopes is not None and not scopes.meets(verb, kind, glob)):
            raise self.refusal(rule, kind, glob)
        return self.visible(verb, kind) if scopes is not None and not scopes.covers(verb, kind, glob) else None

    def visible(self, verb: Verb, kind: Kind) -> Callable[[str], bool] | None:
        """Which names the scopes allow the verb on; None: all."""
        scopes = self.scopes
        if scopes is None or scopes.covers(verb, kind, "**"):
            return None
        return lambda name: scopes.allows(verb, kind, name)

    def refusal(self, rule: str, kind: Kind | None = None, name: str = "") -> NotAuthorized:
        """The one sentence of all that a credential does not allow; without a kind, it is about the project."""
        about = f"{kind} {name[:128]}" if kind else f"project {self.identity.project}"
        return NotAuthorized(f"This credential does not allow {rule} on {about}.")


# For those who ask on their own behalf, and for tests.
EVERYTHING: Final = Allowance(lambda _rule, _identity: True, Identity(""))
