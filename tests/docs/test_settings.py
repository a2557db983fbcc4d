"""Settings in documents: every ``[table] key`` exists."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from gatewayd.config.tables import Config

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`\[(\w+)\] (\w+)")
DOCUMENTS = subprocess.run(
    ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.split()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_settings_that_are_named_are_there(document: str) -> None:
    unknown = []
    for table, key in NAMED.findall((ROOT / document).read_text("utf-8")):
        field = Config.model_fields.get(table)
        fields = getattr(None if field is None else field.annotation, "model_fields", None)
        if fields is not None and key not in fields:
            unknown.append(f"[{table}] {key}")
    assert not unknown
