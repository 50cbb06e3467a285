"""What commands print as JSON is recorded by the paths of its keys, as scripts of users read them."""

from __future__ import annotations

from collections.abc import Iterator


def keys(document: object, prefix: str = "") -> Iterator[str]:
    """Each path of keys in a document; `[]` is any element of a list, and keys that are names of things are `*`."""
    match document:
        case dict():
            for key, value in document.items():
                named = key if key.isidentifier() else "*"
                yield from keys(value, f"{prefix}.{named}")
        case list():
            for value in document:
                yield from keys(value, f"{prefix}[]")
        case _:
            yield prefix.removeprefix(".")
