"""Generates the types of the client's documents from the API's own description. `make docs` writes them."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fastapi.openapi.utils import get_openapi

import icewright
from icewright.app.web import api

MODULE = Path(icewright.__file__).parent / "client_types.py"
_WIDTH = 119
_STICKY = "\N{NO-BREAK SPACE}"
_HEAD = '''"""The documents of `icewright.client`, as the API describes them; made by `make docs`."""

# fmt: off
from typing import Any, Literal, NotRequired, TypedDict
'''
_SCALARS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}


def text() -> str:
    """Return the module: a type for each schema that an answer of the API has, after those that it names."""
    described = get_openapi(title="Icewright", version=icewright.__version__, routes=api.router.routes)
    schemas: Mapping[str, Any] = described["components"]["schemas"]
    answers = [
        answer
        for methods in described["paths"].values()
        for operation in methods.values()
        for status, answer in operation["responses"].items()
        if status < "400"
    ]
    types: dict[str, str] = {}
    for name in _named(answers):
        _add(name, schemas, types)
    return "\n".join([_HEAD, *types.values(), ""])


def _add(name: str, schemas: Mapping[str, Any], types: dict[str, str]) -> None:
    """Add the type of a schema behind those that it names."""
    schema = schemas[name]
    for other in _named(schema):
        if other not in types:
            _add(other, schemas, types)
    if (fields := schema.get("properties")) is None:
        types[name] = _wrapped(f"{name} = {_type(schema)}")
        return
    required = schema.get("required", ())
    kinds = {key: _type(of) if key in required else f"NotRequired[{_type(of)}]" for key, of in fields.items()}
    whole = ", ".join(f'"{key}": {kind}'.replace(" ", _STICKY) for key, kind in kinds.items())
    types[name] = _wrapped(f'{name} = TypedDict("{name}", {{{whole}}})')


def _wrapped(line: str) -> str:
    """Return a definition on as many lines as it needs, none of which ends within a field."""
    lines = textwrap.wrap(line, _WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace(_STICKY, " ")


def _named(schema: Any) -> Iterator[str]:  # noqa: ANN401 - JSON
    """Yield the names of schemas that one refers to, in order."""
    if isinstance(schema, Mapping):
        if isinstance(reference := schema.get("$ref"), str):
            yield reference.rpartition("/")[2]
        for value in schema.values():
            yield from _named(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _named(value)


def _type(schema: Mapping[str, Any]) -> str:
    match schema:
        case {"$ref": str(reference)}:
            return reference.rpartition("/")[2]
        case {"anyOf": choices}:
            return " | ".join(map(_type, choices))
        case {"const": value}:
            return f"Literal[{json.dumps(value)}]"
        case {"enum": values}:
            return f"Literal[{', '.join(map(json.dumps, values))}]"
        case {"type": "array", "items": items}:
            return f"list[{_type(items)}]"
        case {"type": "object", "additionalProperties": Mapping() as values}:
            return f"dict[str, {_type(values)}]"
        case {"type": "object"}:
            return "dict[str, Any]"
        case {"type": kind} if kind in _SCALARS:
            return _SCALARS[kind]
        case _:
            return "Any"


if __name__ == "__main__":
    MODULE.write_text(text(), encoding="utf-8")
