"""Reads text and YAML files of users: safe types only, and a duplicate key is a fault."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from icewright.core.errors import ConfigError

_MOST_BITS = 1023  # of a whole number: Python writes no longer ones in messages, and no float holds them
_OTHER_BASE = re.compile(r"[-+]?0[0-9_]+|.*:.*")  # numbers that YAML takes for octal, or for hours and minutes


class StrictLoader(yaml.SafeLoader):
    """Loads YAML; a duplicate key is a fault, as its last value would silently win."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: ANN401 - any value
        """Return a value. A malformed number or time is a fault with line and column, too."""
        kind = node.tag.rpartition(":")[2]
        try:
            value = super().construct_object(node, deep)
        # which one PyYAML lets out differs from kind to kind
        except (ValueError, LookupError, AttributeError) as error:
            raise yaml.MarkedYAMLError(
                problem=f"no {kind} that there can be; text stands in quotes", problem_mark=node.start_mark
            ) from error
        if kind in ("int", "float") and _OTHER_BASE.fullmatch(node.value):
            problem = f"{node.value} is {value} in YAML: write the number that is meant, and text in quotes"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        if isinstance(value, int) and value.bit_length() > _MOST_BITS:
            raise yaml.MarkedYAMLError(problem="a number of more than 300 digits", problem_mark=node.start_mark)
        return value


def _mapping(loader: StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys: set[object] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if isinstance(key, bool) or not isinstance(key, str | int | float):
            problem = f"{key!r} cannot be a key; text such as no or on stands in quotes"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
        if key in keys:
            raise yaml.MarkedYAMLError(problem=f"the key {key} stands twice", problem_mark=key_node.start_mark)
        keys.add(key)
    return loader.construct_mapping(node, deep=True)


StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_yaml(path: Path) -> object:
    """Return the content of a YAML file. Raises `ConfigError` with line and column of a fault."""
    try:
        return yaml.load("".join(read_lines(path)), StrictLoader)  # noqa: S506 - a safe loader, made stricter
    except RecursionError as error:
        raise ConfigError([f"{path}: nested too deeply to be read"]) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError([f"{path}: not YAML{where}: {getattr(error, 'problem', None) or error}"]) from error


def read_lines(path: Path) -> Iterator[str]:
    """Yield a text file line by line, however large. Raises `ConfigError` when it cannot be read."""
    try:
        with path.open(encoding="utf-8") as lines:
            yield from lines
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: cannot be read: {getattr(error, 'strerror', error)}"]) from error
