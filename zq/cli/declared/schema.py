# SPDX-License-Identifier: Apache-2.0
"""The JSON Schema of a declaration file, and error messages for files that violate the schema."""

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from zq.cli.declared.document import Json, join
from zq.client.warnings import did_you_mean
from zq.model import limits as bounds
from zq.model.limits import Limits
from zq.model.pools import MAX_TEXT, MAX_WEIGHT
from zq.model.quotas import BOUNDS
from zq.model.scopes import MAX_SCOPES
from zq.wire import tokens
from zq.wire.metadata import KEYS, KNOWN_KEYS, RETRY_POLICY, build_key_schemas
from zq.wire.subscriptions import MAX_URI

if TYPE_CHECKING:
    from jsonschema import ValidationError

FILE_VERSION: Final = 1
# Maximum number of pools of a flavor.
MAX_POOLS: Final = 1000
OBJECT_SCHEMA: Final[Json] = {"type": "object", "description": "must be an object"}


def _text(max_length: int, description: str, pattern: str = "") -> Json:
    more = {"pattern": pattern} if pattern else {}
    return {"type": "string", "minLength": 1, "maxLength": max_length, "description": description, **more}


def _integer(low: int, high: int) -> Json:
    described = f"must be an integer from {low} to {high}"
    return {"type": "integer", "minimum": low, "maximum": high, "description": described}


def _object(properties: Json, required: Iterable[str] = (), null: bool = False) -> Json:
    more = {"required": [*required]} if required else {}
    return {
        "type": ["object", "null"] if null else "object",
        "properties": properties,
        "additionalProperties": False,
        "description": f"must be an object with {', '.join(properties)}",
        **more,
    }


def _by_name(pattern: str, rule: str, entry: Json) -> Json:
    return {
        "type": "object",
        "patternProperties": {pattern: entry},
        "additionalProperties": False,
        "description": "must be an object with a member for each name; {} = none",
        "names": rule,
    }


def _texts(low: int, high: int, noun: str) -> Json:
    described = f"must be a list of {low} to {high} {noun}"
    return {"type": "array", "items": {"type": "string"}, "minItems": low, "maxItems": high, "description": described}


def _resource(kind: str, limits: Limits) -> Json:
    own = build_key_schemas(limits)
    own["_retry_policy"] = {**RETRY_POLICY, "type": ["object", "null"]}
    properties = {key: own.get(key, {}) for key in KNOWN_KEYS[kind]}
    settings = {
        "type": ["object", "null"],
        "properties": properties,
        # Keys without a leading underscore are custom metadata.
        "patternProperties": {r"^(?!_)[\s\S]*\S": {}},
        "additionalProperties": False,
        "description": "must be an object",
    }
    return _object({"settings": settings}, null=True)


def file_schema(limits: Limits) -> Json:
    """Return the JSON Schema of a declaration file.

    Each ``description`` in the schema is the predicate of an error message, such as "must be an object".
    """
    queue = (
        rf"^{bounds.LONG_QUEUE_NAME.pattern}\Z",
        f"a name must be 1 to {bounds.MAX_NAME} characters from A-Z a-z 0-9 _ - and the dot",
    )
    pool = (
        rf"^[^/{{}}\x00-\x1f]{{1,{MAX_TEXT}}}\Z",
        f"a name must be 1 to {MAX_TEXT} printable characters, without slashes and braces",
    )
    project = (
        rf"^{bounds.PROJECT_ID.pattern}\Z",
        f"a project id must be 1 to {bounds.MAX_PROJECT} printable ASCII characters",
    )
    token = rf"^[^\x00-\x1f]{{1,{tokens.MAX_TEXT}}}\Z", f"a name must be 1 to {tokens.MAX_TEXT} printable characters"
    amounts = {name: _integer(*interval) for name, interval in BOUNDS.items()}
    pools = _texts(0, MAX_POOLS, "names of pools")
    sections: Json = {
        "version": {"type": "integer", "enum": [FILE_VERSION], "description": f"must be {FILE_VERSION}"},
        "quotas": _by_name(*project, _object({"limits": _object(amounts)}, ["limits"])),
        "pools": _by_name(*pool, _pool()),
        "flavors": _by_name(*pool, _object({"pools": pools}, ["pools"])),
        "queues": _by_name(*queue, _resource("queues", limits)),
        "topics": _by_name(*queue, _resource("topics", limits)),
        "subscriptions": {"type": "array", "items": _subscription(), "description": "must be a list; [] = none"},
        "tokens": _by_name(*token, _token()),
    }
    return _object(sections, ["version"])


def _pool() -> Json:
    uri = _text(MAX_TEXT, f"must be the URI of a store, of at most {MAX_TEXT} characters")
    return _object({"uri": uri, "weight": _integer(0, MAX_WEIGHT), "options": OBJECT_SCHEMA}, ["uri", "weight"])


def _subscription() -> Json:
    source = _text(bounds.MAX_LONG_NAME, "must be a name")
    members = {
        "queue": source,
        "topic": source,
        "subscriber": _text(MAX_URI, f"must be a URI of at most {MAX_URI} characters", r"^[A-Za-z+]+:[^\x00-\x20]+\Z"),
        "ttl": _integer(bounds.MIN_TTL, 1 << 53),
        "options": {**OBJECT_SCHEMA, "properties": {"post_headers": {**OBJECT_SCHEMA, "type": ["object", "null"]}}},
    }
    return _object(members, ["subscriber", "ttl"])


def _token() -> Json:
    role = rf"^{tokens.ROLE.pattern}\Z"
    members = {
        "scopes": _texts(1, MAX_SCOPES, "scopes"),
        "roles": _texts(1, tokens.MAX_ROLES, "roles"),
        "days": _integer(1, bounds.MAX_REMEMBERED),
    }
    members["roles"]["items"] = _text(64, "must be 1 to 64 characters from a-z 0-9 _ . : and -", role)
    return _object(members, null=True)


def form_errors(declaration: object, limits: Limits) -> Iterator[str]:
    """Validate a parsed declaration file against the schema. Yield a sentence for each error."""
    # Importing jsonschema takes longer than most commands.
    from jsonschema import Draft4Validator

    found = Draft4Validator(file_schema(limits)).iter_errors(declaration)
    for error in sorted(found, key=lambda error: [str(step) for step in error.absolute_path]):
        yield from _describe(error)


def _describe(error: "ValidationError") -> Iterator[str]:
    path = ""
    for step in error.absolute_path:
        path = f"{path}[{step}]" if isinstance(step, int) else join(path, step)
    schema = error.schema if isinstance(error.schema, dict) else {}
    given = error.instance
    if error.validator == "required" and isinstance(given, dict):
        yield from (f"{join(path, name)} is missing." for name in schema["required"] if name not in given)
    elif error.validator == "additionalProperties" and isinstance(given, dict):
        known = schema.get("properties", {})
        patterns = [*schema.get("patternProperties", {})]
        for name in given:
            if name not in known and not any(re.search(pattern, name) for pattern in patterns):
                yield f"{join(path, name)} {_unknown(name, schema, [*known])}"
    elif "description" in schema:
        yield f"{path or 'The file'} {schema['description']}."
    else:
        yield f"{path}: {error.message[:200]}."


def _unknown(name: str, schema: Json, known: list[str]) -> str:
    if "names" in schema:
        return f"is not valid: {schema['names']}."
    if name in KEYS and KEYS[name][1].refusal:
        return f"is not valid: {KEYS[name][1].refusal}"
    return f"is unknown{did_you_mean(name, known)}"
