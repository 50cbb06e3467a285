"""Mutation tests of the modules that decide deletions and commits: `make mutants`.

mutmut writes the mutants, mypy takes those that `make lint` would never let pass, and each of the others meets the
tests of its module. The survivors are compared with `tests/mutants/accepted.toml`, where each stands with the reason
why no test needs to notice it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from mutmut import __main__ as mutmut
from mutmut.configuration import config
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.stats import print_stats, status_by_exit_code
from mutmut.ui.terminal import print_status
from mutmut.utils.format_utils import orig_function_and_class_names_from_key

from tools import mutation_operators
from tools.mutation_runner import Runner

ACCEPTED = Path("tests/mutants/accepted.toml")
WORKERS = 2
MYPY = (sys.executable, "-m", "mypy", "--output", "json", "--disable-error-code", "unused-ignore")
TYPES, SURVIVED = "caught by type check", "survived"
COLUMNS = (TYPES, "killed", "timeout", SURVIVED)

_EXPIRING = "tests/adapters/test_expire_in_service.py"
_OTHERS = (
    *("tests/cases/test_open_world.py", "tests/cases/test_neighbours.py", "tests/cases/test_two_catalogs.py"),
    *("tests/cases/test_gone_catalogs.py", "tests/cases/test_other_formats.py"),
)
_COMMITS = ("tests/contracts/test_catalog_commit.py", "tests/contracts/test_catalog_races.py")
_SERVICE = "adapters/engines/service"
MODULES: Mapping[str, tuple[str, ...]] = {  # each with a small set of fast tests that notices what goes wrong in it
    "core/ancestry.py": ("tests/core/test_retention.py", "tests/core/test_compute_statistics.py"),
    "core/retention.py": (
        "tests/core/test_retention.py",
        "tests/core/test_retention_model.py",
        "tests/core/test_writer_state.py",
    ),
    "core/verify.py": ("tests/core/test_verify.py",),
    "core/vacuum.py": ("tests/core/test_vacuum.py",),
    "core/paths.py": ("tests/core/test_paths.py", "tests/core/test_places.py", "tests/core/test_allowlist.py"),
    "core/places.py": ("tests/core/test_places.py",),
    "core/guardrails.py": ("tests/core/test_guardrails.py", "tests/core/test_layering.py"),
    "core/allowlist.py": ("tests/core/test_allowlist.py",),
    "core/recovery.py": ("tests/core/test_recovery_points.py", "tests/cases/test_recovery_points.py"),
    "core/restore.py": ("tests/core/test_restore.py",),
    "core/operations/expire_snapshots.py": (
        "tests/core/test_expire_snapshots.py",
        "tests/core/test_writer_state.py",
        "tests/core/test_readers.py",
    ),
    "core/operations/remove_orphans.py": ("tests/core/test_remove_orphans.py",),
    "adapters/files/buckets.py": ("tests/adapters/test_stores.py",),
    f"{_SERVICE}/reachable.py": ("tests/adapters/test_reachable.py", "tests/adapters/test_proof.py", _EXPIRING),
    f"{_SERVICE}/listing.py": (
        "tests/adapters/test_listing.py",
        "tests/adapters/test_proof.py",
        "tests/adapters/test_remove_orphans_in_service.py",
        "tests/cases/test_orphan_paths.py",
    ),
    f"{_SERVICE}/replacing.py": ("tests/adapters/test_replacing.py",),
    f"{_SERVICE}/successors.py": ("tests/adapters/test_successors.py",),
    f"{_SERVICE}/proof.py": ("tests/adapters/test_proof.py",),
    f"{_SERVICE}/guard.py": (
        "tests/adapters/test_guard.py",
        "tests/adapters/test_proof.py",
        "tests/adapters/test_sharing.py",
        *_OTHERS,
        "tests/cases/test_elsewhere.py",
        "tests/cases/test_refusals.py",
        "tests/cases/test_orphan_doubts.py",
        "tests/cases/test_attack.py",
    ),
    f"{_SERVICE}/registry.py": ("tests/adapters/test_registry.py",),
    f"{_SERVICE}/surroundings.py": ("tests/adapters/test_registry.py", "tests/adapters/test_guard.py"),
    f"{_SERVICE}/deletion.py": ("tests/adapters/test_deletion.py", "tests/adapters/test_proof.py"),
    f"{_SERVICE}/doubts.py": (
        "tests/adapters/test_doubts.py",
        "tests/cases/test_orphan_doubts.py",
        "tests/cases/test_orphan_ages.py",
        "tests/cases/test_refusals.py",
    ),
    f"{_SERVICE}/remove_orphans.py": ("tests/adapters/test_remove_orphans_in_service.py",),
    f"{_SERVICE}/expire_snapshots.py": (
        _EXPIRING,
        "tests/cases/test_expiry.py::test_an_expiry_asks_store_and_catalog_no_more_often_than_it_has_to",
    ),
    f"{_SERVICE}/recovery_points.py": ("tests/cases/test_recovery_points.py",),
    f"{_SERVICE}/other_formats.py": ("tests/cases/test_other_formats.py",),
    f"{_SERVICE}/vacuum.py": ("tests/adapters/test_vacuum.py",),
    f"{_SERVICE}/nessie_live.py": ("tests/adapters/test_vacuum.py",),
    f"{_SERVICE}/replied.py": ("tests/adapters/test_replied.py",),
    "flow/restore.py": (
        *("tests/cases/test_restore.py", "tests/cases/test_recovery_points.py"),
        "tests/web/test_recovery.py",
    ),
    "flow/undo.py": (
        "tests/cases/test_undo.py",
        "tests/cases/test_undo_races.py",
        "tests/cases/test_undo_crashes.py",
    ),
    "adapters/store/pins.py": ("tests/contracts/test_store.py",),
    "adapters/store/ledger.py": ("tests/contracts/test_store.py", "tests/contracts/test_undo_store.py"),
    "adapters/catalogs/staging.py": (
        "tests/adapters/test_staging.py",
        "tests/adapters/test_metadata.py",
        "tests/contracts/test_catalog_restore.py",
    ),
    "adapters/catalogs/sql.py": (
        *("tests/contracts/test_catalog.py", "tests/contracts/test_catalog_faults.py"),
        *("tests/contracts/test_catalog_neighbours.py", "tests/contracts/test_catalog_restore.py", *_COMMITS),
    ),
    "adapters/metadata/document.py": (
        *("tests/adapters/test_metadata.py", "tests/adapters/test_changes.py", "tests/adapters/test_read_limits.py"),
        "tests/adapters/test_successors.py",
    ),
    "adapters/metadata/changes.py": ("tests/adapters/test_metadata.py", "tests/adapters/test_changes.py"),
}


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """A mutant by what it changes: the function, the lines as they were and as they are, wherever they stand."""

    function: str
    was: str
    becomes: str

    def __str__(self) -> str:
        """Return the form in which the list of accepted mutants has it."""
        was, becomes = (f"'''{lines}'''" for lines in (self.was, self.becomes))
        return f'[[accepted]]\nfunction = "{self.function}"\nwas = {was}\nbecomes = {becomes}\nreason = ""\n'


def main() -> int:
    """Test the mutants of all modules, or of some; 0 when the survivors are exactly those that are accepted."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("modules", nargs="*", help="paths that begin like this, such as icewright/core; all by default")
    parser.add_argument("--again", action="store_true", help="test only what survived the last run of these modules")
    parser.add_argument("--resume", action="store_true", help="go on with the last run, which was stopped")
    parser.add_argument("--report", action="store_true", help="test nothing: report the last run")
    options = parser.parse_args()
    prefixes = tuple(path.removeprefix("icewright/") for path in options.modules)
    modules = [module for module in MODULES if not prefixes or module.startswith(prefixes)]
    if not modules:
        parser.error(f"no module to mutate begins like {', '.join(options.modules)}")
    if options.again:
        survivors = [name for module in modules for name, status in _results(module) if status == SURVIVED]
        if survivors:
            _run(modules, survivors)
    elif not options.report:
        if not options.resume:
            shutil.rmtree("mutants", ignore_errors=True)
        _run(modules)
    return _report(modules)


def _run(modules: Sequence[str], mutants: Sequence[str] = ()) -> None:
    """Run mutmut with our own operators and runner."""
    mutation_operators.install()
    paths = [f"icewright/{module}" for module in modules]
    config().only_mutate = paths
    config().type_check_command = [*MYPY, *paths]
    config().pytest_add_cli_args_test_selection += dict.fromkeys(t for m in modules for t in MODULES[m])
    tests = {_dotted(module): MODULES[module] for module in modules}
    stats, status = (print_stats, print_status) if sys.stdout.isatty() else (_silent, _silent)
    with patch.multiple(
        mutmut, get_mutant_runner=lambda workers=1: Runner(workers, tests), print_stats=stats, print_status=status
    ):
        mutmut._run(list(mutants), WORKERS)  # noqa: SLF001 - what its command line calls


def _silent(*_: object, **__: object) -> None:
    """Suppress mutmut's progress line, which only a terminal can overwrite."""


def _dotted(module: str) -> str:
    return f"icewright.{module.removesuffix('.py').replace('/', '.')}"


def _results(module: str) -> Iterator[tuple[str, str]]:
    """The mutants of a module and what became of them; one that no test meets has survived."""
    data = SourceFileMutationData(path=f"icewright/{module}")
    data.load()
    for name, code in data.exit_code_by_key.items():
        status = status_by_exit_code[code]
        yield name, SURVIVED if status == "no tests" else status


def _change(mutant: str, module: str) -> Change:
    diff = get_diff_for_mutant(mutant, path=f"icewright/{module}").splitlines()[2:]
    was, becomes = ("\n".join(line[1:].strip() for line in diff if line[0] == sign) for sign in "-+")
    function, owner = orig_function_and_class_names_from_key(mutant)
    return Change(f"{_dotted(module)}.{f'{owner}.' if owner else ''}{function}", was, becomes)


def _accepted() -> Counter[Change]:
    entries = tomllib.loads(ACCEPTED.read_text(encoding="utf-8")).get("accepted", [])
    return Counter(Change(entry["function"], entry["was"], entry["becomes"]) for entry in entries if entry["reason"])


def _report(modules: Sequence[str]) -> int:
    """Print what became of the mutants of each module, then each survivor that is not accepted; 1 if there is any."""
    accepted = _accepted()
    new, gone, total, odd = Counter[Change](), Counter[Change](), Counter[str](), Counter[str]()
    print(f"\n{'module':44}{'mutants':>8}{'types':>7}{'killed':>8}{'timeout':>8}{'survived':>9}{'accepted':>9}")
    for module in modules:
        results = list(_results(module))
        alive = Counter(_change(name, module) for name, status in results if status == SURVIVED)
        known = Counter({c: n for c, n in accepted.items() if c.function.startswith(f"{_dotted(module)}.")})
        new, gone = new + (alive - known), gone + (known - alive)
        count = Counter(status for _, status in results)
        count |= Counter(mutants=len(results), accepted=(alive & known).total())
        odd += Counter({status: n for status, n in count.items() if status not in (*COLUMNS, "mutants", "accepted")})
        total += count
        _row(module, count)
    _row("all", total)
    for change in sorted(new.elements()):
        print(f"\n# survived: kill it by a test, or say in {ACCEPTED} why none needs to notice it\n{change}")
    for change in sorted(gone.elements()):
        print(f"\n# does not survive: take it out of {ACCEPTED}\n{change}")
    for status, n in odd.items():
        print(f"\n{n} mutant(s): {status}")
    return 1 if new or gone or odd else 0


def _row(name: str, count: Counter[str]) -> None:
    types, killed, timeout, survived = (count[column] for column in COLUMNS)
    print(f"{name:44}{count['mutants']:8}{types:7}{killed:8}{timeout:8}{survived:9}{count['accepted']:9}")


if __name__ == "__main__":
    sys.exit(main())
