# SPDX-License-Identifier: Apache-2.0
"""The policy: the roles that each rule requires (tenancy contract, section 4).

The roles come from a built-in table, which an oslo.policy file can override.

oslo.policy denies an unparsable rule and ignores an unknown rule without an error. This module therefore rejects the
whole file if it has an error. oslo.policy is imported only if a file is configured.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from zq.audit import Audit
from zq.errors import StartRefused
from zq.model.audit import Entry
from zq.model.identity import ADMIN, Identity
from zq.model.scopes import Verb

LOG = logging.getLogger(__name__)
# Maximum number of cached decisions.
CACHE_SIZE: Final = 10_000
EVERYONE: Final = ""
ADMINISTRATORS: Final = f"role:{ADMIN}"


class Rule(Struct, frozen=True):
    """The roles and scopes that a policy rule requires.

    Attributes:
        check: The required roles, in oslo.policy syntax.
        verb: The action that a credential's scopes must permit. ``None`` if the rule requires no scope, or if the
            action depends on the request.
        everywhere: Whether the scopes must permit the action on all objects of the project.
        strongest: If the action depends on the request, the action that requires the most rights. ``/v2/me`` lists the
            rule only for callers that may perform this action.
    """

    check: str = EVERYONE
    verb: Verb | None = None
    everywhere: bool = False
    strongest: Verb | None = None


def _rules(word: str, verbs: Mapping[str, Verb]) -> dict[str, Rule]:
    return {f"{word}:{name}": Rule(verb=verb) for name, verb in verbs.items()}


def _administration(*names: str) -> dict[str, Rule]:
    return {name: Rule(ADMINISTRATORS, Verb.MANAGE, everywhere=True) for name in names}


_METADATA: Final = {
    **{"get_all": Verb.OBSERVE, "get": Verb.OBSERVE, "create": Verb.MANAGE, "update": Verb.MANAGE},
    **{"delete": Verb.MANAGE, "stats": Verb.OBSERVE, "purge": Verb.MANAGE},
}
_CRUD: Final = ("get_all", "get", "create", "update", "delete")

RULES: Final[dict[str, Rule]] = {
    **_rules("queues", _METADATA | {"share": Verb.MANAGE}),
    **_rules("messages", {"create": Verb.PRODUCE, "get_all": Verb.OBSERVE, "get": Verb.OBSERVE}),
    "messages:delete": Rule(verb=Verb.CONSUME),
    "messages:delete_all": Rule(strongest=Verb.MANAGE),
    **_rules("claims", dict.fromkeys(("create", "get", "update", "delete"), Verb.CONSUME)),
    "claims:get_all": Rule(verb=Verb.OBSERVE),
    **_rules("topics", _METADATA | {"publish": Verb.PRODUCE}),
    **_rules("topics", dict.fromkeys(("get_messages", "get_message", "stream"), Verb.OBSERVE)),
    **_rules("subscription", dict.fromkeys((*_CRUD, "confirm"), Verb.MANAGE)),
    "audit:get_all": Rule(verb=Verb.OBSERVE, everywhere=True),
    "ping:get": Rule(),
    "limits:get": Rule(),
    "quota:get": Rule(),
    "identity:get": Rule(),
    "share:revoke": Rule(verb=Verb.MANAGE, everywhere=True),
    **{f"tokens:{name}": Rule(verb=Verb.MANAGE, everywhere=True) for name in ("get_all", "get", "create", "delete")},
    "flavors:get_all": Rule(),
    "flavors:get": Rule(),
    **_administration("health:get", *(f"pools:{name}" for name in (*_CRUD, "move"))),
    **_administration(*(f"flavors:{name}" for name in ("create", "update", "delete"))),
    **_administration("admin:projects", "admin:project", "admin:project_update", "admin:project_delete", "admin:rekey"),
    **_administration("admin:tokens", "admin:server", "admin:sqs_keys"),
}
"""All rules. Unknown rules are denied.

The rules of all features are included, because a policy file is validated before features are created.
"""

# Caller attributes that a check may use.
CREDENTIALS: Final = frozenset({"project_id", "user_id"})
_TARGET: Final = re.compile(r"%\((\w*)\)s")
_CHECKS: Final = frozenset({"TrueCheck", "FalseCheck", "AndCheck", "OrCheck", "NotCheck", "RoleCheck", "RuleCheck"})

# Returns whether a request with this rule, roles, user and project is permitted.
Decide = Callable[[str, frozenset[str], str, str], bool]


class Policy:
    """The current policy, which decides whether a caller satisfies a rule.

    The constructor raises ``StartRefused`` if the policy file is not valid.
    """

    def __init__(self, path: str = "") -> None:
        self._texts: dict[str, str] | None = None
        self._listeners: list[Callable[[], object]] = []
        self.load(path)

    def listen(self, changed: Callable[[], object]) -> None:
        """Register a function to call after each load of the rules."""
        self._listeners.append(changed)

    def load(self, path: str) -> bool:
        """Load the rules and return whether they have changed.

        If the file is not valid, raise ``StartRefused`` and keep the old rules.
        """
        texts = _read(path) if path else None
        decide = _by_table if texts is None else _by_file(path, texts)
        self._decide: Decide = lru_cache(maxsize=CACHE_SIZE)(decide)
        for changed in self._listeners:
            changed()
        former, self._texts = self._texts, texts
        return former != texts

    def reload(self, path: str, audit: Audit) -> None:
        """Load the rules again and audit a change. If the file is invalid, keep the current rules and log the error."""
        try:
            changed = self.load(path)
        except StartRefused as refusal:
            LOG.error("The previous policy stays in use: %s", refusal)
            audit.log_change(Entry(method="HUP", object="policy", outcome="refused", why=str(refusal)))
        else:
            if changed:
                audit.log_change(Entry(method="HUP", object="policy", outcome="done"))

    def __call__(self, rule: str, identity: Identity) -> bool:
        return self._decide(rule, identity.roles, identity.user, identity.project)


def _by_table(rule: str, roles: frozenset[str], _user: str, _project: str) -> bool:
    known = RULES.get(rule)
    return known is not None and (known.check == EVERYONE or ADMIN in roles)


def _by_file(path: str, given: Mapping[str, str]) -> Decide:
    checks = _checks(path, given)
    try:
        from oslo_config.cfg import ConfigOpts
        from oslo_policy.policy import Enforcer, Rules
    except ImportError as error:
        raise _missing_library() from error
    # With ``rules`` and ``use_conf=False``, the library neither reads nor watches a file.
    enforcer = Enforcer(ConfigOpts(), rules=Rules(checks), use_conf=False)

    def decide(rule: str, roles: frozenset[str], user: str, project: str) -> bool:
        caller = {"roles": sorted(roles), "user_id": user, "project_id": project}
        return rule in RULES and bool(enforcer.enforce(rule, {"project_id": project}, caller))

    return decide


def _missing_library() -> StartRefused:
    return StartRefused("[oslo_policy] policy_file requires oslo.policy: pip install 'zq-queue[policy]'.")


def _checks(path: str, given: Mapping[str, str]) -> dict[str, Any]:
    """Return the parsed check (the required roles) of each rule. Checks in ``given`` override the built-in checks.

    Raises ``StartRefused`` if a check is not valid or oslo.policy is not installed.
    """
    texts = {name: rule.check for name, rule in RULES.items()} | dict(given)
    try:
        from oslo_policy.policy import RuleDefault
    except ImportError as error:
        raise _missing_library() from error
    checks = {name: RuleDefault(name, text).check for name, text in texts.items()}
    for name, check in checks.items():
        if fault := next(_find_errors(check, texts[name]), None):
            raise _refusal(path, f"the rule {name}: {fault}")
    _reject_cycles(path, {name: set(_references(check)) for name, check in checks.items()})
    return checks


def _read(path: str) -> dict[str, str]:
    try:
        from oslo_policy.policy import parse_file_contents
    except ImportError as error:
        raise _missing_library() from error
    try:
        given = parse_file_contents(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _refusal(path, " ".join(str(error).split())) from error
    if not isinstance(given, dict):
        raise _refusal(path, "it must map rule names to checks")
    for name, text in given.items():
        if name not in RULES:
            raise _refusal(path, f"{str(name)[:80]!r} is not a rule; api-ref/policy.md lists all rules")
        if not isinstance(text, str):
            raise _refusal(path, f"the rule {name} must be a quoted string")
    return given


def _find_errors(check: Any, text: str) -> Iterator[str]:
    parts = list(_parts(check))
    kinds = [type(part).__name__ for part in parts]
    if kinds.count("FalseCheck") != text.split().count("!"):
        yield f"{text[:80]!r} cannot be parsed as a check"
    for part, kind in zip(parts, kinds, strict=True):
        if kind == "RuleCheck" and part.match not in RULES:
            yield f"it refers to {part.match[:80]!r}, which is not a rule"
        elif kind == "GenericCheck" and not (part.kind in CREDENTIALS or part.kind[:1] in "'\"TF0123456789"):
            yield f"{part.kind[:80]!r} is not an attribute of callers; use role, user_id or project_id"
        elif kind not in _CHECKS and kind != "GenericCheck":
            yield f"{text[:80]!r} queries another server, which is not supported"
        if (named := _TARGET.findall(getattr(part, "match", ""))) and set(named) != {"project_id"}:
            yield f"{part.match[:80]!r} is not a target; only %(project_id)s is"


def _parts(check: Any) -> Iterator[Any]:
    yield check
    for part in [*getattr(check, "rules", ()), *([check.rule] if hasattr(check, "rule") else [])]:
        yield from _parts(part)


def _references(check: Any) -> Iterator[str]:
    return (part.match for part in _parts(check) if type(part).__name__ == "RuleCheck")


def _reject_cycles(path: str, references: Mapping[str, set[str]]) -> None:
    for name in references:
        reached: set[str] = set()
        waiting = set(references[name])
        while waiting:
            reached.add(rule := waiting.pop())
            waiting |= references[rule] - reached
        if name in reached:
            raise _refusal(path, f"the rule {name} refers to itself")


def _refusal(path: str, fault: str) -> StartRefused:
    return StartRefused(f"[oslo_policy] policy_file {path} cannot be used: {fault}.")
