"""What a pool needs of a Spark application, whether it runs in a JVM of ours or behind a Connect server."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkApplication(Protocol):
    """One Spark application, whose sessions know the pool's catalogs."""

    @property
    def session(self) -> SparkSession:
        """Return a session for whatever is no job."""
        ...

    @property
    def app_id(self) -> str:
        """As Iceberg writes it into the summaries of snapshots: `app-id`."""
        ...

    def alive(self) -> bool:
        """Return whether it would take a statement now."""
        ...

    def marked(self, tag: str) -> AbstractContextManager[SparkSession]:
        """Return a session for the statements of one job, which `cancel` and `gb_hours` know by the tag."""
        ...

    def cancel(self, tag: str) -> None:
        """Stop what runs under the tag at this moment. Never raises: a dead application runs nothing."""
        ...

    def quiet(self, tag: str) -> bool:
        """Whether no task runs any more that ran under the tag: one that is cancelled goes on for some seconds."""
        ...

    def gb_hours(self, tag: str) -> float | None:
        """Memory held by the tasks that ran under the tag, times the time that they held it. None: not known."""
        ...

    def trouble(self, tag: str) -> str | None:
        """Return why tasks failed that ran under the tag; None when none did."""
        ...

    def tasks(self) -> tuple[int, int, int] | None:
        """Cores, tasks that run, and tasks that wait for one; None where Spark does not tell."""
        ...

    def stop(self) -> None:
        """End it, or leave it; nothing of it stays in this process."""
        ...
