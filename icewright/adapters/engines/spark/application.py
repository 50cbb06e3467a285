"""The interface of a Spark application to its pool, for a local JVM and for a Connect server."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkApplication(Protocol):
    """A Spark application whose sessions are configured with the pool's catalogs."""

    @property
    def session(self) -> SparkSession:
        """Return a session for a caller without a job."""
        ...

    @property
    def app_id(self) -> str:
        """Return the application's id, which Iceberg writes into snapshot summaries as `app-id`."""
        ...

    def alive(self) -> bool:
        """Return whether the application accepts statements."""
        ...

    def marked(self, tag: str) -> AbstractContextManager[SparkSession]:
        """Return a session for the statements of one job; `cancel` and `gb_hours` find them by the tag."""
        ...

    def cancel(self, tag: str) -> None:
        """Cancel the tagged work that runs now. Never raises: a dead application runs nothing."""
        ...

    def quiet(self, tag: str) -> bool:
        """Return whether no tagged task is active; a cancelled task continues for some seconds."""
        ...

    def gb_hours(self, tag: str) -> float | None:
        """Return the memory that tagged tasks held times their run time; None if unknown."""
        ...

    def trouble(self, tag: str) -> str | None:
        """Return why tagged tasks failed; None if none did."""
        ...

    def tasks(self) -> tuple[int, int, int] | None:
        """Return cores, active tasks and pending tasks; None if Spark does not report them."""
        ...

    def stop(self) -> None:
        """Stop or leave the application and free its resources in this process."""
        ...
