"""A Hive metastore with what stands around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hive_metastore.ttypes import ShowLocksRequest, UnlockRequest
from pyiceberg.catalog.hive import HiveCatalog as PyIcebergCatalog
from thrift.transport.TTransport import TTransportException

from icewright.adapters.catalogs.hive import HiveCatalog
from icewright.adapters.catalogs.hive_client import HiveClient
from icewright.adapters.catalogs.translate import hive_catalog
from icewright.adapters.files.local import LocalStorage
from icewright.core.errors import CatalogUnavailable
from tests.contracts.bench import Bench


@dataclass(frozen=True)
class LosingHive(HiveClient):
    """A client whose commits end without an answer, as `Losing` has it."""

    landing: bool = True
    afterwards: Callable[[], None] = lambda: None
    dead: bool = False
    lost: list[str] = field(default_factory=list)

    def once(self, question: Callable[[Any], Any]) -> Any:
        """An answer, unless the question is about a commit."""
        if self.dead and self.lost:
            raise CatalogUnavailable("made up")
        return super().once(lambda hive: question(_Deaf(hive, self)))


@dataclass
class _Deaf:
    """Thrift's client, which does not hear what becomes of a commit."""

    hive: Any
    how: LosingHive

    def __getattr__(self, name: str) -> Any:
        return getattr(self.hive, name)

    def alter_table_with_environment_context(self, *request: Any) -> None:
        """Nobody hears what became of it."""
        if self.how.landing:
            self.hive.alter_table_with_environment_context(*request)
        self.how.lost.append("commit")
        self.how.afterwards()
        raise TTransportException(TTransportException.END_OF_FILE, "TSocket read 0 bytes")


@dataclass
class HiveBench(Bench):
    """The bench over the metastore at `uri`."""

    rounds: ClassVar[int] = 1

    def __post_init__(self) -> None:
        self.hive = hive_catalog(self.name, {"uri": self.uri, "warehouse": f"file://{self.warehouse}"})
        self.client = self.hive.pyiceberg_properties()
        self.iceberg: Any = PyIcebergCatalog(self.name, **self.client)
        with self.iceberg._client as hive:  # one metastore serves all tests
            for database in set(hive.get_all_databases()) - {"default"}:
                hive.drop_database(database, False, True)
        self.unlock()
        self.catalog = self.open()

    def open(self) -> HiveCatalog:
        """Another client of the same catalog."""
        return HiveCatalog(self.hive, LocalStorage(), self.clock)

    def lose(self, **how: Any) -> None:
        """From now on replies to commits are lost; see `Losing`."""
        meddle = how.pop("afterwards", lambda: None)

        def afterwards() -> None:
            self.unlock()  # as a metastore does with a lock that nobody renewed
            meddle()

        self.catalog._client = LosingHive(self.hive, self.clock, afterwards=afterwards, **how)

    def close(self) -> None:
        """Nothing is held."""

    def locks(self) -> list[int]:
        """The locks that are held or waited for."""
        with self.iceberg._client as hive:
            return [lock.lockid for lock in hive.show_locks(ShowLocksRequest()).locks]

    def unlock(self, *numbers: int) -> None:
        """Take locks away, all if none is named."""
        for number in numbers or self.locks():
            with self.iceberg._client as hive:
                hive.unlock(UnlockRequest(lockid=number))

    def parameters(self, namespace: str, name: str) -> dict[str, str]:
        """What the metastore says of a table."""
        with self.iceberg._client as hive:
            found: dict[str, str] = hive.get_table(namespace, name).parameters
        return found

    def rows(self) -> dict[tuple[str, str], tuple[str, str | None]]:
        """The pointers in the metastore."""
        with self.iceberg._client as hive:
            names = [(space, name) for space in hive.get_all_databases() for name in hive.get_all_tables(space)]
        found = {name: self.parameters(*name) for name in names}
        return {name: (p["metadata_location"], p.get("previous_metadata_location")) for name, p in found.items()}
