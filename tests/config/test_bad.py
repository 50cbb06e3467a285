"""Configurations that are refused: each file of `bad` says in its first line what must be said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from icewright.app.bootstrap import read_config
from icewright.app.environment import find_config
from icewright.core.errors import ConfigError, UsageError

BAD = sorted((Path(__file__).parent / "bad").glob("*.yaml"))
SECRET = "hush-4711"
TORN = ("hunter2", "Tango99")


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets in the environment, one the same as in the file `hush`, and a variable that is not there."""
    monkeypatch.setenv("HUSH", SECRET)
    monkeypatch.setenv("TORN", "@".join(TORN))
    monkeypatch.delenv("NO_SUCH_VARIABLE", raising=False)


def faults(path: Path) -> tuple[str, ...]:
    """What is wrong with the configuration."""
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert str(caught.value) == "\n".join(caught.value.faults)
    return caught.value.faults


@pytest.mark.cases(88, 89)
@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_is_refused(path: Path) -> None:
    """Every fault is said once, with its key path and what would be right, and no secret is repeated."""
    wanted = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ").split(" | ")
    said = faults(path)
    assert not any(secret in fault for fault in said for secret in (SECRET, *TORN))
    missing = [fragment for fragment in wanted if not any(fragment in fault for fault in said)]
    assert not missing, said
    assert len(said) == len(wanted), said


def test_ten_faults_at_once() -> None:
    """One fault does not hide another: ten are said, each beginning with its own key path."""
    said = faults(next(path for path in BAD if path.stem == "ten_faults"))
    assert len({fault.partition(":")[0] for fault in said}) == 10


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are an error on purpose."""
    path = tmp_path / "icewright.yaml"
    path.write_bytes(b"catalogs: \xff\xfe\n")
    (fault,) = faults(path)
    assert fault.startswith(f"{path}: ")


def test_no_file_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing configuration names the path that was looked at, and how to give another."""
    monkeypatch.chdir(tmp_path)
    for given, what in (
        (None, "no configuration icewright.yaml"),
        ("other.yaml", "no configuration other.yaml"),
        (str(tmp_path), f"{tmp_path} is a folder, no configuration"),
    ):
        with pytest.raises(UsageError, match=f"{what}: name one with --config or ICEWRIGHT_CONFIG"):
            find_config(given)


def test_a_secret_that_is_not_there(tmp_path: Path) -> None:
    """Each reference that leads nowhere is a fault of its own, at its own key path."""
    path = tmp_path / "icewright.yaml"
    path.write_text(
        "catalogs: {lake: {type: sql, properties: {uri: 'sqlite:////${env:NO_SUCH_VARIABLE}/c.db', "
        "warehouse: '${file:gone}', s3.secret: ['${file:also-gone}']}}}\n",
        encoding="utf-8",
    )
    said = faults(path)
    for where in ("properties.uri: the environment has", "properties.warehouse: the file gone", "s3.secret[0]: the"):
        assert sum(where in fault for fault in said) == 1, said
