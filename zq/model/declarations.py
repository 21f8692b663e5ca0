# SPDX-License-Identifier: Apache-2.0
"""Functions that read the ``Annotated`` types and docstrings of struct fields, such as those of options."""

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin

from msgspec import Struct, structs

T = TypeVar("T")


class Declaration(NamedTuple):
    """A struct field of the type ``Annotated[T, …]``: its name, the type ``T``, and its default value."""

    name: str
    type: Any
    default: Any


def find_declarations(struct: type[Struct], kind: type[T]) -> Iterator[tuple[Declaration, T]]:
    """Yield the fields of the struct that have an annotation of type ``kind``, each with this annotation."""
    for field in structs.fields(struct):
        if get_origin(field.type) is Annotated:
            type, *annotations = get_args(field.type)
            for each in annotations:
                if isinstance(each, kind):
                    yield Declaration(field.name, type, field.default), each


@cache
def read_docstrings(options: type[Struct]) -> dict[str, str]:
    """Return the docstrings of a struct's fields by field name, each as one line of Markdown."""
    tree = ast.parse(inspect.getsource(sys.modules[options.__module__]))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == options.__name__)
    return {
        field.target.id: " ".join(text.value.value.split()).replace("``", "`")
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }
