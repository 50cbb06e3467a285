"""Planted faults that a check must name, and random healthy histories in which it must find none."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ValidationError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, TimestampType

from benchmarks.kit.lake import CATALOG, NAMESPACE
from icewright.app.bootstrap import Application
from icewright.app.demo.craft import Craft
from icewright.app.demo.lake import Lake as DemoLake
from icewright.core.integrity import CheckLevel
from icewright.core.layering import parse_settings
from icewright.core.policy import Operation
from icewright.core.table import TableRef
from icewright.flow.detect import detect
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from icewright.flow.restore import restore
from icewright.testing import FixedClock
from tests.cases.test_integrity import DEEPER_FAULTS, FAULTS
from tests.cases.workspace import BY_PART, SCHEMA

STEPS = 8
KNOBS = parse_settings("--set", {"rewrite_manifests.min_manifests": "2", "recovery_points.hourly": "3"})
_SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "part", StringType()),
    NestedField(3, "ratio", DoubleType()),
    NestedField(4, "at", TimestampType()),
    NestedField(5, "n", LongType()),
)
_SPECS = (
    PartitionSpec(),
    PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part")),
    PartitionSpec(PartitionField(5, 1000, IdentityTransform(), "n")),
)


def _no_spark() -> NoReturn:
    raise AssertionError


def named_faults(app: Application, catalog: SqlCatalog, folder: Path) -> Mapping[str, bool]:
    """Plant each kind of fault in a table of its own; whether the check names it, and found none before."""
    lake = DemoLake(catalog, _no_spark, folder, app.runtime.clock.now(), 7)
    found = {}
    for number, fault in enumerate([*FAULTS, *DEEPER_FAULTS]):
        craft = Craft(lake, f"{NAMESPACE}.planted{number}", SCHEMA, BY_PART)
        for day in range(4):
            file = craft.data({"id": [day], "part": [f"p{day}"]}, part=f"p{day}")
            craft.commit(app.runtime.clock.now(), [file])
        craft.publish()

        def kinds(name: str = craft.name) -> set[str]:
            ref = TableRef(CATALOG, (NAMESPACE,), name.partition(".")[2])
            return {str(one.kind) for one in app.runtime.engine.check(ref, CheckLevel.FOOTERS).faults}

        healthy = not kinds()
        if fault in FAULTS:
            pattern, harm, kind, _ = FAULTS[fault]
            harm(min(craft.folder.glob(pattern)))
        else:
            _, tamper, kind = DEEPER_FAULTS[fault]
            tamper(craft.folder)
        found[fault] = healthy and str(kind) in kinds()
    return found


@dataclass
class History:
    """A table to which PyIceberg and Icewright do things at random."""

    app: Application
    catalog: SqlCatalog
    name: str
    draw: random.Random
    done: Counter[str]  # what changed the table

    def __post_init__(self) -> None:
        version = self.draw.choice(("1", "2", "2"))
        self.catalog.create_table(
            (NAMESPACE, self.name),
            _SCHEMA,
            partition_spec=self.draw.choice(_SPECS),
            properties={"format-version": version},
        )
        detect(self.app.runtime, [CATALOG])

    @property
    def ref(self) -> TableRef:
        """The table's name."""
        return TableRef(CATALOG, (NAMESPACE,), self.name)

    @property
    def table(self) -> Table:
        """The table as it is now."""
        return self.catalog.load_table((NAMESPACE, self.name))

    def play(self) -> int:
        """Do things; how many faults the check finds afterwards."""
        acts: list[Callable[[], object]] = [
            *[self._append] * 4,
            *[self._delete] * 2,
            self._overwrite,
            self._tag,
            self._on_branch,
            self._column,
            self._spec,
            self._roll_back,
            self._upgrade,
            self._manifests,
            self._restore,
        ]
        self._append()
        last = self._points, self._append  # two hours later, so that nothing comes before it
        for act in (*self.draw.choices(acts, k=STEPS), self.draw.choice(last)):
            with suppress(ValidationError, ValueError, NotImplementedError):  # PyIceberg cannot do it there
                before = self.table.metadata_location
                act()
                self.done[act.__name__] += self.table.metadata_location != before
        return len(self.app.runtime.engine.check(self.ref, CheckLevel.FOOTERS).faults)

    def _rows(self) -> pa.Table:
        schema, count = self.table.schema().as_arrow(), self.draw.randint(1, 9)
        values = {
            "id": [self.draw.randrange(1000) for _ in range(count)],
            "part": [self.draw.choice(("a", "b c", "é", None, "x/y=%", "z" * 40)) for _ in range(count)],
            "ratio": [self.draw.choice((0.5, float("nan"), -0.0, None)) for _ in range(count)],
            "n": [self.draw.choice((0, 1, None)) for _ in range(count)],
            "at": [self.draw.choice((None, -1, 10**15)) for _ in range(count)],
        }
        return pa.table([pa.array(values.get(one.name, [None] * count), one.type) for one in schema], schema=schema)

    def _append(self) -> None:
        self.table.append(self._rows())

    def _delete(self) -> None:
        self.table.delete(self.draw.choice(("id < 300", "part = 'a'", "part is null", "id > 900")))

    def _overwrite(self) -> None:
        self.table.overwrite(self._rows(), overwrite_filter="id > 500")

    def _tag(self) -> None:
        chosen = self.draw.choice(self.table.snapshots()).snapshot_id
        self.table.manage_snapshots().create_tag(chosen, f"tag{self.draw.random()}").commit()

    def _on_branch(self) -> None:
        table, name = self.table, f"branch{self.draw.random()}"
        table.manage_snapshots().create_branch(table.metadata.current_snapshot_id or 0, name).commit()
        self.table.append(self._rows(), branch=name)

    def _column(self) -> None:
        with self.table.update_schema() as schema:
            schema.add_column(f"column{self.draw.randrange(10**6)}", self.draw.choice((StringType(), LongType())))

    def _spec(self) -> None:
        with self.table.update_spec() as spec:
            spec.add_field(self.draw.choice(("part", "n")), IdentityTransform(), f"more{self.draw.randrange(10**6)}")

    def _roll_back(self) -> None:
        self.table.manage_snapshots().rollback_to_snapshot(self.table.snapshots()[0].snapshot_id).commit()

    def _upgrade(self) -> None:
        with self.table.transaction() as transaction:
            transaction.upgrade_table_version(2)

    def _manifests(self) -> None:
        execute(self.app.runtime, Request(self.ref, (Operation.REWRITE_MANIFESTS,), manual=True))

    def _points(self) -> None:
        clock = FixedClock(self.app.runtime.clock.now() + timedelta(hours=2))
        execute(replace(self.app.runtime, clock=clock), Request(self.ref, (Operation.RECOVERY_POINTS,), manual=True))

    def _restore(self) -> None:
        restore(self.app.runtime, [self.ref], str(self.draw.choice(self.table.snapshots()).snapshot_id))
