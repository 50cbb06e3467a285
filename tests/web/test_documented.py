"""The examples of the page on events, run as they are written there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from icewright.app.web.running import serving
from icewright.core.events.directory import CatalogEntry, Directory
from tests.web.conftest import HERE, SECRET, TOKEN, Served

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "events.md"
EXAMPLES = re.findall(r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
DIRECTORY = Directory({"lake": CatalogEntry(("iceberg", "spark_catalog"), ("s3://lake/warehouse/",))})


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("openssl")), reason="no curl or no openssl")
def test_every_example_is_taken(served: Served) -> None:
    """And names a table of the lake, known or not."""
    served.directory = DIRECTORY
    environment = {"ICEWRIGHT_EVENTS_TOKEN": TOKEN, "ICEWRIGHT_EVENTS_SECRET": SECRET, "PATH": os.environ["PATH"]}
    with serving(served.app(tokens=[TOKEN], secrets=[SECRET]), HERE, 0) as port:
        answers = [
            json.loads(
                subprocess.run(
                    ["bash", "-c", example.replace(":8765", f":{port}")],
                    env=environment,
                    capture_output=True,
                    check=True,
                ).stdout
            )
            for example in EXAMPLES
        ]
    assert [answer["received"] for answer in answers] == [1, 1, 2, 1, 1, 1]
    assert all(answer["tables"] or answer["unknown"] for answer in answers)
    assert not any(answer["ignored"] for answer in answers)
