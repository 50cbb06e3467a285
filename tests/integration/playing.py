"""How tests play many small histories on Spark: quick queries, and examples that take seconds each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import HealthCheck, Phase, settings

from tests.integration.bench import Bench

# Tiny queries, each of another shape: compiling them takes longer than running them.
_QUICK = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
}


@contextmanager
def quick(bench: Bench) -> Iterator[None]:
    """Spark without what makes large queries fast and tiny ones slow."""
    conf = bench.lake.spark().conf
    before = {name: conf.get(name) for name in _QUICK}
    for name, value in _QUICK.items():
        conf.set(name, value)
    yield
    for name, old in before.items():
        conf.set(name, str(old))


def long_examples(count: int) -> settings:
    """The settings for examples that take seconds: the first failure is shown as it is."""
    return settings(
        max_examples=count,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
