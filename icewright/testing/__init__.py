"""Fakes of the ports, builders of facts, and contract suites, for our tests and for those of extensions.

`icewright.testing.contracts` has the suites that every implementation of a port passes; it needs pytest.
"""

from icewright.testing.branches import MemoryBranches
from icewright.testing.builders import (
    LOCATION,
    NOW,
    REF,
    SCHEMA,
    UUID,
    check_policy,
    facts,
    histogram,
    knobs,
    lineage,
    manifests,
    metadata,
    partition,
    snapshot,
    spec,
)
from icewright.testing.fakes import FixedClock, FunctionEngine, MemoryCatalog
