"""Icewright keeps Apache Iceberg tables healthy by itself."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from icewright.library import Icewright

__all__ = ["Icewright", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any attribute of the library
    """Load the library with its first use, as commands and clients need no part of it."""
    if name == "Icewright":
        return import_module("icewright.library").Icewright
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return what a shell completes."""
    return __all__
