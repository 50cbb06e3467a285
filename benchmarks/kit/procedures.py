"""The statements that a cron job runs."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.kit.lake import NAMESPACE

MEBIBYTE = 1024 * 1024


def rewrite_data_files(table: str, target: float, sort_order: str | None = None, **more: str) -> str:
    """Compaction of a whole table to files of so many MiB: Iceberg's own rules, at least five files to a group.

    `more` options have underscores for dashes.
    """
    others = "".join(f", '{name.replace('_', '-')}', '{value}'" for name, value in more.items())
    order = f", strategy => 'sort', sort_order => '{sort_order}'" if sort_order else ""
    options = f"map('target-file-size-bytes', '{int(target * MEBIBYTE)}', 'min-input-files', '5'{others})"
    return f"CALL lake.system.rewrite_data_files(table => '{NAMESPACE}.{table}', options => {options}{order})"


def cron(table: str, target: float) -> Sequence[str]:
    """The usual four, whatever the table needs."""
    others = ("rewrite_manifests", "expire_snapshots", "remove_orphan_files")
    return [
        rewrite_data_files(table, target),
        *(f"CALL lake.system.{name}(table => '{NAMESPACE}.{table}')" for name in others),
    ]
