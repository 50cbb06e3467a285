"""What a sensor answers."""

from __future__ import annotations

from typing import Any


class PokeReturnValue:
    """Whether it is time, and what to hand on."""

    def __init__(self, is_done: bool, xcom_value: Any = None) -> None:
        self.is_done, self.xcom_value = is_done, xcom_value
