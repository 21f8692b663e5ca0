# SPDX-License-Identifier: Apache-2.0
"""The kinds of objects that ``zq apply`` manages. Each kind can read, compare, change and export its objects."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar, Final, Generic, TypeVar

from msgspec import UNSET, Struct

from zq.cli.declared.changes import Action, Change, Field, compare, same
from zq.cli.declared.declaration import (
    DEAD_LETTERS_KEY,
    SQS_KEY,
    Declaration,
    Flavor,
    Pool,
    ProjectQuota,
    Resource,
    Subscription,
    Token,
)
from zq.cli.declared.document import Json
from zq.client import Client, Queue, Topic
from zq.client import Subscription as StoredSubscription
from zq.errors import Conflict, MetadataConflict, NotFound
from zq.model.identity import ADMIN, MEMBER
from zq.model.limits import MAX_NAME, Limits
from zq.model.store_uri import HIDDEN, mask_uri, parse_address, split
from zq.wire.metadata import KNOWN_KEYS, shown_defaults
from zq.wire.subscriptions import CONNECTION, mask_options

# Type of a declared entry, and of an object on the server.
D = TypeVar("D")
A = TypeVar("A")
GROUPED_KEY: Final = "_grouped"
TTL_KEY: Final = "_default_message_ttl"
HISTORY_KEY: Final = "_history_ttl"
# Name of the change that renews a subscription. A subscription expires when its ttl has passed.
REMAINING_TTL: Final = "remaining_ttl"
# Settings that operators and SQS clients change. ``zq apply`` keeps these settings unless the file names them.
KEPT_SETTINGS: Final = ("_paused", SQS_KEY)
# Number of tokens and projects per request.
PAGE_SIZE: Final = 100
ADMIN_RIGHT: Final = "This part of the file needs the role admin."


class Mode(Struct, frozen=True):
    """The options of ``zq apply``. ``force``: delete objects with messages, history or deliveries."""

    prune: bool = False
    force: bool = False
    create_tokens: bool = True


class Kind(ABC, Generic[D, A]):
    """A section of a declaration file, such as queues, and its objects on the server."""

    section: ClassVar[str]
    word: ClassVar[str]
    right: ClassVar[str] = ""
    """A sentence about the permission that the caller needs, for error messages."""

    def __init__(self, client: Client, limits: Limits, declared: Mapping[str, D], mode: Mode) -> None:
        self.client = client
        self.limits = limits
        self.declared = declared
        self.mode = mode

    @abstractmethod
    def read(self) -> dict[str, A]:
        """Return the objects on the server by name.

        Without the option ``--prune``, the result may omit objects that are not declared.
        """

    @abstractmethod
    def properties(self, actual: A) -> Json:
        """Return the properties of an object on the server. Secrets are masked."""

    @abstractmethod
    def fields(self, entry: D, actual: A | None) -> list[Field]:
        """Return the properties that differ between the declaration and the object on the server.

        If the object does not exist yet, ``actual`` is ``None``.
        """

    @abstractmethod
    def create(self, name: str) -> Json:
        """Create a declared object and return its secrets, which the command shows once.

        If an earlier run was interrupted, the object may already exist.
        """

    @abstractmethod
    def change(self, name: str, actual: A, fields: list[Field]) -> None: ...

    @abstractmethod
    def delete(self, name: str, actual: A) -> None: ...

    @abstractmethod
    def export(self, actual: dict[str, A]) -> Any:
        """Convert objects on the server to a section of a declaration file."""

    def creation_order(self) -> list[str]:
        """Return the declared names in order of creation."""
        return [*self.declared]

    def deletion_order(self, actual: dict[str, A]) -> list[str]:
        """Return the names of the objects to prune, in order of deletion."""
        return [name for name in actual if name not in self.declared]

    def prune(self, name: str, actual: A) -> None:
        """Delete an object. Without ``--force``, raise ``Conflict`` if the object holds data."""
        if not self.mode.force and (held := self.held(name, actual)):
            raise Conflict(f"The {self.word} now holds {held}: use --force to delete it.")
        self.delete(name, actual)

    def held(self, name: str, actual: A) -> str:
        """Describe the data that a deletion of the object would destroy. Return "" if there is no such data."""
        return ""

    def remark(self, action: Action, name: str, actual: A | None) -> str:
        """Return a remark to print with a change, or "". For a deletion, the remark describes the data to be lost."""
        return "" if action != "delete" or actual is None else self.held(name, actual)

    def obstacles(self, change: Change, actual: A | None, plan: Sequence[Change]) -> Iterator[str]:
        """Yield a sentence for each reason why a change of the plan would fail."""
        if change.action == "delete" and change.remark and not self.mode.force:
            yield f"{self.word} {change.name} is not in the file and holds {change.remark}: use --force to delete it."


class ActualResource(Struct, frozen=True):
    """The metadata of a queue or topic on the server."""

    shown: Json
    own: Json


class _Resources(Kind[Resource, ActualResource]):
    """The common base of ``Queues`` and ``Topics``."""

    def __init__(self, client: Client, limits: Limits, declared: Mapping[str, Resource], mode: Mode) -> None:
        super().__init__(client, limits, declared, mode)
        self._defaults = shown_defaults(limits, topic=self.word == "topic")

    def handle(self, name: str) -> Queue | Topic:
        return self.client.queue(name) if self.word == "queue" else self.client.topic(name)

    def read(self) -> dict[str, ActualResource]:
        page = self.limits.max_queues_per_page
        listed = self.client.queues if self.word == "queue" else self.client.topics
        shown = {each.name: dict(each.metadata or {}) for each in listed(detailed=True, page=page)}
        own = {name: self._own(metadata) for name, metadata in shown.items()}
        # The server option queue_ttl changes the default ttl of some queues. Listing filters match only stored values.
        for ttl in {metadata[TTL_KEY] for metadata in own.values() if TTL_KEY in metadata}:
            stored = {each.name for each in listed(page=page, **{TTL_KEY: ttl})}
            for name, metadata in own.items():
                if metadata.get(TTL_KEY) == ttl and name not in stored:
                    del metadata[TTL_KEY]
        return {name: ActualResource(metadata, own[name]) for name, metadata in shown.items()}

    def _own(self, shown: Json) -> Json:
        return {
            key: value
            for key, value in shown.items()
            if value is not None
            and not (key in self._defaults and same(value, self._defaults[key]))
            and (not key.startswith("_") or key in KNOWN_KEYS[self.section])
        }

    def properties(self, actual: ActualResource) -> Json:
        return actual.own

    def fields(self, entry: Resource, actual: ActualResource | None) -> list[Field]:
        own = {} if actual is None else actual.own
        removed = [key for key in own if entry.settings.get(key, UNSET) is None]
        removed += [key for key in own if key not in entry.settings and key not in KEPT_SETTINGS]
        given = {key: value for key, value in entry.settings.items() if value is not None}
        fields = []
        for key, value in given.items():
            old = UNSET if actual is None else actual.shown.get(key, UNSET)
            # The server shows the default for a value such as 0 or false.
            new = value or self._defaults[key] if key in self._defaults else value
            if old is UNSET or not same(old, new):
                fields.append(Field(key, UNSET if key not in own else old, value))
        return fields + [Field(key, own[key]) for key in removed]

    def create(self, name: str) -> Json:
        settings = {key: value for key, value in self.declared[name].settings.items() if value is not None}
        handle = self.handle(name)
        if not handle.create(settings) and settings:
            handle.update(settings)
        return {}

    def change(self, name: str, actual: ActualResource, fields: list[Field]) -> None:
        try:
            self._update(name, fields)
        except MetadataConflict:  # such as a key that a parallel run has removed
            self._update(name, self.fields(self.declared[name], self.read().get(name)))

    def _update(self, name: str, fields: list[Field]) -> None:
        new = {field.name: field.new for field in fields if field.new is not UNSET}
        removed = [field.name for field in fields if field.new is UNSET]
        if fields:
            self.handle(name).update(new, remove=removed)

    def delete(self, name: str, actual: ActualResource) -> None:
        self.handle(name).delete()

    def export(self, actual: dict[str, ActualResource]) -> dict[str, Resource]:
        return {name: Resource(each.own) for name, each in actual.items()}

    def held(self, name: str, actual: ActualResource) -> str:
        total = self.handle(name).stats().total
        held = [f"{total:,} message{'' if total == 1 else 's'}"] if total else []
        return " and ".join([*held, "history"] if actual.own.get(HISTORY_KEY) else held)

    def obstacles(self, change: Change, actual: ActualResource | None, plan: Sequence[Change]) -> Iterator[str]:
        yield from super().obstacles(change, actual, plan)
        path = f"{self.section}.{change.name}"
        if change.action == "create" and len(change.name) > MAX_NAME:
            yield f"{path} does not exist, and a new name must have at most {MAX_NAME} characters."
        if change.action == "change" and any(field.name == GROUPED_KEY for field in change.fields):
            yield f"{path}.settings.{GROUPED_KEY} can only be set when the queue is created."


class Queues(_Resources):
    section = "queues"
    word = "queue"

    def creation_order(self) -> list[str]:
        return targets_first(self.declared, self.declared)

    def deletion_order(self, actual: dict[str, ActualResource]) -> list[str]:
        """Return the queues to prune, each before its dead-letter queue.

        If a declared queue uses a dead-letter queue, directly or through other dead-letter queues, the dead-letter
        queue is not pruned, because the server would create it again.
        """
        stored = self.export(actual)
        kept = {*targets_first({**stored, **self.declared}, self.declared)}
        pruned = {name: each for name, each in stored.items() if name not in kept}
        return targets_first(pruned, pruned)[::-1]


def targets_first(queues: Mapping[str, Resource], names: Iterable[str]) -> list[str]:
    """Return the names of the queues and of their dead-letter queues, sorted for creation.

    A dead-letter queue comes before the queues that use it. Names that ``queues`` does not contain are omitted.
    """
    ordered: dict[str, None] = {}
    for name in names:
        chain: dict[str, None] = {}
        following: str | None = name
        while following and following in queues and following not in ordered and following not in chain:
            chain[following] = None
            following = queues[following].settings.get(DEAD_LETTERS_KEY)
        ordered |= dict.fromkeys(reversed(chain))
    return [*ordered]


class Topics(_Resources):
    section = "topics"
    word = "topic"


class ActualSubscription(Struct, frozen=True):
    """A subscription on the server, with masked headers. ``age``: seconds since the ttl was last set."""

    id: str
    entry: Subscription
    age: int


class Subscriptions(Kind[Subscription, ActualSubscription]):
    """The subscriptions section. The key of a subscription is its ``label``."""

    section = "subscriptions"
    word = "subscription"

    def read(self) -> dict[str, ActualSubscription]:
        page = min(PAGE_SIZE, self.limits.max_messages_per_page)
        found: Iterable[tuple[bool, StoredSubscription]]
        if self.mode.prune:
            found = ((each.kind == "topic", each) for each in self.client.subscriptions(page=page))
        else:
            sources = {(entry.queue, entry.topic): self._source(entry) for entry in self.declared.values()}
            found = (
                (topic != "", each)
                for (_, topic), source in sorted(sources.items(), key=lambda pair: pair[0])
                for each in source.subscriptions(page=page)
            )
        return {
            one.entry.label: one
            for one in (_actual_subscription(each, is_topic) for is_topic, each in found)
            if not one.entry.subscriber.startswith(CONNECTION)
        }

    def _source(self, entry: Subscription) -> Queue | Topic:
        return self.client.queue(entry.queue) if entry.queue else self.client.topic(entry.topic)

    def properties(self, actual: ActualSubscription) -> Json:
        return {"ttl": actual.entry.ttl} | _options(actual.entry.options)

    def fields(self, entry: Subscription, actual: ActualSubscription | None) -> list[Field]:
        options = without_trust(mask_options(entry.options))
        fields = compare({} if actual is None else self.properties(actual), {"ttl": entry.ttl} | _options(options))
        if actual is not None and entry.ttl == actual.entry.ttl and actual.age > entry.ttl // 2:
            fields.append(Field(REMAINING_TTL, max(0, entry.ttl - actual.age), entry.ttl))
        return fields

    def create(self, name: str) -> Json:
        entry = self.declared[name]
        self._source(entry).subscribe(entry.subscriber, ttl=entry.ttl, options=entry.options)
        return {}

    def change(self, name: str, actual: ActualSubscription, fields: list[Field]) -> None:
        entry, changed = self.declared[name], {field.name for field in fields}
        ttl_fields = {"ttl", REMAINING_TTL}
        # A ttl counts from its last change, so an unchanged ttl is not sent.
        ttl = entry.ttl if changed & ttl_fields else None
        options = entry.options if changed - ttl_fields else None
        self._source(entry).update_subscription(actual.id, ttl=ttl, options=options)

    def delete(self, name: str, actual: ActualSubscription) -> None:
        self._source(actual.entry).unsubscribe(actual.id)

    def export(self, actual: dict[str, ActualSubscription]) -> list[Subscription]:
        return [each.entry for each in actual.values()]

    def held(self, name: str, actual: ActualSubscription) -> str:
        source = self._source(actual.entry)
        held = []
        with suppress(NotFound):  # the subscription may have expired
            held += ["waiting deliveries" for _ in islice(source.waiting_deliveries(actual.id, page=1), 1)]
            held += ["failed deliveries" for _ in islice(source.dead_deliveries(actual.id, page=1), 1)]
        return " and ".join(held)

    def obstacles(self, change: Change, actual: ActualSubscription | None, plan: Sequence[Change]) -> Iterator[str]:
        yield from super().obstacles(change, actual, plan)
        if change.action != "delete":
            known = ({} if actual is None else actual.entry.options).get("post_headers") or {}
            for header, value in (self.declared[change.name].options.get("post_headers") or {}).items():
                if value == HIDDEN and header not in known:
                    yield (
                        f"subscriptions: the header {header} of {change.name} is {HIDDEN}, the placeholder of an "
                        "export: write its value."
                    )


def _actual_subscription(stored: StoredSubscription, is_topic: bool) -> ActualSubscription:
    queue, topic = ("", stored.source) if is_topic else (stored.source, "")
    entry = Subscription(queue, topic, stored.subscriber, stored.ttl, without_trust(stored.options))
    return ActualSubscription(stored.id, entry, stored.age)


def without_trust(options: Json) -> Json:
    """Return the options without ``trust_id``, the Keystone trust that the server creates."""
    return {name: value for name, value in options.items() if name != "trust_id"}


def _options(options: Json) -> Json:
    return {f"options.{name}": value for name, value in options.items()}


class Pools(Kind[Pool, Json]):
    section = "pools"
    word = "pool"
    right = ADMIN_RIGHT

    def read(self) -> dict[str, Json]:
        return self._shown

    @cached_property
    def _shown(self) -> dict[str, Json]:
        return {each["name"]: each for each in self.client.pools(detailed=True, page=self.limits.max_pools_per_page)}

    def properties(self, actual: Json) -> Json:
        return {"uri": actual["uri"], "weight": actual["weight"]} | _options(actual["options"])

    def fields(self, entry: Pool, actual: Json | None) -> list[Field]:
        old = {} if actual is None else self.properties(actual)
        return compare(old, {"uri": mask_uri(entry.uri), "weight": entry.weight} | _options(entry.options))

    def create(self, name: str) -> Json:
        entry = self.declared[name]
        self.client.put_pool(name, entry.uri, entry.weight, options=entry.options)
        return {}

    def change(self, name: str, actual: Json, fields: list[Field]) -> None:
        entry = self.declared[name]
        uri = entry.uri if any(field.name == "uri" for field in fields) else None
        self.client.update_pool(name, uri=uri, weight=entry.weight, options=entry.options)

    def delete(self, name: str, actual: Json) -> None:
        self.client.delete_pool(name)

    def export(self, actual: dict[str, Json]) -> dict[str, Pool]:
        return {name: Pool(each["uri"], each["weight"], each["options"]) for name, each in actual.items()}

    def obstacles(self, change: Change, actual: Json | None, plan: Sequence[Change]) -> Iterator[str]:
        entry = self.declared.get(change.name)
        if entry and HIDDEN in entry.uri and any(field.name == "uri" for field in change.fields):
            yield f"pools.{change.name}.uri contains {HIDDEN}, the placeholder of an export: write the credential."
        if entry and actual and actual.get("has_queues") and _address(entry.uri) != _address(actual["uri"]):
            yield (
                f"pools.{change.name}.uri refers to another store, but the pool has queues, or had queues a few "
                "minutes ago. Move or delete the queues, and try again after a few minutes."
            )
        if change.action == "delete" and actual is not None:
            yield from self._deletion_obstacles(change.name, actual, plan)

    def _deletion_obstacles(self, name: str, actual: Json, plan: Sequence[Change]) -> Iterator[str]:
        """Yield the reasons why the server would refuse to delete a pool."""
        if actual.get("has_queues"):
            yield (
                f"pool {name} is not in the file, but has queues, or had queues a few minutes ago. Move or delete the "
                "queues, and try again after a few minutes."
            )
        flavor = actual["flavor"]
        if flavor is None or any(change.kind == Flavors.word and change.name == flavor for change in plan):
            return  # the plan removes the flavor from this pool before it deletes the pool
        deleted = {change.name for change in plan if change.kind == self.word and change.action == "delete"}
        if deleted.issuperset(other for other, each in self._shown.items() if each["flavor"] == flavor):
            yield (
                f"pool {name} is not in the file, but the flavor {flavor} would have no pool left. Delete the flavor "
                "first."
            )


def _address(uri: str) -> tuple[str, ...]:
    return parse_address(split(uri))


class Flavors(Kind[Flavor, list[str]]):
    section = "flavors"
    word = "flavor"
    right = ADMIN_RIGHT

    def read(self) -> dict[str, list[str]]:
        page = self.limits.max_flavors_per_page
        return {each["name"]: each.get("pool_list", []) for each in self.client.flavors(page=page)}

    def properties(self, actual: list[str]) -> Json:
        return {"pools": sorted(actual)}

    def fields(self, entry: Flavor, actual: list[str] | None) -> list[Field]:
        return compare({} if actual is None else self.properties(actual), {"pools": sorted({*entry.pools})})

    def create(self, name: str) -> Json:
        self.client.put_flavor(name, self.declared[name].pools)
        # A pool may have had the flavor's name before.
        self.client.update_flavor(name, self.declared[name].pools)
        return {}

    def change(self, name: str, actual: list[str], fields: list[Field]) -> None:
        self.client.update_flavor(name, self.declared[name].pools)

    def delete(self, name: str, actual: list[str]) -> None:
        self.client.delete_flavor(name)

    def export(self, actual: dict[str, list[str]]) -> dict[str, Flavor]:
        return {name: Flavor(pools) for name, pools in actual.items()}

    def obstacles(self, change: Change, actual: list[str] | None, plan: Sequence[Change]) -> Iterator[str]:
        if change.action != "delete" and not self.declared[change.name].pools:
            yield (
                f"flavors.{change.name}.pools must name at least one pool. Only an existing flavor can have no pools."
            )


class Quotas(Kind[ProjectQuota, dict[str, int]]):
    """The quotas section. Every project has a quota, so quotas are only changed, never created."""

    section = "quotas"
    word = "quota"
    right = ADMIN_RIGHT

    def read(self) -> dict[str, dict[str, int]]:
        if not self.mode.prune:
            return {name: self.client.project(name).limits for name in self.declared}
        found = {each.project: each.limits for each in self.client.projects(page=PAGE_SIZE) if each.limits}
        return {name: {} for name in self.declared} | found

    def properties(self, actual: dict[str, int]) -> Json:
        return actual

    def fields(self, entry: ProjectQuota, actual: dict[str, int] | None) -> list[Field]:
        return compare(actual or {}, entry.limits)

    def create(self, name: str) -> Json:
        raise AssertionError("each project has a quota")

    def change(self, name: str, actual: dict[str, int], fields: list[Field]) -> None:
        self.client.set_limits(name, self.declared[name].limits)

    def delete(self, name: str, actual: dict[str, int]) -> None:
        self.client.set_limits(name, {})

    def export(self, actual: dict[str, dict[str, int]]) -> dict[str, ProjectQuota]:
        return {name: ProjectQuota(limits) for name, limits in actual.items()}


class Tokens(Kind[Token, list[Json]]):
    """The tokens section. Several tokens can have the same name.

    The rights of a token never change. If no token has the declared name and rights, a new token is created. Other
    tokens with the name are kept. Omitted rights are the rights that the server gives to a new token, so that a token
    with further roles is not accepted.
    """

    section = "tokens"
    word = "token"
    right = "This part of the file needs a credential that manages the whole project."

    @cached_property
    def _caller(self) -> Json:
        return self.client.whoami()

    @cached_property
    def _named(self) -> dict[str, list[Json]]:
        found: dict[str, list[Json]] = {}
        for each in self.client.tokens(page=PAGE_SIZE):
            if each["name"]:
                found.setdefault(each["name"], []).append(each)
        return found

    def read(self) -> dict[str, list[Json]]:
        return {
            name: tokens
            for name, tokens in self._named.items()
            if name not in self.declared or any(self._fits(self.declared[name], each) for each in tokens)
        }

    def _fits(self, entry: Token, token: Json) -> bool:
        # The server gives a new token the roles of its creator, except the administrator role.
        roles = entry.roles or {*self._caller["roles"]} - {ADMIN} or {MEMBER}
        return _rights(entry.scopes, roles) == _rights(token["scopes"], token["roles"])

    def properties(self, actual: list[Json]) -> Json:
        return {each["id"]: {"scopes": each["scopes"], "roles": each["roles"]} for each in actual}

    def fields(self, entry: Token, actual: list[Json] | None) -> list[Field]:
        terms = {"scopes": entry.scopes, "roles": entry.roles, "days": entry.days}
        return compare({}, {name: value for name, value in terms.items() if value}) if actual is None else []

    def create(self, name: str) -> Json:
        entry = self.declared[name]
        made = self.client.create_token(name=name, scopes=entry.scopes, roles=entry.roles, days=entry.days)
        return {"id": made["id"], "token": made["token"]}

    def change(self, name: str, actual: list[Json], fields: list[Field]) -> None:
        raise AssertionError("the rights of a token never change")

    def delete(self, name: str, actual: list[Json]) -> None:
        for each in actual:
            self.client.revoke_token(each["id"])

    def export(self, actual: dict[str, list[Json]]) -> dict[str, Token]:
        newest = {name: max(tokens, key=lambda each: str(each["created"])) for name, tokens in actual.items()}
        return {name: Token(each["scopes"], each["roles"]) for name, each in sorted(newest.items())}

    def deletion_order(self, actual: dict[str, list[Json]]) -> list[str]:
        """Return the names of the tokens to prune.

        The name of the caller's own token is omitted, so that the command does not revoke the caller's credential.
        """
        own = self._caller["credential"]
        return [name for name in super().deletion_order(actual) if own not in self.properties(actual[name])]

    def remark(self, action: Action, name: str, actual: list[Json] | None) -> str:
        others = [each["id"] for each in self._named.get(name, ())]
        return f"in addition to {', '.join(others)}, with other rights" if action == "create" and others else ""

    def obstacles(self, change: Change, actual: list[Json] | None, plan: Sequence[Change]) -> Iterator[str]:
        if change.action == "create" and not self.mode.create_tokens:
            yield (
                f"tokens.{change.name} does not exist, and standard output is not a terminal: use --create-tokens to "
                "create it and print its secret."
            )


def _rights(scopes: Iterable[str] | None, roles: Iterable[str]) -> tuple[set[str] | None, set[str]]:
    return None if scopes is None else {*scopes}, {role.lower() for role in roles}


# The sections in the order in which to create their objects.
KINDS: Final[tuple[type[Kind[Any, Any]], ...]] = (Quotas, Pools, Flavors, Queues, Topics, Subscriptions, Tokens)
# The sections that every project has.
COMMON_KINDS: Final = (Queues, Topics, Subscriptions)


def declared_kinds(declared: Declaration, client: Client, limits: Limits, mode: Mode) -> list[Kind[Any, Any]]:
    """Return a ``Kind`` for each section of the file, in order of creation."""
    made = []
    for kind in KINDS:
        entries = getattr(declared, kind.section)
        if isinstance(entries, list):
            entries = {entry.label: entry for entry in entries}
        if entries is not None:
            made.append(kind(client, limits, entries, mode))
    return made
