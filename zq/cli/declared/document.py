# SPDX-License-Identifier: Apache-2.0
"""A YAML parser for values that JSON can represent. Unlike PyYAML, the parser rejects repeated keys."""

from math import isfinite
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from zq.model.limits import MAX_NESTING
from zq.wire.numbers import MAX_BODY_NUMBER

if TYPE_CHECKING:
    import yaml

Json: TypeAlias = dict[str, Any]
# Maximum size of a file in bytes.
MAX_BYTES: Final = 4 << 20
# Maximum number of values in a file, with aliases expanded.
MAX_VALUES: Final = 200_000
TAG: Final = "tag:yaml.org,2002:"
# The types of values that JSON can represent, by the kind of the YAML node.
JSON_TYPES: Final = {
    "mapping": ("map",),
    "sequence": ("seq",),
    "scalar": ("str", "null", "bool", "int", "float"),
}
MERGE: Final = f"{TAG}merge"


class FileErrors(Exception):
    """An invalid declaration file, with a sentence for each error."""

    def __init__(self, sentences: list[str]) -> None:
        super().__init__(" ".join(sentences))
        self.sentences = sentences


def read_yaml(content: bytes) -> object:
    """Parse a YAML document and return its value. Raises ``FileErrors`` if the document is not valid."""
    import yaml

    if len(content) > MAX_BYTES:
        raise FileErrors([f"The file must be at most {MAX_BYTES} bytes; it is {len(content)}."])
    make = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        loader = make(content)
        try:
            reader = YamlReader(loader)
            value = reader.read(loader.get_single_node(), "", 0)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise FileErrors([_syntax_error(error)]) from error
    except RecursionError as error:
        raise FileErrors([f"The file must be nested at most {MAX_NESTING} levels deep."]) from error
    if reader.errors:
        raise FileErrors(reader.errors)
    return value


class YamlReader:
    """A converter of YAML nodes to values. ``errors`` has a sentence for each value that is not valid."""

    def __init__(self, loader: Any) -> None:
        self.errors: list[str] = []
        self._loader = loader
        self._count = 0
        self._checked: set[int] = set()

    def read(self, node: Any, path: str, depth: int) -> Any:
        """Return a YAML node's value. Append a sentence to ``errors`` for each value that is not valid.

        Raises ``FileErrors`` if the file has too many values, or ``RecursionError`` if values are nested too deeply.

        Args:
            path: The dotted path of the node in the file, for error messages.
            depth: The nesting depth of the node.
        """
        if node is None:
            return None
        self._count += 1
        if self._count > MAX_VALUES:
            raise FileErrors([f"The file must have at most {MAX_VALUES} values, with aliases expanded."])
        if depth > MAX_NESTING:
            raise RecursionError
        name = node.tag.removeprefix(TAG)
        if name not in JSON_TYPES[node.id]:
            reason = (
                f"is not a valid {name}."
                if any(name in names for names in JSON_TYPES.values())
                else f"has the YAML type {name}, which JSON does not have: quote it."
            )
            self.errors.append(f"{path or 'The file'} {reason}")
            return None
        if node.id == "mapping":
            return self._mapping(node, path, depth)
        if node.id == "sequence":
            return [self.read(child, f"{path}[{index}]", depth + 1) for index, child in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: Any, path: str, depth: int) -> dict[str, Any]:
        if id(node) not in self._checked:  # the merge keys of an aliased node are already resolved
            self._checked.add(id(node))
            self._check_keys(node, path)
            self._loader.flatten_mapping(node)
        return {
            key.value: self.read(value, join(path, key.value), depth + 1)
            for key, value in node.value
            if isinstance(key.value, str)
        }

    def _check_keys(self, node: Any, path: str) -> None:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if key.tag == MERGE:
                continue
            if key.tag != f"{TAG}str" or key.id != "scalar":
                self.errors.append(f"{path or 'The file'} has a key in line {line} that is not text: quote it.")
            elif key.value in lines:
                where = f"in lines {lines[key.value]} and {line}"
                self.errors.append(f"{join(path, key.value)} is declared twice, {where}.")
            elif not _is_text(key.value):
                self.errors.append(f"{path or 'The file'} has a key in line {line} that is not Unicode text.")
            lines.setdefault(str(key.value), line)

    def _scalar(self, node: Any, path: str) -> Any:
        try:
            value = self._loader.construct_object(node)
        except (ValueError, LookupError, ArithmeticError):
            value = None
            self.errors.append(f"{path or 'The file'} is not a valid {node.tag.removeprefix(TAG)}.")
        if isinstance(value, int) and not -MAX_BODY_NUMBER - 1 <= value <= MAX_BODY_NUMBER:
            self.errors.append(f"{path} must fit in a signed 64-bit integer.")
        if isinstance(value, float) and not isfinite(value):
            self.errors.append(f"{path} must be a finite number.")
        if isinstance(value, str) and not _is_text(value):
            self.errors.append(f"{path} must be Unicode text.")
        return value


def join(path: str, key: str) -> str:
    """Append a key to the dotted path of its parent."""
    return f"{path}.{key}" if path else key


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _syntax_error(error: "yaml.YAMLError") -> str:
    mark = getattr(error, "problem_mark", None)
    where = f"Line {mark.line + 1}, column {mark.column + 1}" if mark else "The file"
    reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "invalid content"
    return f"{where} is not valid YAML: {reason}."
