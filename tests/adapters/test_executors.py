"""What tasks leave in the Python processes of executors."""

from __future__ import annotations

import gc
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from zipimport import zipimporter

import pytest
from pyspark import cloudpickle

from icewright.adapters.engines.arrow.executors import _version_query, tidied


def test_each_task_leaves_its_process_tidy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Importers of zips go after each task, and what was imported before the first is collected no more."""
    path = str(tmp_path / "lib.zip")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("module.py", "")
    frozen = gc.get_freeze_count()
    monkeypatch.delattr(gc, "frozen_after_a_task", raising=False)
    work = tidied(lambda items: map(str, items))
    for _ in range(2):
        sys.path_importer_cache[path] = zipimporter(path)
        assert list(work([1, 2])) == ["1", "2"]
        assert path not in sys.path_importer_cache
    assert gc.get_freeze_count() > frozen
    later: list[object] = [[]]
    list(work([later]))
    assert any(one is later for one in gc.get_objects())  # which leaves out what is frozen


def test_asking_for_versions_leaves_no_directory_of_a_jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python remembers each archive in which it looks for packages: Spark's jars have 32,000 entries."""
    path = str(tmp_path / "lib.jar")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("only here", "")
    del archive
    monkeypatch.setattr(sys, "path", [path, *sys.path])
    next(_version_query()(()))
    gc.collect()
    assert not any(isinstance(one, zipfile.ZipInfo) and one.filename == "only here" for one in gc.get_objects())


def test_the_work_of_a_task_needs_no_icewright(tmp_path: Path) -> None:
    """Executors that lack Icewright run the query that finds it out: the clean-up travels with it, by value."""

    def answers(items: Iterable[int]) -> Iterator[int]:
        yield from items

    path = tmp_path / "work"
    path.write_bytes(cloudpickle.dumps(tidied(answers)))
    program = f"from pyspark import cloudpickle; print(*cloudpickle.loads(open({str(path)!r}, 'rb').read())([1, 2]))"
    there = Path(cloudpickle.__file__).parents[2]
    run = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path.append({str(there)!r}); {program}"],
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.stdout, run.stderr) == ("1 2\n", "")
