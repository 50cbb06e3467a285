"""The model plays over the ground of the cases."""

from tests.cases.conftest import ground

__all__ = ["ground"]
