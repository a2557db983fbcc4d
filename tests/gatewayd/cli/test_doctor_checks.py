"""Doctor checks: memory counts in findings."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gatewayd.cli.doctor import checks
from gatewayd.config.tables import Config


def needed(engine: dict[str, Any], codec: str) -> float:
    """GiB that it says an engine may take."""
    tables = {"engine": engine, "kv_codec": {"strategy": codec}}
    found = re.search(r"up to ([\d.]+) GiB", checks.memory(Config.model_validate(tables)).text)
    assert found is not None
    return float(found[1])


@pytest.mark.parametrize(
    ("engine", "plain", "coded"),
    [
        ({}, 2.0, 2.0),
        # As an engine does: numbers take more than records, up to a gibibyte.
        ({"kv_memory": "512MiB"}, 1.0, 1.5),
        ({"kv_memory": "3GiB"}, 6.0, 6.0),
        ({"kv_memory": "512MiB", "copy_memory": "512MiB"}, 1.0, 1.0),
    ],
)
def test_second_copies_of_contexts_are_of_numbers(
    engine: dict[str, Any], plain: float, coded: float
) -> None:
    # The embedded model is too small to be seen.
    assert (needed(engine, "none"), needed(engine, "int8")) == (plain, coded)
