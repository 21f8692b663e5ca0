# SPDX-License-Identifier: Apache-2.0
"""Access to declarations: struct fields whose types are annotated with a value, as in ``zq.model.options``."""

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin

from msgspec import Struct, structs

T = TypeVar("T")


class Declaration(NamedTuple):
    """A field: its name, its type without the annotation, and its default."""

    name: str
    type: Any
    default: Any


def find_declarations(struct: type[Struct], kind: type[T]) -> Iterator[tuple[Declaration, T]]:
    """Yield each field of the struct whose type is annotated with a value of type ``kind``, and this value."""
    for field in structs.fields(struct):
        if get_origin(field.type) is Annotated:
            type, *annotations = get_args(field.type)
            for each in annotations:
                if isinstance(each, kind):
                    yield Declaration(field.name, type, field.default), each
