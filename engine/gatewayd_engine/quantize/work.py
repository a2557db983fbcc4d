"""What is done so far, in a folder beside the one that will be: layers, and the stream behind them.

A layer is done when its file is there. The folder says of what it is made, so that nobody goes on
with something else.
"""

from __future__ import annotations

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

from gatewayd_engine.config import ConfigError
from gatewayd_engine.quantize import files
from gatewayd_engine.quantize.job import REPORT, Fitted

SUFFIX = ".part"
_STATE, _LOCK, _CHECKPOINT = "state.json", "lock", "checkpoint"
_STREAM, _TOLD = "stream", "told"
_OLD = "old"
_REPLACES = "replaces"
"""Whether --force was given to take the place of what was there; --resume goes on with that."""
_OWN = re.compile(r"(checkpoint|old|state\.json|(layer|stream)-\d{5,}\.safetensors)(\.unfinished)?")


class Work:
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
        state = _read(self.folder / _STATE)
        self._replaces = state.get(_REPLACES) is True if resume else force
        if resume and self.folder.is_dir() and _origin_of(out) == dict(origin):
            # It ended between the last two things that it does.
            files.remove(self.folder)
            raise ConfigError(f"{out} was complete already; what was left beside it is removed")
        self._check_out()
        files.make(self.folder)
        self._lock = _locked(self.folder)
        try:
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
        """What comes out behind the layers that are done, by sequences of so many tokens."""
        if not self.done:
            return None
        return list(torch.split(load_file(self._stream_file(self.done))[_STREAM], list(lengths)))

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
            files.write_tensors(self._stream_file(index + 1), {_STREAM: torch.cat(list(stream))})
        text = msgspec.json.encode(list(told)).decode()
        files.write_tensors(self.layer_file(index), tensors, told=text)
        files.remove(self._stream_file(index))
        self.done = index + 1

    def finish(self) -> None:
        """Give the checkpoint its name, and remove the work.

        Raises:
            WriteError: something else has the name, or it cannot be given.
        """
        old = self.folder / _OLD
        if self._out.exists():
            self._check_out()
            files.move(self._out, old)
        files.move(self.checkpoint, self._out)
        files.remove(self.folder)

    def _check_out(self) -> None:
        """Whether a folder may have the name.

        Raises:
            ConfigError: another has, and is not to be replaced.
        """
        out = self._out
        if not os.path.lexists(out) or (out.is_dir() and not any(out.iterdir())):
            return
        if not self._replaces:
            raise ConfigError(f"{out} exists; give another --out, or --force to replace it")
        if out.is_symlink() or not (out / REPORT).is_file():
            raise ConfigError(
                f"{out} was not written by this command, for it has no {REPORT}: remove it"
                " yourself, or give another --out"
            )

    def _begin(self, origin: dict[str, str], *, resume: bool) -> None:
        """Take up what is there, or begin.

        Raises:
            ConfigError: what is there is of something else, or nobody said what to do with it.
        """
        state = self.folder / _STATE
        found = [path.name for path in self.folder.iterdir() if path.name != _LOCK]
        other = min((name for name in found if not _OWN.fullmatch(name)), default=None)
        if other is not None:
            raise ConfigError(
                f"{self.folder} holds other files, as {other}; remove it, or give another --out"
            )
        files.tidy(self.folder)
        others = sorted(path for path in self.folder.iterdir() if path.name != _LOCK)
        if others and self._force:
            # Layers before what they stand on, and last what says of what all is made.
            for path in sorted(others, key=lambda path: path == state):
                files.remove(path)
        elif others and not state.is_file():
            raise ConfigError(
                f"{self.folder} does not say of what it was made; --force begins anew"
            )
        elif others and not resume:
            raise ConfigError(
                f"{self.folder} holds {self._layers_done()} layers of an earlier run; --resume"
                " goes on with them, --force begins anew"
            )
        elif others:
            begun = _read(state)
            differs = [name for name in origin if begun.get(name) != origin[name]]
            if differs:
                raise ConfigError(
                    f"--resume: {self.folder} was begun with another {', '.join(differs)}; --force"
                    " begins anew"
                )
            files.remove(self.checkpoint)
            return
        replaces = self._force and self._out.exists()
        files.write_json(state, {**origin, _REPLACES: replaces})

    def _layers_done(self) -> int:
        done = 0
        while self.layer_file(done).exists():
            done += 1
        return done

    def _stream_file(self, index: int) -> Path:
        """The file of the stream before a layer."""
        return self.folder / f"stream-{index:05}.safetensors"


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
        raise files.WriteError(f"cannot write {path}: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise ConfigError(f"another process writes {folder}; wait for it") from None
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
