# SPDX-License-Identifier: Apache-2.0
"""All options of the server, declared as fields of structs and converted to options of oslo.config.

``PARTS`` lists the structs. Each field that is annotated with an ``Option`` is an option.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, get_args

from msgspec import Struct
from oslo_config import cfg

from zq.http.request_log import LogOptions
from zq.model.declarations import find_declarations, read_docstrings
from zq.model.expiry import Expiry
from zq.model.identity import AuthOptions, JwtOptions, SignedUrlOptions
from zq.model.limits import Limits
from zq.model.options import PORT, Option
from zq.model.quotas import Quota
from zq.serving.sections import SECTIONS
from zq.serving.settings import sections
from zq.storage.options import MongodbOptions, ObjectOptions, RedisOptions, RocksdbOptions

# Classes of oslo.config by the type of a field.
KINDS: Final[dict[object, type[cfg.Opt]]] = {
    bool: cfg.BoolOpt,
    int: cfg.IntOpt,
    float: cfg.FloatOpt,
    str: cfg.StrOpt,
    tuple[str, ...]: cfg.ListOpt,
}


class Part(Struct, frozen=True):
    """A struct whose fields are options of ``section``. ``prefix`` precedes each field's name in the option's name."""

    section: str
    options: type[Struct]
    prefix: str = ""

    def list_options(self) -> "Iterator[DeclaredOption]":
        """Yield the options of the struct, in order."""
        for field, option in find_declarations(self.options, Option):
            kind = field.type
            if kind not in KINDS:  # a type or None
                kind = next(each for each in get_args(kind) if each in KINDS)
            name = option.name or self.prefix + field.name
            yield DeclaredOption(option.section or self.section, name, field.name, kind, field.default, option, self)

    def read(self, conf: cfg.ConfigOpts) -> Any:
        return self.options(**{each.field: each.read(conf) for each in self.list_options()})


class DeclaredOption(Struct, frozen=True):
    """An option of the server, declared by a field of a struct. ``kind`` is the type of the field without ``None``."""

    section: str
    name: str
    field: str
    kind: object
    default: Any
    option: Option
    part: Part

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        """The minimum and maximum of the option; ``(None, None)`` if a bound is the value of another option."""
        low, high = self.option.low, self.option.high
        return (None, None) if isinstance(low, str) or isinstance(high, str) else (low, high)

    @property
    def label(self) -> str:
        return f"[{self.section}] {self.name}"

    @property
    def is_number(self) -> bool:
        return self.kind in (int, float)

    @property
    def description(self) -> str:
        """The description of the option: the docstring of its field."""
        return read_docstrings(self.part.options)[self.field]

    def to_opt(self, description: str | None = None) -> cfg.Opt:
        """Return the option for oslo.config."""
        option = self.option
        kind = cfg.PortOpt if option == PORT else cfg.MultiStrOpt if option.repeats else KINDS[self.kind]
        more: dict[str, Any] = {"default": _to_list(self.default), "sample_default": _to_list(option.sample)}
        if self.is_number and kind is not cfg.PortOpt:
            more["min"], more["max"] = self.bounds
        elif self.kind is str:
            more |= {"choices": option.choices or None, "regex": option.pattern or None}
        return kind(self.name, mutable=option.reload, secret=option.secret, help=description, **more)

    def read(self, conf: cfg.ConfigOpts) -> Any:
        value = conf[self.name] if self.section == "DEFAULT" else conf[self.section][self.name]
        return tuple(value) if isinstance(value, list) else value


def _to_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


# The parts of the server by the field of ``Settings``, in the order of the sample file.
PARTS: Final = {
    "quota": Part("quota", Quota),
    "general": Part("DEFAULT", sections.GeneralOptions),
    "auth": Part("auth", AuthOptions),
    "share": Part("signed_url", SignedUrlOptions),
    "server": Part("server", sections.ServerOptions),
    "storage": Part("storage", sections.StorageOptions),
    "limits": Part("transport", Limits),
    "expiry": Part("expiry", Expiry),
    "transport": Part("transport", sections.TransportOptions),
    "topics": Part("topics", sections.TopicOptions),
    "log": Part("log", LogOptions),
    "probes": Part("probes", sections.ProbeOptions),
    "metrics": Part("metrics", sections.MetricsOptions),
}
JWT: Final = Part("auth", JwtOptions, "jwt_")
CATALOG: Final = Part("pooling:catalog", sections.CatalogOptions)
FEATURES: Final = {section.name: Part(section.name, section.options) for section in SECTIONS}
# The options of stores that several servers share, by URI scheme.
NETWORKED: Final = {
    **dict.fromkeys(("mongodb", "mongodb+srv"), Part("storage:mongodb", MongodbOptions)),
    **dict.fromkeys(("redis", "rediss", "unix"), Part("storage:redis", RedisOptions)),
}
# URI schemes of stores in an object store.
OBJECT_SCHEMES: Final = ("swift", "s3", "gs", "az")
# The options of all stores by URI scheme.
DRIVERS: Final = {
    **NETWORKED,
    **dict.fromkeys(OBJECT_SCHEMES, Part("storage:object", ObjectOptions)),
    "rocksdb": Part("storage:rocksdb", RocksdbOptions),
}


def _collect_options() -> dict[str, Sequence[DeclaredOption]]:
    found: dict[str, list[DeclaredOption]] = {}
    for part in dict.fromkeys([*PARTS.values(), JWT, CATALOG, *FEATURES.values(), *DRIVERS.values()]):
        for option in part.list_options():
            found.setdefault(option.section, []).append(option)
    return dict(found)


# All options by section.
OPTIONS: Final = _collect_options()


def variable(group: str, option: str) -> str:
    """Return the name of the environment variable that sets the option."""
    return f"OS_{group.upper()}__{option.upper()}"
