"""An operator for Airflow 3 that runs maintenance, and a sensor that waits until a table is healthy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import BaseOperator, BaseSensorOperator
from airflow.sdk.bases.sensor import PokeReturnValue
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from icewright.integrations.command import CommandFailed, CommandWrong, IcewrightCommand, idle, maintenance


class IcewrightOperator(BaseOperator):
    """Runs `icewright run` on a table, or `icewright cycle` over all; the result is the task's XCom.

    A wrong configuration fails without a retry. With `skip_when_idle`, a task without work is skipped.
    """

    template_fields: Sequence[str] = ("table", "operations", "catalog", "settings", "config")

    def __init__(  # noqa: PLR0913 - an operator's settings are its arguments
        self,
        *,
        table: str | None = None,
        operations: Sequence[str] = (),
        catalog: str | None = None,
        settings: Mapping[str, Any] | None = None,
        dry_run: bool = False,
        partial_fails: bool = True,
        skip_when_idle: bool = False,
        config: str | None = None,
        executable: str = "icewright",
        env: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(**more)
        self.table, self.operations, self.catalog = table, operations, catalog
        self.settings, self.dry_run = dict(settings or {}), dry_run
        self.partial_fails, self.skip_when_idle = partial_fails, skip_when_idle
        self.config, self.executable, self.env = config, executable, dict(env or {})
        self._icewright: IcewrightCommand | None = None

    def execute(self, context: Any) -> Any:  # noqa: ANN401, ARG002 - Airflow's
        """Run the command and return its JSON document."""
        self._icewright = IcewrightCommand(self.executable, self.config, self.env)
        arguments, names = maintenance(self.table, self.operations, self.catalog, self.settings, dry_run=self.dry_run)
        try:
            document = self._icewright(*arguments, names=names, partial_fails=self.partial_fails)
        except CommandWrong as error:
            raise AirflowFailException(str(error)) from error
        except CommandFailed as error:
            raise AirflowException(str(error)) from error
        if self.skip_when_idle and idle(document):
            raise AirflowSkipException("there was nothing to do")
        return document

    def on_kill(self) -> None:
        """End the command of the killed task."""
        if self._icewright is not None:
            self._icewright.stop()


class IcewrightHealthSensor(BaseSensorOperator):
    """Waits until a table's health is at least `at_least`; the health is the task's XCom."""

    template_fields: Sequence[str] = ("table", "config")

    def __init__(
        self,
        *,
        table: str,
        at_least: int = 80,
        config: str | None = None,
        executable: str = "icewright",
        env: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(**more)
        self.table, self.at_least = table, at_least
        self.config, self.executable, self.env = config, executable, dict(env or {})

    def poke(self, context: Any) -> Any:  # noqa: ANN401, ARG002 - Airflow's
        """Return whether the table is healthy now; unknown is not."""
        try:
            document = IcewrightCommand(self.executable, self.config, self.env)("health", names=[self.table])
        except CommandWrong as error:
            raise AirflowFailException(str(error)) from error
        except CommandFailed as error:
            raise AirflowException(str(error)) from error
        health = document["health"]
        return PokeReturnValue(is_done=health is not None and health >= self.at_least, xcom_value=health)
