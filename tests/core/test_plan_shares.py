"""Namespaces share slots and budgets: each has its own first, and what others leave after that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from icewright.core.capacity import Active, Candidate, CatalogLimits, DueOperation, Limits, PoolLimits, Usage
from icewright.core.plan import MaintenancePlan, make_plan
from icewright.core.policy import Operation
from icewright.core.table import TableRef
from icewright.testing import NOW

COMPACT = Operation.COMPACT
HALF_A_DAY = timedelta(hours=12)
ML, BI = ("lake", "ml"), ("lake", "bi")


def due(name: str, benefit: float = 10, cost: float = 1, days: int = 0) -> Candidate:
    """A table such as `ml.a` whose compaction is due."""
    namespace, _, table = name.rpartition(".")
    due_operation = DueOperation(benefit, cost, "due", NOW - timedelta(days=days))
    return Candidate(TableRef("lake", tuple(namespace.split(".")), table), name, {COMPACT: due_operation})


def begun(plan: MaintenancePlan) -> list[str]:
    """The tables whose jobs begin, in order."""
    return [".".join(job.ref.parts[1:]) for job in plan.jobs]


RICH = [due(f"ml.{letter}", benefit=100) for letter in "abcd"]


@pytest.mark.parametrize(
    ("slots", "candidates", "expected"),
    [
        pytest.param(2, [*RICH, due("bi.x")], ["ml.a", "bi.x"], id="a poorer namespace has its own slot"),
        pytest.param(2, RICH, ["ml.a", "ml.b"], id="nobody else waits"),
        pytest.param(3, [*RICH, due("bi.x")], ["ml.a", "ml.b", "bi.x"], id="what is left goes to the best"),
        pytest.param(2, [*RICH, due("other.x")], ["ml.a", "other.x"], id="a namespace without a share has no bound"),
        pytest.param(2, [*RICH, due("bi.deep.x")], ["ml.a", "bi.deep.x"], id="namespaces below belong to it"),
        pytest.param(2, [due("ml.old", days=3), *RICH, due("bi.x")], ["ml.old", "bi.x"], id="overdue within its share"),
    ],
)
def test_slots(slots: int, candidates: Sequence[Candidate], expected: list[str]) -> None:
    """A namespace begins no more jobs than its share while others have work, and as many as there is room for else."""
    limits = Limits(slots, namespaces={ML: CatalogLimits(1), BI: CatalogLimits(1)})
    assert begun(make_plan(candidates, limits, NOW)) == expected


@pytest.mark.parametrize(
    ("slots", "others", "expected"),
    [
        pytest.param(8, 1, ["ml.g", "x.t0"], id="another catalog waits"),
        pytest.param(8, 0, ["ml.g", "ml.h"], id="nobody else waits"),
        pytest.param(9, 1, ["ml.g", "ml.h", "x.t0"], id="what is left goes to the best"),
        pytest.param(8, 9, ["x.t0", "x.t1"], id="many others wait"),
        pytest.param(6, 1, [], id="no slot is free"),
    ],
)
def test_a_catalog_whose_jobs_take_long_leaves_slots_to_others(slots: int, others: int, expected: list[str]) -> None:
    """Six jobs of one run, and take long: however much its tables are worth, a quarter of the slots is for others."""
    usage = Usage(tuple(Active(due(f"ml.{letter}").ref, "default", (COMPACT,), on_pool=False) for letter in "abcdef"))
    poor = [replace(due("x.y"), ref=TableRef("pond", ("x",), f"t{number}")) for number in range(others)]
    plan = make_plan([due("ml.g", benefit=100), due("ml.h", benefit=100), *poor], Limits(slots), NOW, usage)
    assert sorted(begun(plan)) == expected
    assert {deferred.reason for deferred in plan.deferred} <= {f"global limit ({slots}) reached"}


def test_what_waits_for_another_share_says_so() -> None:
    """A running job takes the share; the slot goes to another namespace, and the reason names the limit."""
    limits = Limits(2, namespaces={ML: CatalogLimits(1)}, pools={"default": PoolLimits(9)})
    usage = Usage((Active(RICH[0].ref, "default", (COMPACT,), on_pool=False),))
    plan = make_plan([*RICH[1:], due("bi.x")], limits, NOW, usage)
    assert begun(plan) == ["bi.x"]
    assert {d.reason for d in plan.deferred} == {"global limit (2) reached"}


def test_an_overdue_table_borrows_too() -> None:
    """What has waited too long does not wait for its own share while slots are free."""
    limits = Limits(3, namespaces={ML: CatalogLimits(1)})
    usage = Usage((Active(RICH[0].ref, "default", (COMPACT,), on_pool=False),))
    plan = make_plan([due("ml.old", days=3)], limits, NOW, usage)
    assert begun(plan) == ["ml.old"]


@pytest.mark.parametrize(
    ("spent", "cost", "begins"),
    [
        pytest.param({}, 3, True, id="first of the day"),
        pytest.param({ML: 3}, 1, True, id="within its own"),
        pytest.param({ML: 4}, 1, True, id="others have left 5 of the 6 until noon"),
        pytest.param({ML: 4}, 5, False, id="more than they have left"),
        pytest.param({ML: 4, BI: 4}, 1, False, id="they have left nothing"),
        pytest.param({ML: 8}, 1, False, id="it has borrowed all"),
    ],
)
def test_budgets(spent: Mapping[tuple[str, ...], float], cost: float, begins: bool) -> None:
    """Beyond its budget a namespace spends only what all have left of theirs for the part of the day that is over."""
    limits = Limits(9, namespaces={ML: CatalogLimits(None, 4), BI: CatalogLimits(None, 12)})
    assert NOW.hour == HALF_A_DAY // timedelta(hours=1)
    plan = make_plan([due("ml.a", cost=cost)], limits, NOW, Usage(spent_by_namespace=spent))
    assert begun(plan) == (["ml.a"] if begins else [])
    refused = "the budget of namespace lake.ml (4 GB-hours a day) has no room until 00:00 UTC"
    assert [d.reason for d in plan.deferred] == ([] if begins else [refused])


def test_the_most_specific_pattern_applies() -> None:
    """More parts win over fewer, and fewer wildcards over more; all that one pattern names have one share."""
    shares = {("lake", "*"): CatalogLimits(3), ("lake", "ml"): CatalogLimits(2), ("lake", "ml", "x"): CatalogLimits(1)}
    waiting = [due("other.a"), *(due(f"{name}.{n}") for name in ("ml.x", "ml", "bi") for n in range(4))]
    jobs = begun(make_plan(waiting, Limits(6, namespaces=shares), NOW))
    assert sorted(name.rpartition(".")[0] for name in jobs) == ["bi"] * 3 + ["ml"] * 2 + ["ml.x"]
