# SPDX-License-Identifier: Apache-2.0
"""Docstrings of struct fields. Python discards them at run time, so they are read from the source code."""

import ast
import inspect
import sys
from functools import cache
from itertools import pairwise

from msgspec import Struct


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
