"""Doctor checks: memory counts in findings, and models that they are about."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from gatewayd.cli.doctor import checks, command, cpus, gpu, weights
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


def test_doctor_checks_every_model_and_names_the_wrong_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "g.toml"
    file.write_text(
        "[logits_processor]\nstrategies = []\n"  # each imports torch
        '[models.good]\npath = "embedded:nano"\n'
        '[models.bad]\npath = "/no/such"\n'
        '[models.bad.scheduler]\nstrategy = "fcfz"\n'
        "[models.bad.engine]\nthreads = 1024\n"
    )
    # Without those that take seconds and do not look at models.
    wanted = (checks.model, weights.weights, gpu.gpu, cpus.cpu, checks.plugins)
    monkeypatch.setattr(command, "CHECKS", wanted)
    with pytest.raises(typer.Exit):
        command.doctor(config=file, as_json=True)
    found = json.loads(capsys.readouterr().out)["checks"]
    for subject in ("model", "weights", "cpu"):
        good, bad = (one for one in found if one["subject"] == subject)
        assert good["state"] != "failure"
        assert bad["state"] == "failure" or subject == "cpu"
        assert good["text"].startswith("[models.good]: ")
        assert bad["text"].startswith("[models.bad]: ")
    assert any("/no/such" in one["text"] for one in found)
    # Both models have the same GPU.
    (one,) = (one for one in found if one["subject"] == "gpu")
    assert "[models." not in one["text"]
    (one,) = (one for one in found if one["subject"] == "plugins")
    assert (one["state"], one["text"][:30]) == ("failure", "[models.bad]: scheduler.fcfz t")
    # A model of the command line is the only one.
    monkeypatch.setattr(command, "CHECKS", wanted[:2])
    command.doctor("nano", config=file, as_json=True)
    assert json.loads(capsys.readouterr().out)["ok"] is True
