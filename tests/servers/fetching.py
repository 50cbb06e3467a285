"""Fetches the servers that demo and tests start from Maven Central, each file checked by its hash."""

from __future__ import annotations

import hashlib
import os
import tarfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from icewright.core.errors import EngineUnavailable

MAVEN = "https://repo1.maven.org/maven2"
_SECONDS_TO_FETCH = 120
_ATTEMPTS = 3
_CHUNK = 1 << 20


def fetched(folder: Path, path: str, digest: str) -> Path:
    """Return one file in `folder`, of this path in a Maven repository and this SHA-256, fetched when it is not there.

    Raises `EngineUnavailable`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / path.rpartition("/")[2]
    if kept.is_file() and _digest(kept) == digest:
        return kept
    said = ""
    for attempt in range(_ATTEMPTS):
        fresh = kept.with_suffix(f".{digest[:12]}.{os.getpid()}")  # two processes may fetch it at once
        try:
            with (
                urllib.request.urlopen(f"{MAVEN}/{path}", timeout=_SECONDS_TO_FETCH) as answer,  # noqa: S310 - https
                fresh.open("wb") as out,
            ):
                while chunk := answer.read(_CHUNK):
                    out.write(chunk)
        except OSError as error:
            fresh.unlink(missing_ok=True)
            said = str(error)
            time.sleep(attempt + 1)
            continue
        if _digest(fresh) != digest:
            fresh.unlink()
            raise EngineUnavailable(f"{MAVEN}/{path} is not the file that it was: nothing of it is run")
        fresh.replace(kept)
        return kept
    raise EngineUnavailable(f"{MAVEN}/{path} could not be fetched ({said}); lay it into {folder} yourself")


def fetched_all(folder: Path, sums: Path) -> list[Path]:
    """Return the files that `sums` lists as `sha256sum` does, by their paths in a Maven repository. See `fetched`."""
    listed = [line.split() for line in sums.read_text(encoding="utf-8").splitlines()]
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda line: fetched(folder, line[1], line[0]), listed))


def opened_archive(path: Path) -> tarfile.TarFile:
    """Open an archive none of whose members may leave the folder that it is unpacked to.

    Python before 3.11.4, as Debian 12 has it, knows no such filter; it unpacks what its hash has proved.
    """
    archive = tarfile.open(path)  # noqa: SIM115 - the caller closes it
    archive.extraction_filter = getattr(tarfile, "data_filter", None)
    return archive


def _digest(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
