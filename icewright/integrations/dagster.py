"""A resource for Dagster that runs Icewright, and an asset that maintains a table after its upstream assets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster
from pydantic import Field

from icewright.integrations.command import CommandWrong, IcewrightCommand, maintenance


class IcewrightResource(dagster.ConfigurableResource):
    """A Dagster resource that runs the `icewright` command."""

    executable: str = "icewright"
    config_file: str | None = None
    env: dict[str, str] = Field(default_factory=dict)

    def maintain(
        self,
        table: str | None = None,
        operations: Sequence[str] = (),
        settings: Mapping[str, Any] | None = None,
        *,
        dry_run: bool = False,
    ) -> Any:  # noqa: ANN401 - JSON
        """Return the document of `icewright run` for a table, else of `cycle`. A wrong configuration is not retried."""
        arguments, names = maintenance(table, operations, None, settings or {}, dry_run=dry_run)
        return self._run(*arguments, names=names)

    def health(self, table: str) -> Any:  # noqa: ANN401 - JSON
        """Evaluate one table now and return the result."""
        return self._run("health", names=[table])

    def _run(self, *arguments: str, names: Sequence[str]) -> Any:  # noqa: ANN401 - JSON
        try:
            return IcewrightCommand(self.executable, self.config_file, self.env)(*arguments, names=names)
        except CommandWrong as error:
            raise dagster.Failure(str(error), allow_retries=False) from error


def maintained_asset(
    table: str, *, upstream: Sequence[str] = (), operations: Sequence[str] = (), name: str | None = None
) -> dagster.AssetsDefinition:
    """Return an asset that maintains a table after its upstream assets have been materialized."""

    @dagster.asset(
        name=name or f"{table.replace('.', '_')}_maintained",
        deps=list(upstream),
        kinds={"iceberg"},
        description=f"{table}, maintained by Icewright",
    )
    def maintained(icewright: IcewrightResource) -> dagster.MaterializeResult:
        done = icewright.maintain(table, operations)
        metadata = {"state": done["state"], "summary": done["summary"], "job": done["job_id"] or "none"}
        return dagster.MaterializeResult(metadata={f"icewright/{key}": value for key, value in metadata.items()})

    return maintained
