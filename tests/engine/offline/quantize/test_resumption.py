"""Resumption of a quantization: ownership, identity and continuation of an earlier run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
import torch

from gatewayd_engine.offline.quantize import (
    atomic_files as files,
)
from gatewayd_engine.offline.quantize import (
    run as running,
)
from gatewayd_engine.offline.quantize import (
    source_digest as origin,
)
from gatewayd_engine.offline.quantize.job import (
    REPORT,
    CheckpointWritten,
    HashingProgress,
    QuantizeStarted,
)
from gatewayd_engine.offline.quantize.progress import QuantizeProgress
from gatewayd_engine.offline.quantize.run import quantize
from gatewayd_engine.process.config import EngineConfigError
from tests.engine.core.small_model import NUM_LAYERS, small
from tests.engine.offline.quantize.jobs import HOST, job, reason, stopped, told


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
    assert "was started with another model;" in reason(one)


def test_what_a_kill_leaves_is_known_as_its_own(tmp_path: Path) -> None:
    one, part = job(tmp_path / "out", "fp8", []), tmp_path / "out.part"
    for changes in ({}, {"resume": True}, {"force": True}):
        part.mkdir()
        for name in ("lock", "state.json.unfinished"):
            (part / name).write_text("{")
        changed = msgspec.structs.replace(one, **changes)
        assert isinstance(told(changed)[-1], CheckpointWritten)
        assert os.listdir(tmp_path) == ["out"]
        shutil.rmtree(tmp_path / "out")
    with pytest.raises(RuntimeError):
        quantize(one, HOST, stopped)
    (part / "notes").write_text("mine")
    assert "contains other files, such as notes;" in reason(
        msgspec.structs.replace(one, force=True)
    )
    (part / "notes").unlink()
    (part / "state.json").unlink()
    assert "does not record what it was made from; --force" in reason(
        msgspec.structs.replace(one, resume=True)
    )
    assert isinstance(told(msgspec.structs.replace(one, force=True))[-1], CheckpointWritten)


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
    assert isinstance(told(one)[-1], CheckpointWritten)
    other = msgspec.structs.replace(one, skip=["*.o_proj"])
    with pytest.raises(RuntimeError):
        quantize(msgspec.structs.replace(other, force=True), HOST, stopped)
    events = told(msgspec.structs.replace(other, resume=True))
    assert events[0] == QuantizeStarted(1, NUM_LAYERS)
    assert isinstance(events[-1], CheckpointWritten)
    assert os.listdir(tmp_path) == ["out"]


ORIGIN = {"model": "x"}


def begun(out: Path, *, resume: bool = False, force: bool = False) -> closing[QuantizeProgress]:
    """A run that nothing has been done of."""
    return closing(QuantizeProgress(out, ORIGIN, resume=resume, force=force))


def ended(work: QuantizeProgress, text: str) -> None:
    """A run's last steps, with a checkpoint of one file."""
    files.make(work.checkpoint)
    files.write_json(work.checkpoint / REPORT, {"digests": ORIGIN})
    (work.checkpoint / "weights").write_text(text)
    work.finish()


def test_who_goes_on_leaves_a_run_alone_that_writes_the_same_anew(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with begun(out) as work:
        ended(work, "old")
    with begun(out, force=True) as work:
        with pytest.raises(
            EngineConfigError, match=r"another process writes .*out\.part; wait for it"
        ):
            begun(out, resume=True)
        ended(work, "new")
    assert (out / "weights").read_text() == "new"


@pytest.mark.parametrize("step", range(4))
@pytest.mark.parametrize("replaces", [False, True])
def test_wherever_its_last_steps_end_it_is_complete_in_the_end(
    replaces: bool, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some is done of moving what was there, giving the name, and removing what is left.

    That what is replaced is of the same origin says nothing: it may be damaged.
    """
    out, part = tmp_path / "out", tmp_path / "out.part"
    steps = [(out, part / "old"), (part / "checkpoint", out), (part / "state.json",), (part,)]
    if not replaces:
        step = max(step, 1)
    else:
        with begun(out) as work:
            ended(work, "damaged")

    def until(step: int, do: Callable[..., None]) -> Callable[..., None]:
        def guarded(*paths: Path) -> None:
            if paths == steps[step]:
                raise RuntimeError
            do(*paths)

        return guarded

    with begun(out, force=replaces) as work, monkeypatch.context() as patch:
        patch.setattr(files, "move", until(step, files.move))
        patch.setattr(files, "remove", until(step, files.remove))
        with pytest.raises(RuntimeError):
            ended(work, "new")
    try:
        with begun(out, resume=True) as work:
            ended(work, "new")
    except EngineConfigError as error:
        said = str(error)
    else:
        said = ""
    assert said in ("", f"{out} was already complete; what was left next to it is removed")
    assert (out / "weights").read_text() == "new"
    assert os.listdir(tmp_path) == ["out"]


def test_beginning_anew_gives_back_what_was_moved_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until another has its place it is the only one, however often it is begun anew."""
    out = tmp_path / "out"
    with begun(out) as work:
        ended(work, "old")
    move = files.move

    def stop(folder: Path, to: Path) -> None:
        if to == out:
            raise RuntimeError
        move(folder, to)

    with begun(out, force=True) as work, monkeypatch.context() as patch:
        patch.setattr(files, "move", stop)
        with pytest.raises(RuntimeError):
            ended(work, "new")
    assert not out.exists()
    for _ in range(2):
        with begun(out, force=True):
            assert (out / "weights").read_text() == "old"
    with begun(out, resume=True) as work:
        ended(work, "newer")
    assert (out / "weights").read_text() == "newer"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("flags", [{}, {"resume": True}, {"force": True}], ids=str)
def test_a_folder_of_somebody_else_stays_as_it_is(flags: dict[str, bool], tmp_path: Path) -> None:
    part = tmp_path / "out.part"
    part.mkdir()
    (part / "notes").write_text("mine")
    for _ in range(2):
        with pytest.raises(EngineConfigError, match="contains other files, such as notes;"):
            begun(tmp_path / "out", **flags)
        assert os.listdir(part) == ["notes"]


@pytest.mark.parametrize("name", ["layer-00000.safetensors", "stream-00001.safetensors"])
def test_what_was_left_and_damaged_is_named(name: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with begun(out) as work:
        work.save_layer(0, {"a": torch.zeros(2, 3)}, [], [torch.ones(4, 8)])
    with begun(out, resume=True) as work:
        assert torch.equal((work.stream([4]) or [])[0], torch.ones(4, 8))
    path = tmp_path / "out.part" / name
    sound = path.read_bytes()
    for length in (0, 9, len(sound) - 1):
        path.write_bytes(sound[:length])
        with pytest.raises(EngineConfigError) as refusal, begun(out, resume=True) as work:
            work.stream([4])
        assert str(refusal.value).startswith(f"--resume: {path} is not a whole safetensors file: ")
        assert str(refusal.value).endswith("; --force starts over")
        assert (path.parent / "state.json").exists()


def test_names_that_no_folder_can_be_given_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for resume in (False, True):
        assert "/ cannot be a folder's new name" in reason(job(Path("/"), "fp8", [], resume=resume))
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    said = reason(job(tmp_path / "link", "fp8", []))
    assert said == f"{tmp_path / 'link'} is a symbolic link; give its target as --out"
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == tmp_path / "empty")
    said = reason(job(tmp_path / "empty", "fp8", []))
    assert said.endswith(f"cannot be a folder's new name; give --out {tmp_path}/empty/NAME")


def test_what_is_taken_is_said_before_the_model_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes").touch()
    monkeypatch.setattr(running, "read_spec", lambda *_: pytest.fail("it was read"))
    assert "exists; give another --out" in reason(job(tmp_path / "out", "fp8", []))


def test_looking_at_a_large_model_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origin, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(origin, "_AT_ONCE", 1 << 20)
    events = told(job(tmp_path / "out", "fp8", []))
    parts = [event.done for event in events if isinstance(event, HashingProgress)]
    assert parts == sorted(parts)
    assert len(parts) > 5
    assert parts[-1] == 1.0
    assert isinstance(events[len(parts)], QuantizeStarted)


def test_files_are_for_whom_the_umask_lets(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        told(job(tmp_path / "out", "fp8", []))
    finally:
        os.umask(before)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()}
    assert modes == {0o640}


def test_nobody_to_tell_ends_it_without_a_word(tmp_path: Path) -> None:
    """As when the command that began it was killed."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "gatewayd_engine.offline.quantize"],
        input=msgspec.json.encode(job(tmp_path / "out", "fp8", [])),
        stdout=write_end,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")
