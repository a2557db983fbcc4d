"""What is done so far, in a folder beside the one that will be: layers, and the stream behind them.

A layer is done when its file is there. The folder says of what it is made, so that nobody goes on
with something else.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from gatewayd_engine.model.loading.safetensors_headers import LoadError, read_header
from gatewayd_engine.offline.quantize import atomic_files
from gatewayd_engine.offline.quantize.job import REPORT, Fitted
from gatewayd_engine.process.config import EngineConfigError

SUFFIX = ".part"
_STATE, _LOCK, _CHECKPOINT = "state.json", "lock", "checkpoint"
_STREAM, _TOLD = "stream", "told"
_OLD = "old"
_REPLACES = "replaces"
"""Whether --force was given to take the place of what was there; --resume goes on with that."""
_OWN = re.compile(r"(checkpoint|old|state\.json|(layer|stream)-\d{5,}\.safetensors)(\.unfinished)?")


class QuantizeProgress:
    """The folder of a run; no other process has it meanwhile.

    Args:
        out: the folder that will be.
        origin: what the checkpoint is made of: digests by what they are of.
        resume: go on with what is there.
        force: begin anew, and take the place of a checkpoint that was written before.

    Attributes:
        folder: where the work is.
        done: layers that are.

    Raises:
        ConfigError: something is there already.
        WriteError: the folder cannot be made.
    """

    def __init__(self, out: Path, origin: Mapping[str, str], *, resume: bool, force: bool) -> None:
        self.folder = out.with_name(out.name + SUFFIX)
        self._out = out
        self._force = force
        is_there = self.folder.is_dir()
        self._replaces = force
        if not (resume and is_there):
            check_out(self._out, replaces=self._replaces)
        if is_there:
            # Before a file is put beside those of somebody else; a run that ends removes it all.
            with contextlib.suppress(FileNotFoundError):
                self._refuse_others()
        atomic_files.make(self.folder)
        self._lock = _locked(self.folder)
        try:
            self._refuse_others()
            if resume and is_there:
                self._go_on(dict(origin))
            self._begin(dict(origin), resume=resume)
        except BaseException:
            self.close()
            raise
        self.done = self._layers_done()

    def close(self) -> None:
        """Let others have the folder; what is in it stays."""
        os.close(self._lock)

    @property
    def checkpoint(self) -> Path:
        """Where the checkpoint is put together."""
        return self.folder / _CHECKPOINT

    def layer_file(self, index: int) -> Path:
        """The file of a layer."""
        return self.folder / f"layer-{index:05}.safetensors"

    def stream(self, lengths: Sequence[int]) -> list[torch.Tensor] | None:
        """What comes out behind the layers that are done, by sequences of so many tokens.

        Raises:
            ConfigError: its file is missing or damaged.
        """
        if not self.done:
            return None
        path = self._stream_file(self.done)
        _refuse_damaged(path)
        return list(torch.split(load_file(path)[_STREAM], list(lengths)))

    def told(self) -> list[Fitted]:
        """What the matrices of all layers that are done have lost."""
        found: list[Fitted] = []
        for index in range(self._layers_done()):
            with safe_open(self.layer_file(index), "pt") as file:
                found += msgspec.json.decode(file.metadata()[_TOLD], type=list[Fitted])
        return found

    def keep(
        self,
        index: int,
        tensors: Mapping[str, torch.Tensor],
        told: Sequence[Fitted],
        stream: Sequence[torch.Tensor],
    ) -> None:
        """Write a layer down, and what comes out behind it; it is done.

        Raises:
            WriteError: there is no room.
        """
        if stream:
            atomic_files.write_tensors(
                self._stream_file(index + 1), {_STREAM: torch.cat(list(stream))}
            )
        text = msgspec.json.encode(list(told)).decode()
        atomic_files.write_tensors(self.layer_file(index), tensors, told=text)
        atomic_files.remove(self._stream_file(index))
        self.done = index + 1

    def finish(self) -> None:
        """Give the checkpoint its name, and remove the work.

        Raises:
            WriteError: something else has the name, or it cannot be given.
        """
        old = self.folder / _OLD
        if self._out.exists():
            check_out(self._out, replaces=self._replaces)
            atomic_files.move(self._out, old)
        atomic_files.move(self.checkpoint, self._out)
        # Without it nobody goes on with the rest.
        atomic_files.remove(self.folder / _STATE)
        atomic_files.remove(self.folder)

    def _refuse_others(self) -> None:
        """Whether all in the folder is of such runs.

        Raises:
            ConfigError: something is not.
        """
        found = [path.name for path in self.folder.iterdir() if path.name != _LOCK]
        other = min((name for name in found if not _OWN.fullmatch(name)), default=None)
        if other is not None:
            raise EngineConfigError(
                f"{self.folder} holds other files, as {other}; remove it, or give another --out"
            )

    def _go_on(self, origin: dict[str, str]) -> None:
        """Learn what an earlier run was allowed, and whether it ended behind its last layer.

        Raises:
            ConfigError: nothing is left to be done, or another folder has the name.
        """
        state = _read(self.folder / _STATE)
        self._replaces = state.get(_REPLACES) is True
        # What stands there may be what was to be replaced, of the same origin: then it is moved.
        is_placed = not self._replaces or (self.folder / _OLD).exists()
        if is_placed and _origin_of(self._out) == origin:
            atomic_files.remove(self.folder)
            raise EngineConfigError(
                f"{self._out} was complete already; what was left beside it is removed"
            )
        check_out(self._out, replaces=self._replaces)

    def _begin(self, origin: dict[str, str], *, resume: bool) -> None:
        """Take up what is there, or begin.

        Raises:
            ConfigError: what is there is of something else, or nobody said what to do with it.
        """
        state = self.folder / _STATE
        atomic_files.tidy(self.folder)
        old = self.folder / _OLD
        if self._force and old.is_dir() and not os.path.lexists(self._out):
            # It ended between the two moves of its end: this is the only one that is complete.
            atomic_files.move(old, self._out)
        others = sorted(path for path in self.folder.iterdir() if path.name != _LOCK)
        if others and self._force:
            # Layers before what they stand on, and last what says of what all is made.
            for path in sorted(others, key=lambda path: path == state):
                atomic_files.remove(path)
        elif others and not state.is_file():
            raise EngineConfigError(
                f"{self.folder} does not say of what it was made; --force begins anew"
            )
        elif others and not resume:
            raise EngineConfigError(
                f"{self.folder} holds {self._layers_done()} layers of an earlier run; --resume"
                " goes on with them, --force begins anew"
            )
        elif others:
            begun = _read(state)
            differs = [name for name in origin if begun.get(name) != origin[name]]
            if differs:
                raise EngineConfigError(
                    f"--resume: {self.folder} was begun with another {', '.join(differs)}; --force"
                    " begins anew"
                )
            for index in range(self._layers_done()):
                _refuse_damaged(self.layer_file(index))
            atomic_files.remove(self.checkpoint)
            return
        replaces = self._force and self._out.exists()
        atomic_files.write_json(state, {**origin, _REPLACES: replaces})

    def _layers_done(self) -> int:
        done = 0
        while self.layer_file(done).exists():
            done += 1
        return done

    def _stream_file(self, index: int) -> Path:
        """The file of the stream before a layer."""
        return self.folder / f"stream-{index:05}.safetensors"


def check_out(out: Path, *, replaces: bool) -> None:
    """Whether a folder may have a name.

    Raises:
        ConfigError: another has, and is not to be replaced, or a folder cannot be given it.
    """
    if os.path.ismount(out) or not out.name.strip("."):
        raise EngineConfigError(f"{out} cannot be a folder's new name; give --out {out / 'NAME'}")
    if out.is_symlink():
        raise EngineConfigError(f"{out} is a symbolic link; give --out where it leads")
    if not os.path.lexists(out) or (out.is_dir() and not any(out.iterdir())):
        return
    if not replaces:
        raise EngineConfigError(f"{out} exists; give another --out, or --force to replace it")
    if not (out / REPORT).is_file():
        raise EngineConfigError(
            f"{out} was not written by this command, for it has no {REPORT}: remove it"
            " yourself, or give another --out"
        )


def _refuse_damaged(path: Path) -> None:
    """Look at a file that an earlier run has left.

    Raises:
        ConfigError: it is not whole.
    """
    try:
        read_header(path)
    except LoadError as error:
        raise EngineConfigError(f"--resume: {error}; --force begins anew") from error


def _locked(folder: Path) -> int:
    """A handle that keeps others out.

    Raises:
        ConfigError: somebody else is at work there.
        WriteError: it cannot be had.
    """
    path = folder / _LOCK
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise atomic_files.WriteError(f"cannot write {path}: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever had it may have removed the folder since it was opened.
        is_whole = path.exists() and os.path.samestat(os.fstat(handle), path.stat())
    except BlockingIOError:
        is_whole = False
    except OSError as error:
        os.close(handle)
        raise atomic_files.WriteError(f"cannot lock {path}: {error.strerror}") from error
    if not is_whole:
        os.close(handle)
        raise EngineConfigError(f"another process writes {folder}; wait for it")
    return handle


def _origin_of(out: Path) -> object:
    """What a complete checkpoint was made of; None if it does not say."""
    return _read(out / REPORT).get("digests")


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
