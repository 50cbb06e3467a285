"""The documentation is part of the change: what the code has, the pages name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from icewright.app import sections
from icewright.core import cost, kernel
from icewright.core.policy import Operation
from icewright.core.simulation import work
from tools.client_types import MODULE
from tools.client_types import text as client_types
from tools.reference import pages

DOCS = Path(__file__).parent.parent / "docs"
SECTIONS: dict[str, type[BaseModel]] = {
    "catalogs.*": sections.CatalogSection,
    "pools.*": sections.PoolSection,
    "detect": sections.DetectSection,
    "limits": sections.LimitsSection,
    "cache": sections.CacheSection,
    "reading": sections.ReadingSection,
    "archive": sections.ArchiveSection,
    "alerts": sections.AlertsSection,
    "log": sections.LogSection,
    "server": sections.ServerSection,
    "events": sections.EventsSection,
    "auth": sections.AuthSection,
    "auth.oidc": sections.OidcSection,
    "policy_from": sections.PolicyFromSection,
    "openlineage": sections.OpenLineageSection,
    "opentelemetry": sections.OpenTelemetrySection,
}


def test_reference_pages_are_as_the_code_makes_them() -> None:
    """Knobs, metrics, errors and commands are in the reference as the code has them; `make docs` writes the pages."""
    made = pages()
    assert {name: (DOCS / "reference" / name).read_text(encoding="utf-8") for name in made} == made


def test_the_client_has_the_types_of_the_api() -> None:
    """As OpenAPI describes its answers; `make docs` writes them."""
    assert MODULE.read_text(encoding="utf-8") == client_types()


@pytest.mark.parametrize("prefix", SECTIONS)
def test_configuration_page_names_every_key(prefix: str) -> None:
    """Every key of the configuration has its row."""
    text = (DOCS / "reference" / "configuration.md").read_text(encoding="utf-8")
    fields = SECTIONS[prefix].model_fields
    missing = [key for name, field in fields.items() if f"`{prefix}.{(key := field.alias or name)}`" not in text]
    assert not missing


def test_simulation_page_says_what_work_takes() -> None:
    """The page has the numbers that simulations reckon with."""
    text = " ".join((DOCS / "how-to" / "simulate.md").read_text(encoding="utf-8").split())
    orphans, idle = work.spark_orphans, work.IDLE_SECONDS
    said = [
        *(f"{r.call:g} s, {r.file:g} s a file and 1 s for each {r.mb_per_second:g} MB" for r in cost.REWRITES.values()),
        *(
            f"{of(0):g} s and {of(1) - of(0):.2g} s a {one}"
            for one, of in (("manifest", work.spark_manifests), ("snapshot", work.spark_expiry))
        ),
        f"{orphans(0):g} s and 1 s for each {1 / (orphans(1) - orphans(0)):,.0f} files",
        f"{cost.SERVICE_JOB_SECONDS:g} s and 1 s for each {cost.SERVICE_FILES_PER_SECOND:,.0f} files",
        f"Spark and Arrow hold {cost.SPARK_MEMORY_GB:g} GB, in-service work {cost.SERVICE_MEMORY_GB:g} GB",
        f"{idle[Operation.COMPACT]:g} s for data files, {idle[Operation.REWRITE_MANIFESTS]:g} s for manifests",
        f"{idle[Operation.EXPIRE_SNAPSHOTS]:g} s for snapshots, {idle[Operation.REMOVE_ORPHANS]:g} s for orphans",
    ]
    assert [one for one in said if one not in text] == []


def test_each_reason_to_leave_rows_to_spark_is_documented() -> None:
    """The table of the page on compaction is made of all limits that the code has."""
    assert {limit for limit in vars(kernel).values() if isinstance(limit, kernel.ArrowLimit)} == set(kernel.LIMITS)


def test_links_between_pages_lead_somewhere() -> None:
    """No page links to a page that is not there."""
    broken = [
        f"{page.relative_to(DOCS)} -> {link}"
        for page in DOCS.rglob("*.md")
        for link in re.findall(r"\]\(([^)#]+\.md)\)", page.read_text(encoding="utf-8"))
        if not (page.parent / link).is_file()
    ]
    assert not broken


def test_rows_of_tables_are_whole() -> None:
    """Each has as many cells as the row above, as a paragraph in a cell, or a bar, would end or widen the table."""
    broken = []
    for page in DOCS.rglob("*.md"):
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
            rows = table.splitlines()
            cells = {len(re.findall(r"(?<!\\)\|", row)) if row.endswith("|") else 0 for row in rows}
            broken += [f"{page.relative_to(DOCS)}: {rows[0]}"] if len(cells) > 1 else []
    assert not broken


def test_each_promise_of_safety_names_tests_that_exist() -> None:
    """Each row of promises names one at least, and each test that the page names is there."""
    page = (DOCS / "explanation" / "safety.md").read_text(encoding="utf-8")
    tests = {path: path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("test_*.py")}
    named = re.findall(r"`((?:\w+/)*test_\w+\.py)?(?:::)?(test_\w+)?`", page)
    missing = [
        (file, function)
        for file, function in named
        if not any(path.as_posix().endswith(f"/{file}") and f"def {function}" in text for path, text in tests.items())
        if not any(not file and f"def {function}(" in text for text in tests.values())
    ]
    assert not missing
    for table in re.findall(r"\| promise \| held by \|\n\|---\|---\|\n((?:\|.*\n)+)", page):
        assert [row for row in table.splitlines() if ".py" not in row and "`test_" not in row] == []
