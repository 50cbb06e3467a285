"""The proof of a vacuum's deletions: nothing that any branch or tag reaches, and nothing that other catalogs need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

from icewright.adapters.engines.service.deletion import Proved
from icewright.adapters.engines.service.nessie_live import NessieReachability
from icewright.adapters.engines.service.reachable import unreached
from icewright.core.runs import FileAction
from icewright.ports import VacuumOf

if TYPE_CHECKING:
    from icewright.adapters.engines.service.vacuum import BranchVacuum


@dataclass
class BranchProof:
    """Proves a vacuum's planned files against every branch and tag, and other catalogs, right before each batch."""

    vacuum: BranchVacuum
    work: VacuumOf
    mark: NessieReachability
    _live: list[pl.DataFrame] = field(default_factory=list)  # what has become live since the plan

    def prove(self, planned: Sequence[FileAction]) -> Proved:
        """Return the planned files that no live version reaches, and the reason why each of the others stays."""
        self._live += self.vacuum.live_since(self.work, self.mark)
        frame = pl.DataFrame({"path": [file.path for file in planned]}, schema={"path": pl.String})
        free = unreached(frame, self._live, self.vacuum.deletion.files.canonical)
        judgement = self.vacuum.judged(self.work.table, free)
        deletable = frozenset(judgement.files["path"])
        stays = {
            f.path: judgement.stays.get(f.path, "a branch or tag reaches it")
            for f in planned
            if f.path not in deletable
        }
        return Proved(deletable, stays)
