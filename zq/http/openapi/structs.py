# SPDX-License-Identifier: Apache-2.0
"""OpenAPI component schemas, derived from the structs that decode requests and encode responses."""

import inspect
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from zq.http.openapi.operations import Json, reference

# The schema of links to the next page.
LINKS: Final = {"type": "array", "maxItems": 1, "items": reference("schemas", "Link")}
# One entry of the section ``Attributes:`` of a docstring.
_MEMBER: Final = re.compile(r"^ {4}(\w+): (.+(?:\n {5,}.+)*)$", re.MULTILINE)


def request_schemas(*kinds: Any, **named: Any) -> Json:
    """Return the schemas of structs and of all nested structs, by component name.

    The component name of a struct is its class name. ``named`` maps other component names to further structs.
    """
    structs = {kind.__name__: kind for kind in kinds} | named
    references, found = msgspec.json.schema_components(structs.values(), ref_template="{name}")
    names = {made["$ref"]: name for made, name in zip(references, structs, strict=True)}
    for own, schema in found.items():
        title = schema.pop("title")
        names.setdefault(own, title.partition("[")[0])  # without the parameters of a generic struct
        _describe(schema)
    return {names[own]: _renamed(schema, names) for own, schema in found.items()}


def answer_schemas(*kinds: Any, **named: Any) -> Json:
    """Return the schemas of responses, by component name. An optional property may be absent, but is never null."""
    schemas = request_schemas(*kinds, **named)
    for schema in schemas.values():
        for name, member in schema["properties"].items():
            if member.pop("default", ...) is None:
                # A null member is absent.
                [shown] = (kind for kind in member.pop("anyOf") if kind != {"type": "null"})
                schema["properties"][name] = shown | member
    return schemas


def page_schema(member: str, component: str) -> Json:
    """Return the schema of a page: an object with a list of ``component`` objects in its property ``member``."""
    items = {"type": "array", "items": reference("schemas", component)}
    return {"type": "object", "properties": {member: items, "links": LINKS}, "required": [member, "links"]}


def _describe(schema: Json) -> None:
    """Convert the schema's description, which is a struct's docstring, to Markdown.

    The entries of the docstring's section ``Attributes`` become the descriptions of the properties.
    """
    docstring = inspect.cleandoc(schema.pop("description", "")).replace("``", "`")
    text, _, members = docstring.partition("\n\nAttributes:\n")
    if text:
        schema["description"] = " ".join(text.split())
    for name, description in _MEMBER.findall(members):
        schema["properties"][name]["description"] = " ".join(description.split())


def _renamed(schema: Any, names: Mapping[str, str]) -> Any:
    if isinstance(schema, dict):
        if "$ref" in schema:
            return schema | reference("schemas", names[schema["$ref"]])
        return {key: _renamed(value, names) for key, value in schema.items()}
    return [_renamed(value, names) for value in schema] if isinstance(schema, list) else schema
