"""What an earlier run has left: whose it is, what it is of, and who goes on with it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import pytest

from gatewayd_engine.quantize import files
from gatewayd_engine.quantize.job import Began, Written
from gatewayd_engine.quantize.running import quantize
from tests.engine.core.small import NUM_LAYERS, small
from tests.engine.quantize.jobs import HOST, job, reason, stopped, told


def test_a_model_is_the_same_by_what_is_in_it(tmp_path: Path) -> None:
    """A copy is, whenever it was made; one number that is another makes another."""
    model = tmp_path / "model"
    shutil.copytree(small(), model)
    one = job(tmp_path / "out", "fp8", [], model=str(model), resume=True)
    part = tmp_path / "out.part"

    def begin() -> None:
        with pytest.raises(RuntimeError):
            quantize(one, HOST, stopped)

    begin()
    assert (part / "layer-00000.safetensors").exists()
    weights = model / "model.safetensors"
    os.utime(weights, ns=(1, 1))
    begin()
    with weights.open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    assert "was begun with another model;" in reason(one)


def test_what_a_kill_leaves_is_known_as_its_own(tmp_path: Path) -> None:
    one, part = job(tmp_path / "out", "fp8", []), tmp_path / "out.part"
    for changes in ({}, {"resume": True}, {"force": True}):
        part.mkdir()
        for name in ("lock", "state.json.unfinished"):
            (part / name).write_text("{")
        changed = msgspec.structs.replace(one, **changes)
        assert isinstance(told(changed)[-1], Written)
        assert os.listdir(tmp_path) == ["out"]
        shutil.rmtree(tmp_path / "out")
    with pytest.raises(RuntimeError):
        quantize(one, HOST, stopped)
    (part / "notes").write_text("mine")
    assert "holds other files, as notes;" in reason(msgspec.structs.replace(one, force=True))
    (part / "notes").unlink()
    (part / "state.json").unlink()
    assert "does not say of what it was made; --force" in reason(
        msgspec.structs.replace(one, resume=True)
    )
    assert isinstance(told(msgspec.structs.replace(one, force=True))[-1], Written)


def test_beginning_anew_forgets_last_of_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it ends, what is left can be gone on with."""
    one = job(tmp_path / "out", "fp8", [])
    with pytest.raises(RuntimeError):
        quantize(one, HOST, stopped)
    (tmp_path / "out.part" / "stream-00001.safetensors").touch()
    removed: list[str] = []
    remove = files.remove

    def noted(path: Path) -> None:
        removed.append(path.name)
        remove(path)

    monkeypatch.setattr(files, "remove", noted)
    told(msgspec.structs.replace(one, force=True))
    first = ["layer-00000.safetensors", "stream-00001.safetensors", "state.json"]
    assert removed[:3] == first


def test_a_replacement_that_ended_early_is_gone_on_with(tmp_path: Path) -> None:
    one = job(tmp_path / "out", "fp8", [])
    assert isinstance(told(one)[-1], Written)
    other = msgspec.structs.replace(one, skip=["*.o_proj"])
    with pytest.raises(RuntimeError):
        quantize(msgspec.structs.replace(other, force=True), HOST, stopped)
    events = told(msgspec.structs.replace(other, resume=True))
    assert events[0] == Began(1, NUM_LAYERS)
    assert isinstance(events[-1], Written)
    assert os.listdir(tmp_path) == ["out"]
