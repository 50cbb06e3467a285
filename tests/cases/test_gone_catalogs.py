"""Tables that live on unseen: their catalog left the configuration, or shows them no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from pyiceberg.table import Table

from icewright.app.bootstrap import application, read_config
from icewright.app.service import Service
from icewright.core.runs import OperationState, Outcome
from icewright.flow.adopt import adopt
from icewright.flow.reconcile import reconcile_interrupted
from tests.cases.test_open_world import ROWS, later, quickly_located, reads
from tests.cases.workspace import CONFIG, EXPIRE, ORPHANS, Workspace, ref

SOURCE = "sales.source"
SHORT_LOG = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}


@contextmanager
def opened(workspace: Workspace, config: str = CONFIG) -> Iterator[Workspace]:
    """The same house and store, opened anew by a configuration: nothing is remembered that the store does not have."""
    path = workspace.home / "later.yaml"
    path.write_text(config.format(home=workspace.home), encoding="utf-8")
    with application(read_config(path), kind="tests", clock=workspace.clock) as app:
        yield replace(workspace, app=app, icebergs={name: workspace.icebergs[name] for name in app.runtime.catalogs})


def without_pond(*more: str) -> str:
    """A configuration that has only the catalog `lake`, with more lines of its."""
    before, _, pond = CONFIG.partition("  pond:\n")
    return "".join((before, *more, pond[pond.index("cache:") :]))


def source(workspace: Workspace, **properties: str) -> Table:
    """A table of `lake` with one commit."""
    table = workspace.icebergs["lake"].create_table(SOURCE, ROWS.schema, properties=properties)
    table.append(ROWS)
    return table


def clone(workspace: Workspace) -> Table:
    """Registered in `pond` too, moved, and committed to since."""
    table = workspace.icebergs["pond"].register_table("sales.clone", source(workspace).metadata_location)
    quickly_located(table, workspace.home / "pond" / "clone")
    table = workspace.icebergs["pond"].load_table("sales.clone")
    table.append(ROWS)
    return table


def borrower(workspace: Workspace) -> Table:
    """A table of `pond` that took a file of the source in."""
    lent = source(workspace).inspect.files()["file_path"].to_pylist()
    table = workspace.icebergs["pond"].create_table("sales.borrower", ROWS.schema, properties=SHORT_LOG)
    table.add_files(lent)
    return table


def sharer(workspace: Workspace) -> Table:
    """A table of `pond` that writes its data where the source does."""
    pool = {"write.data.path": f"file://{workspace.home}/pool"}
    source(workspace, **pool)
    table = workspace.icebergs["pond"].create_table("sales.sharer", ROWS.schema, properties=pool | SHORT_LOG)
    table.append(ROWS)
    return table


def twin(workspace: Workspace) -> Table:
    """Registered in `pond` too, and not committed to since."""
    return workspace.icebergs["pond"].register_table("sales.twin", source(workspace).metadata_location)


@pytest.mark.cases(97, 98, 99)
@pytest.mark.parametrize("make", [twin, clone, borrower, sharer])
def test_tables_of_a_catalog_that_left_the_configuration_lose_nothing(
    workspace: Workspace, make: Callable[[Workspace], Table]
) -> None:
    """What its tables share with others stays, whatever they commit since, until a person says that they are gone."""
    other = make(workspace)
    workspace.run(ORPHANS, name=SOURCE, dry_run=True)  # so that both are known
    for _ in range(0 if make is twin else 3):
        other.append(ROWS)
    workspace.icebergs["lake"].load_table(SOURCE).overwrite(ROWS)
    later(workspace)
    before = reads(other)
    with opened(workspace, without_pond()) as alone:
        done = maintained(alone)
        assert "(whose catalog is not configured any more)" in str(done)
        assert f"`icewright adopt lake.{SOURCE}`" in str(done)
        assert reads(other) == before
        adopt(alone.app.runtime, ref(SOURCE))
        assert any(one.files for one in maintained(alone))


def maintained(workspace: Workspace) -> list[Outcome]:
    """What expiry and orphan removal of the source came to: done or refused, and no error."""
    done = [workspace.run(one, name=SOURCE, remove_orphans__max_delete_ratio=1) for one in (EXPIRE, ORPHANS)]
    assert all(one.state is not OperationState.FAILED for one in done), done
    return done


def test_a_catalog_that_was_renamed_is_no_other(workspace: Workspace) -> None:
    """Its earlier name among its aliases says that what was seen under that name is seen under the new one."""
    twin(workspace)
    workspace.run(ORPHANS, name=SOURCE, dry_run=True)
    workspace.icebergs["lake"].load_table(SOURCE).overwrite(ROWS)
    later(workspace)
    with opened(workspace, without_pond("    aliases: [pond]\n")) as renamed:
        assert maintained(renamed)[0].files


@pytest.mark.cases(99)
@pytest.mark.parametrize("when", ["before the plan", "while files wait"])
def test_a_catalog_that_another_service_has_alone(workspace: Workspace, when: str) -> None:
    """Its tables may take files in at any time, and cannot be asked here: nothing goes where they could lie."""
    lender, service = source(workspace), Service(workspace.app, kind="service", slots=0)
    lent = lender.inspect.files()["file_path"].to_pylist()
    lender.overwrite(ROWS)
    later(workspace)
    with opened(workspace, without_pond()) as alone:
        if when == "while files wait":
            assert alone.run(EXPIRE, name=SOURCE, deletion__delay_hours=24).files
        service._heartbeat()
        other = workspace.icebergs["pond"].create_table("sales.borrower", ROWS.schema)
        other.add_files(lent)
        before = reads(other)
        alone.clock.advance(hours=2)
        service._heartbeat()
        alone.clock.advance(hours=23)
        done = reconcile_interrupted(alone.app.runtime) if when == "while files wait" else maintained(alone)
        assert "a catalog pond, which is not configured here" in str(done), done
        assert reads(other) == before
        workspace.unregister("sales.borrower", "pond")
        if when == "while files wait":
            alone.app.runtime.store.processes.deregister([workspace.app.runtime.trigger.holder])
        else:
            alone.clock.advance(hours=2)  # that service was killed, and nobody is there to deregister it
        done = reconcile_interrupted(alone.app.runtime) if when == "while files wait" else maintained(alone)
        assert "deleted 0" not in str(done[0]), done
        with pytest.raises(FileNotFoundError):
            reads(other, registered=False)


@pytest.mark.cases(97, 98, 99)
@pytest.mark.parametrize("make", [clone, borrower, sharer])
def test_tables_that_a_catalog_shows_no_more_lose_nothing(
    workspace: Workspace, make: Callable[[Workspace], Table]
) -> None:
    """Dropped, hidden by permissions, or handed to an unseen catalog that goes on writing: new versions tell."""
    other = make(workspace)
    workspace.run(ORPHANS, name=SOURCE, dry_run=True)
    for _ in range(3):
        other.append(ROWS)
    workspace.unregister(f"sales.{other.name()[-1]}", "pond")
    workspace.icebergs["lake"].load_table(SOURCE).overwrite(ROWS)
    later(workspace)
    before = reads(other, registered=False)
    with opened(workspace) as anew:
        maintained(anew)
        assert reads(other, registered=False) == before
        adopt(anew.app.runtime, ref(SOURCE))
        assert any(one.files for one in maintained(anew))
