"""Operators that keep nothing but their id."""

from __future__ import annotations

from typing import Any


class BaseOperator:
    """Takes what every operator takes."""

    def __init__(self, *, task_id: str, **more: Any) -> None:
        self.task_id, self.more = task_id, more


class BaseSensorOperator(BaseOperator):
    """An operator that is asked again and again."""
