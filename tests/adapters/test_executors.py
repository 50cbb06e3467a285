"""What tasks leave in the Python processes of executors."""

from __future__ import annotations

import gc
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from zipimport import zipimporter

from pyspark import cloudpickle

from icewright.adapters.engines.arrow.executors import tidied


def test_each_task_leaves_its_process_tidy(tmp_path: Path) -> None:
    """Importers of zips go after each task, and what was imported before the first is collected no more."""
    path = str(tmp_path / "lib.zip")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("module.py", "")
    gc.unfreeze()
    work = tidied(lambda items: map(str, items))
    for _ in range(2):
        sys.path_importer_cache[path] = zipimporter(path)
        assert list(work([1, 2])) == ["1", "2"]
        assert path not in sys.path_importer_cache
    assert gc.get_freeze_count()
    later: list[object] = [[]]
    list(work([later]))
    assert any(one is later for one in gc.get_objects())  # which leaves out what is frozen
    gc.unfreeze()


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
