# SPDX-License-Identifier: Apache-2.0
"""The kinds of declared objects: how each is read from the server, compared, changed and exported."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar, Final, Generic, TypeVar

from msgspec import UNSET, Struct

from zq.cli.declared.changes import Action, Change, Field, compare, same
from zq.cli.declared.declaration import (
    DEAD_LETTERS,
    SQS,
    Declaration,
    Flavor,
    Pool,
    ProjectQuota,
    Resource,
    Subscription,
    Token,
    dead_letter_chain,
)
from zq.client import Client, Queue, Topic
from zq.client import Subscription as StoredSubscription
from zq.errors import Conflict
from zq.limits import MAX_NAME, Limits
from zq.model.store_uri import HIDDEN, mask_uri
from zq.wire.metadata import KNOWN_KEYS, shown_defaults
from zq.wire.subscriptions import CONNECTION, mask_options

Json = dict[str, Any]
# Type of a declared entry, and of an object on the server.
D = TypeVar("D")
A = TypeVar("A")
GROUPED: Final = "_grouped"
TTL: Final = "_default_message_ttl"
# Settings that operators and SQS clients change. They are kept unless the file names them.
KEPT: Final = ("_paused", SQS)
# Number of tokens and projects per request.
PAGE: Final = 100
ADMIN: Final = "This part of the file needs the role admin."


class Mode(Struct, frozen=True):
    """The options of a run.

    Attributes:
        prune: Whether to delete objects that are not declared.
        force: Whether to delete queues and topics that hold messages.
    """

    prune: bool = False
    force: bool = False


class Kind(ABC, Generic[D, A]):
    """The objects of one section of a file.

    Args:
        declared: The entries of the section by name.
    """

    section: ClassVar[str]
    word: ClassVar[str]
    right: ClassVar[str] = ""
    """The right that a caller needs, for error messages."""

    def __init__(self, client: Client, limits: Limits, declared: Mapping[str, D], mode: Mode) -> None:
        self.client = client
        self.limits = limits
        self.declared = declared
        self.mode = mode

    @abstractmethod
    def read(self) -> dict[str, A]:
        """Return the objects on the server by name. Without ``prune``, objects that are not declared may be missing."""

    @abstractmethod
    def fields(self, entry: D, actual: A | None) -> list[Field]:
        """Return the properties that differ. ``actual`` is ``None`` for a new object."""

    @abstractmethod
    def create(self, name: str) -> Json:
        """Create a declared object, which may exist since an interrupted attempt. Return the secrets to show."""

    @abstractmethod
    def change(self, name: str, actual: A, fields: list[Field]) -> None: ...

    @abstractmethod
    def delete(self, name: str, actual: A) -> None: ...

    @abstractmethod
    def export(self, actual: dict[str, A]) -> Any:
        """Return the section of a file that declares the objects."""

    def creation_order(self) -> list[str]:
        """Return the declared names in the order in which to create the objects."""
        return [*self.declared]

    def deletion_order(self, actual: dict[str, A]) -> list[str]:
        """Return the names of the objects to prune in the order in which to delete them."""
        return [name for name in actual if name not in self.declared]

    def remark(self, action: Action, name: str) -> str:
        """Return information about a change for the reader."""
        return ""

    def obstacles(self, change: Change, actual: A | None) -> Iterator[str]:
        """Yield sentences about a change that would fail."""
        yield from ()


class ActualResource(Struct, frozen=True):
    """The metadata of a queue or topic.

    Attributes:
        shown: Metadata with the server's defaults.
        own: Metadata that differ from the defaults.
    """

    shown: Json
    own: Json


class _Resources(Kind[Resource, ActualResource]):
    """Queues or topics."""

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
        # The option queue_ttl sets the default ttl of some queues. A filter finds the queues that have a value stored.
        for ttl in {metadata[TTL] for metadata in own.values() if TTL in metadata}:
            stored = {each.name for each in listed(page=page, **{TTL: ttl})}
            for name, metadata in own.items():
                if metadata.get(TTL) == ttl and name not in stored:
                    del metadata[TTL]
        return {name: ActualResource(metadata, own[name]) for name, metadata in shown.items()}

    def _own(self, shown: Json) -> Json:
        return {
            key: value
            for key, value in shown.items()
            if value is not None
            and not (key in self._defaults and same(value, self._defaults[key]))
            and (not key.startswith("_") or key in KNOWN_KEYS[self.section])
        }

    def fields(self, entry: Resource, actual: ActualResource | None) -> list[Field]:
        own = {} if actual is None else actual.own
        removed = [key for key in own if entry.settings.get(key, UNSET) is None]
        removed += [key for key in own if key not in entry.settings and key not in KEPT]
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
        new = {field.name: field.new for field in fields if field.new is not UNSET}
        self.handle(name).update(new, remove=[field.name for field in fields if field.new is UNSET])

    def delete(self, name: str, actual: ActualResource) -> None:
        if not self.mode.force and (remark := self.remark("delete", name)):
            raise Conflict(f"It now holds {remark}.")
        self.handle(name).delete()

    def export(self, actual: dict[str, ActualResource]) -> dict[str, Resource]:
        return {name: Resource(each.own) for name, each in actual.items()}

    def remark(self, action: Action, name: str) -> str:
        total = self.handle(name).stats().total if action == "delete" else 0
        return f"{total:,} message{'' if total == 1 else 's'}" if total else ""

    def obstacles(self, change: Change, actual: ActualResource | None) -> Iterator[str]:
        path = f"{self.section}.{change.name}"
        if change.action == "create" and len(change.name) > MAX_NAME:
            yield f"{path} does not exist, and a new name must have at most {MAX_NAME} characters."
        if change.action == "change" and any(field.name == GROUPED for field in change.fields):
            yield f"{path}.settings.{GROUPED} can only be set when the queue is created."
        if change.action == "delete" and change.remark and not self.mode.force:
            yield f"{path} is not in the file and holds {change.remark}: use --force to delete it."


class Queues(_Resources):
    section = "queues"
    word = "queue"

    def creation_order(self) -> list[str]:
        return targets_first(self.declared)

    def deletion_order(self, actual: dict[str, ActualResource]) -> list[str]:
        """Return the queues to prune, each before its dead-letter queue.

        The dead-letter queues of declared queues are kept, because the server creates them again when it needs them.
        """
        targets = {entry.settings.get(DEAD_LETTERS) for entry in self.declared.values()}
        pruned = {name: each for name, each in actual.items() if name not in self.declared and name not in targets}
        return targets_first(self.export(pruned))[::-1]


def targets_first(queues: Mapping[str, Resource]) -> list[str]:
    """Return the names of the queues so that a dead-letter queue precedes the queues that name it."""
    ordered: dict[str, None] = {}
    for name in queues:
        if name not in ordered:
            ordered |= dict.fromkeys(each for each in reversed(dead_letter_chain(name, queues)) if each in queues)
    return [*ordered]


class Topics(_Resources):
    section = "topics"
    word = "topic"


class Subscriptions(Kind[Subscription, Json]):
    """Subscriptions. Their names consist of the kind and name of the source, and the subscriber."""

    section = "subscriptions"
    word = "subscription"

    def read(self) -> dict[str, Json]:
        page = min(PAGE, self.limits.max_messages_per_page)
        found: Iterable[tuple[str, StoredSubscription]]
        if self.mode.prune:
            found = ((each.kind, each) for each in self.client.subscriptions(page=page))
        else:
            sources = sorted({("queue", one.queue) if one.queue else ("topic", one.topic) for one in self._entries()})
            found = (
                (kind, each) for kind, name in sources for each in self._handle(kind, name).subscriptions(page=page)
            )
        return {
            f"{kind} {each.source} {each.subscriber}": {"id": each.id, "ttl": each.ttl, "options": each.options}
            for kind, each in found
            if not each.subscriber.startswith(CONNECTION)
        }

    def _entries(self) -> Iterable[Subscription]:
        return self.declared.values()

    def _handle(self, kind: str, name: str) -> Queue | Topic:
        return self.client.queue(name) if kind == "queue" else self.client.topic(name)

    def _split(self, name: str) -> tuple[Queue | Topic, str]:
        kind, source, subscriber = name.split(" ", 2)
        return self._handle(kind, source), subscriber

    def fields(self, entry: Subscription, actual: Json | None) -> list[Field]:
        old = {} if actual is None else {"ttl": actual["ttl"]} | _options(without_trust(actual["options"]))
        return compare(old, {"ttl": entry.ttl} | _options(mask_options(entry.options)))

    def create(self, name: str) -> Json:
        (source, subscriber), entry = self._split(name), self.declared[name]
        source.subscribe(subscriber, ttl=entry.ttl, options=entry.options)
        return {}

    def change(self, name: str, actual: Json, fields: list[Field]) -> None:
        entry, changed = self.declared[name], {field.name for field in fields}
        # A ttl counts from its last change, so an unchanged ttl is not sent.
        ttl = entry.ttl if "ttl" in changed else None
        options = entry.options if changed - {"ttl"} else None
        self._split(name)[0].update_subscription(actual["id"], ttl=ttl, options=options)

    def delete(self, name: str, actual: Json) -> None:
        self._split(name)[0].unsubscribe(actual["id"])

    def export(self, actual: dict[str, Json]) -> list[Subscription]:
        made = []
        for name, each in actual.items():
            kind, source, subscriber = name.split(" ", 2)
            queue, topic = (source, "") if kind == "queue" else ("", source)
            made.append(Subscription(queue, topic, subscriber, each["ttl"], without_trust(each["options"])))
        return made

    def obstacles(self, change: Change, actual: Json | None) -> Iterator[str]:
        if change.action != "delete":
            known = ({} if actual is None else actual["options"]).get("post_headers") or {}
            for header, value in (self.declared[change.name].options.get("post_headers") or {}).items():
                if value == HIDDEN and header not in known:
                    yield (
                        f"subscriptions: the header {header} of {change.name} is {HIDDEN}, the placeholder of an "
                        "export: write its value."
                    )


def without_trust(options: Json) -> Json:
    """Return the options without the trust, which the server creates."""
    return {name: value for name, value in options.items() if name != "trust_id"}


def _options(options: Json) -> Json:
    return {f"options.{name}": value for name, value in options.items()}


class Pools(Kind[Pool, Json]):
    section = "pools"
    word = "pool"
    right = ADMIN

    def read(self) -> dict[str, Json]:
        return {each["name"]: each for each in self.client.pools(detailed=True, page=self.limits.max_pools_per_page)}

    def fields(self, entry: Pool, actual: Json | None) -> list[Field]:
        old = {}
        if actual is not None:
            old = {"uri": actual["uri"], "weight": actual["weight"]} | _options(actual["options"])
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

    def obstacles(self, change: Change, actual: Json | None) -> Iterator[str]:
        if any(field.name == "uri" and HIDDEN in self.declared[change.name].uri for field in change.fields):
            yield f"pools.{change.name}.uri contains {HIDDEN}, the placeholder of an export: write the credential."


class Flavors(Kind[Flavor, list[str]]):
    section = "flavors"
    word = "flavor"
    right = ADMIN

    def read(self) -> dict[str, list[str]]:
        page = self.limits.max_flavors_per_page
        return {each["name"]: each.get("pool_list", []) for each in self.client.flavors(page=page)}

    def fields(self, entry: Flavor, actual: list[str] | None) -> list[Field]:
        return compare({} if actual is None else {"pools": sorted(actual)}, {"pools": sorted({*entry.pools})})

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
        return {name: Flavor(pools) for name, pools in actual.items() if pools}


class Quotas(Kind[ProjectQuota, dict[str, int]]):
    """The limits of projects. Each project has a quota, so none is created."""

    section = "quotas"
    word = "quota"
    right = ADMIN

    def read(self) -> dict[str, dict[str, int]]:
        if not self.mode.prune:
            return {name: self.client.project(name).limits for name in self.declared}
        found = {each.project: each.limits for each in self.client.projects(page=PAGE) if each.limits}
        return {name: {} for name in self.declared} | found

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


class Tokens(Kind[Token, Json]):
    """The named tokens of the project.

    The rights of a token never change. A declared token exists if a token with its name has its rights. All other
    tokens have the key "name id".
    """

    section = "tokens"
    word = "token"
    right = "This part of the file needs a credential that manages the whole project."

    @cached_property
    def _named(self) -> list[Json]:
        return [each for each in self.client.tokens(page=PAGE) if each["name"]]

    def read(self) -> dict[str, Json]:
        return {self._key(each): each for each in self._named}

    def _key(self, token: Json) -> str:
        entry = self.declared.get(token["name"])
        fits = entry is not None and _rights(entry.scopes, entry.roles or token["roles"]) == _rights(
            token["scopes"], token["roles"]
        )
        return token["name"] if fits else f"{token['name']} {token['id']}"

    def fields(self, entry: Token, actual: Json | None) -> list[Field]:
        terms = {"scopes": entry.scopes, "roles": entry.roles, "days": entry.days}
        return compare({}, {name: value for name, value in terms.items() if value}) if actual is None else []

    def create(self, name: str) -> Json:
        entry = self.declared[name]
        made = self.client.create_token(name=name, scopes=entry.scopes, roles=entry.roles, days=entry.days)
        return {"id": made["id"], "token": made["token"]}

    def change(self, name: str, actual: Json, fields: list[Field]) -> None:
        raise AssertionError("the rights of a token never change")

    def delete(self, name: str, actual: Json) -> None:
        self.client.revoke_token(actual["id"])

    def export(self, actual: dict[str, Json]) -> dict[str, Token]:
        newest = {each["name"]: each for each in sorted(actual.values(), key=lambda each: str(each["created"]))}
        return {name: Token(each["scopes"], each["roles"]) for name, each in sorted(newest.items())}

    def deletion_order(self, actual: dict[str, Json]) -> list[str]:
        """Return the tokens to prune. The token of the caller is kept."""
        own = self.client.whoami()["credential"]
        return [name for name, each in actual.items() if name not in self.declared and each["id"] != own]

    def remark(self, action: Action, name: str) -> str:
        others = [each["id"] for each in self._named if each["name"] == name]
        if action != "create" or not others:
            return ""
        return f"in addition to {', '.join(others)}, with other rights"


def _rights(scopes: Iterable[str] | None, roles: Iterable[str]) -> tuple[set[str] | None, set[str]]:
    return None if scopes is None else {*scopes}, {role.lower() for role in roles}


# The sections in the order in which to create their objects.
KINDS: Final[tuple[type[Kind[Any, Any]], ...]] = (Quotas, Pools, Flavors, Queues, Topics, Subscriptions, Tokens)
# The sections that every project has.
COMMON: Final = (Queues, Topics, Subscriptions)


def declared_kinds(declared: Declaration, client: Client, limits: Limits, mode: Mode) -> list[Kind[Any, Any]]:
    """Return the kinds of the declared sections, in the order in which to create their objects."""
    made = []
    for kind in KINDS:
        entries = getattr(declared, kind.section)
        if isinstance(entries, list):
            entries = {_subscription_name(entry): entry for entry in entries}
        if entries is not None:
            made.append(kind(client, limits, entries, mode))
    return made


def _subscription_name(entry: Subscription) -> str:
    source = f"queue {entry.queue}" if entry.queue else f"topic {entry.topic}"
    return f"{source} {entry.subscriber}"
