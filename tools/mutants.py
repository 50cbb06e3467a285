"""Mutation tests of the modules that decide deletions and commits: `make mutants`.

mutmut writes the mutants and tests each in a fork of a process that has imported everything; mypy takes those that no
commit could hold. What is here chooses the tests of each module, fastest first, and compares the survivors with
`tests/mutants/accepted.toml`, where each stands with the reason why no test needs to notice it.
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

from mutmut import __main__ as mutmut
from mutmut.configuration import config
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.stats import status_by_exit_code
from mutmut.utils.format_utils import orig_function_and_class_names_from_key

from tools import mutation_operators
from tools.mutation_runner import Runner

ACCEPTED = Path("tests/mutants/accepted.toml")
WORKERS = 2

_CASES = ("tests/cases/",)
_COMMITS = ("tests/contracts/test_catalog_commit.py", "tests/contracts/test_catalog_races.py")
_STORE = ("tests/contracts/test_store.py", "tests/contracts/test_queue.py")
_SERVICE = "adapters/engines/service"
_VACUUM = ("tests/vacuum/test_scenarios.py", "tests/vacuum/test_weather.py")
MODULES: Mapping[str, tuple[str, ...]] = {  # the smallest set of fast tests that notices what goes wrong in each
    "core/retention.py": ("tests/core/test_retention.py", "tests/core/test_retention_model.py"),
    "core/verify.py": ("tests/core/test_verify.py",),
    "core/vacuum.py": ("tests/core/test_vacuum.py",),
    "core/paths.py": ("tests/core/test_paths.py",),
    "core/places.py": ("tests/core/test_places.py",),
    "core/guardrails.py": ("tests/core/test_guardrails.py",),
    "core/environment.py": ("tests/core/test_environment.py",),
    "core/operations/expire_snapshots.py": ("tests/core/test_expire_snapshots.py",),
    "core/operations/remove_orphans.py": ("tests/core/test_remove_orphans.py",),
    f"{_SERVICE}/reachable.py": ("tests/adapters/test_reachable.py", *_CASES),
    f"{_SERVICE}/listing.py": ("tests/adapters/test_listing.py", *_CASES),
    f"{_SERVICE}/replacing.py": _CASES,
    "adapters/catalogs/staging.py": _COMMITS,
    "adapters/catalogs/sql.py": ("tests/contracts/test_catalog.py", *_COMMITS),
    "adapters/catalogs/metadata.py": ("tests/adapters/test_metadata.py", *_COMMITS),
}


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """A mutant by what it changes: the function, the lines as they were and as they are, wherever they stand."""

    function: str
    was: str
    becomes: str


def main() -> int:
    """Test the mutants of all modules, or of some; 0 when every survivor is an accepted one."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("modules", nargs="*", help="paths that begin like this, such as icewright/core; all by default")
    parser.add_argument("--again", action="store_true", help="test only what survived the last run of these modules")
    asked = parser.parse_args()
    wanted = tuple(path.removeprefix("icewright/") for path in asked.modules)
    modules = [module for module in MODULES if not wanted or module.startswith(wanted)]
    if not modules:
        parser.error(f"no module to mutate begins like {', '.join(asked.modules)}")
    _configure(modules)
    if not asked.again:
        shutil.rmtree("mutants", ignore_errors=True)
    survivors = [name for module in modules for name, status in _results(module) if status in _SURVIVED]
    if survivors or not asked.again:
        mutmut._run(survivors, WORKERS)  # noqa: SLF001 - what `mutmut run` calls
    return _report(modules)


_SURVIVED = ("survived", "no tests")


def _configure(modules: Sequence[str]) -> None:
    """Let mutmut mutate these modules, by these operators, and collect their tests."""
    mutation_operators.install()
    if not sys.stdout.isatty():
        mutmut.print_stats = mutmut.print_status = lambda *_, **__: None  # their line would be written again and again
    tests = {_dotted(module): MODULES[module] for module in modules}
    mutmut.get_mutant_runner = lambda workers=1: Runner(workers, tests)  # type: ignore[assignment]
    paths = [f"icewright/{module}" for module in modules]
    config().only_mutate = paths
    config().type_check_command = [
        *(sys.executable, "-m", "mypy", "--output", "json", "--disable-error-code", "unused-ignore"),
        *paths,
    ]
    config().pytest_add_cli_args_test_selection += dict.fromkeys(t for m in modules for t in MODULES[m])


def _dotted(module: str) -> str:
    return f"icewright.{module[:-3].replace('/', '.')}"


def _results(module: str) -> Iterator[tuple[str, str]]:
    """The mutants of a module and what became of them."""
    data = SourceFileMutationData(path=f"icewright/{module}")
    data.load()
    yield from ((name, status_by_exit_code[code]) for name, code in data.exit_code_by_key.items())


def _change(mutant: str, module: str) -> Change:
    diff = get_diff_for_mutant(mutant, path=f"icewright/{module}").splitlines()[2:]
    lines = {sign: "\n".join(line[1:].strip() for line in diff if line[0] == sign) for sign in "-+"}
    function, owner = orig_function_and_class_names_from_key(mutant)
    name = f"{owner}.{function}" if owner else function
    return Change(f"{_dotted(module)}.{name}", lines["-"], lines["+"])


def _accepted() -> Counter[Change]:
    entries = tomllib.loads(ACCEPTED.read_text(encoding="utf-8")).get("accepted", [])
    return Counter(Change(e["function"], e["was"].strip(), e["becomes"].strip()) for e in entries if e["reason"])


def _report(modules: Sequence[str]) -> int:
    """Print what became of the mutants of each module; 1 when a survivor is not accepted, or an accepted one died."""
    accepted, left = _accepted(), 0
    print(f"{'module':44}{'mutants':>8}{'types':>7}{'killed':>7}{'timeout':>8}{'survived':>9}{'accepted':>9}")
    for module in modules:
        results = list(_results(module))
        count = Counter("survived" if status in _SURVIVED else status for _, status in results)
        alive = Counter(_change(name, module) for name, status in results if status in _SURVIVED)
        known = Counter({c: n for c, n in accepted.items() if c.function.startswith(f"{_dotted(module)}.")})
        print(
            f"{module:44}{len(results):8}{count['caught by type check']:7}{count['killed']:7}{count['timeout']:8}"
            f"{count['survived']:9}{(alive & known).total():9}"
        )
        odd = {s: n for s, n in count.items() if s not in ("survived", "killed", "timeout", "caught by type check")}
        new, gone = alive - known, known - alive
        left += new.total() + gone.total() + sum(odd.values())
        for title, changes in (("survived", new), ("is accepted, but did not survive", gone)):
            for change in sorted(changes.elements()):
                print(f"\n  {title}: {change.function}\n{_block('-', change.was)}\n{_block('+', change.becomes)}")
        for status, n in odd.items():
            print(f"\n  {n} mutant(s): {status}")
    return 1 if left else 0


def _block(sign: str, lines: str) -> str:
    return "\n".join(f"  {sign} {line}" for line in lines.splitlines())


if __name__ == "__main__":
    sys.exit(main())
