"""Suites that every implementation of a port passes. They need pytest; subclass one, and define its fixture.

```python
pytest.register_assert_rewrite("icewright.testing.contracts")  # in conftest.py, before the suites are imported

class TestOurStore(TableStateTests, JobQueueTests, DeletionLedgerTests):
    @pytest.fixture
    def store(self) -> Store:
        return OurStore(...)
```
"""

from icewright.testing.contracts.access import AccessTests, PolicyRulesTests
from icewright.testing.contracts.alerts import AlertStoreTests
from icewright.testing.contracts.catalog import CatalogTests
from icewright.testing.contracts.coordination import (
    BreakersTests,
    CatalogScheduleTests,
    FleetPausesTests,
    LeasesTests,
    LimitSettingsTests,
    ProcessRegistryTests,
)
from icewright.testing.contracts.inbox import EventInboxTests
from icewright.testing.contracts.jobs import JobQueueTests
from icewright.testing.contracts.ledger import DeletionLedgerTests
from icewright.testing.contracts.planning import PlanningStateTests, RunHistoryTests
from icewright.testing.contracts.tables import RegistrationsTests, SnapshotPinsTests, TableStateTests
from icewright.testing.contracts.views import ViewsTests
