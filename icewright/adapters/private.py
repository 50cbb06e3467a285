"""Folders for this user alone: manifests hold values of rows, ledgers and logs name files."""

from __future__ import annotations

from pathlib import Path


def make_private(folder: Path) -> None:
    """Make a folder and those above it that are missing, whatever the umask; one that is there stays as it is."""
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
