"""Progress of a quantization run on disk, in a work folder next to the output folder.

It contains a file for each finished layer and the residual stream after the last of them. A layer
is done when its file exists. The folder records its origin, so that a run is never resumed with
another model, text or setting.
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
_STREAM, _FITS = "stream", "told"
_OLD = "old"
_REPLACES = "replaces"
"""Whether --force was given to replace an existing output; remembered for --resume."""
_OWN = re.compile(r"(checkpoint|old|state\.json|(layer|stream)-\d{5,}\.safetensors)(\.unfinished)?")


class QuantizeProgress:
    """Exclusively locked work folder of a run.

    Args:
        out: the output folder.
        origin: digests of all that the checkpoint depends on, by name.
        resume: continue an earlier run.
        force: start over, and replace a checkpoint that was written before.

    Attributes:
        folder: the work folder.
        done: number of finished layers.

    Raises:
        EngineConfigError: there is an earlier run or another folder that may not be used.
        WriteError: the folder cannot be created.
    """

    def __init__(self, out: Path, origin: Mapping[str, str], *, resume: bool, force: bool) -> None:
        self.folder = out.with_name(out.name + SUFFIX)
        self._out = out
        self._force = force
        is_there = self.folder.is_dir()
        self._replaces = force
        # A resumed run is checked later, with the permission that the first run was started with.
        if not (resume and is_there):
            check_out(self._out, replaces=self._replaces)
        if is_there:
            # Checked before the lock file is created among unrelated files. A run that finishes
            # meanwhile removes the folder.
            with contextlib.suppress(FileNotFoundError):
                self._refuse_others()
        atomic_files.make(self.folder)
        # Files of an earlier run are only changed under the lock.
        self._lock = _locked(self.folder)
        try:
            # Again, as another process may have created files before the lock was taken.
            self._refuse_others()
            if resume and is_there:
                self._resume(dict(origin))
            self._initialize(dict(origin), resume=resume)
        except BaseException:
            self.close()
            raise
        self.done = self._layers_done()

    def close(self) -> None:
        """Release the lock; the folder stays for ``--resume``."""
        os.close(self._lock)

    @property
    def checkpoint(self) -> Path:
        """Folder in which the checkpoint is assembled."""
        return self.folder / _CHECKPOINT

    def layer_file(self, index: int) -> Path:
        """Return the path of a layer's file."""
        return self.folder / f"layer-{index:05}.safetensors"

    def stream(self, lengths: Sequence[int]) -> list[torch.Tensor] | None:
        """Read the residual stream after the finished layers, split into sequences.

        Args:
            lengths: tokens of each sequence.

        Returns:
            The stream of each sequence; None if no layer is done.

        Raises:
            EngineConfigError: its file is missing or damaged.
        """
        if not self.done:
            return None
        path = self._stream_file(self.done)
        _refuse_damaged(path)
        return list(torch.split(load_file(path)[_STREAM], list(lengths)))

    def fits(self) -> list[Fitted]:
        """Read the quantization errors of the matrices in all finished layers."""
        found: list[Fitted] = []
        for index in range(self._layers_done()):
            with safe_open(self.layer_file(index), "pt") as file:
                found += msgspec.json.decode(file.metadata()[_FITS], type=list[Fitted])
        return found

    def save_layer(
        self,
        index: int,
        tensors: Mapping[str, torch.Tensor],
        fits: Sequence[Fitted],
        stream: Sequence[torch.Tensor],
    ) -> None:
        """Write a finished layer and the residual stream after it.

        Raises:
            WriteError: a file cannot be written, such as on a full disk.
        """
        # The new stream first, then the layer's file, which marks it as done, and only then the old
        # stream is removed: the stream after the last finished layer always exists.
        if stream:
            atomic_files.write_tensors(
                self._stream_file(index + 1), {_STREAM: torch.cat(list(stream))}
            )
        text = msgspec.json.encode(list(fits)).decode()
        atomic_files.write_tensors(self.layer_file(index), tensors, told=text)
        atomic_files.remove(self._stream_file(index))
        self.done = index + 1

    def finish(self) -> None:
        """Move the checkpoint to the output folder, and remove the work folder.

        Raises:
            EngineConfigError: the output folder exists and may not be replaced.
            WriteError: a folder cannot be moved or removed.
        """
        old = self.folder / _OLD
        if self._out.exists():
            check_out(self._out, replaces=self._replaces)
            # Moved, not removed: the old output stays until the new one is in place.
            atomic_files.move(self._out, old)
        atomic_files.move(self.checkpoint, self._out)
        # First, so that an interrupted removal cannot be resumed.
        atomic_files.remove(self.folder / _STATE)
        atomic_files.remove(self.folder)

    def _refuse_others(self) -> None:
        """Refuse a folder with files that are not from a quantization run.

        Raises:
            EngineConfigError: there are such files.
        """
        found = [path.name for path in self.folder.iterdir() if path.name != _LOCK]
        other = min((name for name in found if not _OWN.fullmatch(name)), default=None)
        if other is not None:
            raise EngineConfigError(
                f"{self.folder} contains other files, such as {other}; remove it, or give another"
                " --out"
            )

    def _resume(self, origin: dict[str, str]) -> None:
        """Restore the earlier run's permission to replace, and detect if it was complete.

        Raises:
            EngineConfigError: nothing is left to be done, or the output folder may not be replaced.
        """
        state = _read(self.folder / _STATE)
        self._replaces = state.get(_REPLACES) is True
        # A checkpoint of the same origin may also be the one to be replaced: that is still to be
        # moved to ``old`` then.
        is_placed = not self._replaces or (self.folder / _OLD).exists()
        if is_placed and _origin_of(self._out) == origin:
            atomic_files.remove(self.folder)
            raise EngineConfigError(
                f"{self._out} was already complete; what was left next to it is removed"
            )
        check_out(self._out, replaces=self._replaces)

    def _initialize(self, origin: dict[str, str], *, resume: bool) -> None:
        """Check the files of an earlier run against ``origin``, or start a new run.

        Raises:
            EngineConfigError: they have another origin, or neither resume nor force was given.
        """
        state = self.folder / _STATE
        atomic_files.remove_unfinished(self.folder)
        old = self.folder / _OLD
        if self._force and old.is_dir() and not os.path.lexists(self._out):
            # The earlier run ended between its two final moves: ``old`` is the only complete
            # checkpoint, so restore it before removing anything.
            atomic_files.move(old, self._out)
        others = sorted(path for path in self.folder.iterdir() if path.name != _LOCK)
        if others and self._force:
            # Layers before the streams that follow from them, and last the state, which has their
            # origin: what remains after an interruption must stay recognisable.
            for path in sorted(others, key=lambda path: path == state):
                atomic_files.remove(path)
        elif others and not state.is_file():
            raise EngineConfigError(
                f"{self.folder} does not record what it was made from; --force starts over"
            )
        elif others and not resume:
            raise EngineConfigError(
                f"{self.folder} holds {self._layers_done()} layers of an earlier run; --resume"
                " continues with them, --force starts over"
            )
        elif others:
            begun = _read(state)
            differs = [name for name in origin if begun.get(name) != origin[name]]
            if differs:
                raise EngineConfigError(
                    f"--resume: {self.folder} was started with another {', '.join(differs)};"
                    " --force starts over"
                )
            for index in range(self._layers_done()):
                _refuse_damaged(self.layer_file(index))
            # A partly assembled checkpoint is made again, from the layers.
            atomic_files.remove(self.checkpoint)
            return
        replaces = self._force and self._out.exists()
        atomic_files.write_json(state, {**origin, _REPLACES: replaces})

    def _layers_done(self) -> int:
        done = 0
        # Only layers without a gap before them: each depends on the stream after the one before.
        while self.layer_file(done).exists():
            done += 1
        return done

    def _stream_file(self, index: int) -> Path:
        """Return the path of the residual stream before a layer."""
        return self.folder / f"stream-{index:05}.safetensors"


def check_out(out: Path, *, replaces: bool) -> None:
    """Check that the output folder can be created or replaced.

    Raises:
        EngineConfigError: it exists and may not be replaced, or its path is unsuitable.
    """
    # The folder is put in place by a rename, which these paths do not allow.
    if os.path.ismount(out) or not out.name.strip("."):
        raise EngineConfigError(f"{out} cannot be a folder's new name; give --out {out / 'NAME'}")
    if out.is_symlink():
        raise EngineConfigError(f"{out} is a symbolic link; give its target as --out")
    if not os.path.lexists(out) or (out.is_dir() and not any(out.iterdir())):
        return
    if not replaces:
        raise EngineConfigError(f"{out} exists; give another --out, or --force to replace it")
    if not (out / REPORT).is_file():
        raise EngineConfigError(
            f"{out} was not written by this command, as it has no {REPORT}: remove it"
            " yourself, or give another --out"
        )


def _refuse_damaged(path: Path) -> None:
    """Refuse a damaged file of an earlier run.

    Raises:
        EngineConfigError: its header is invalid or it is incomplete.
    """
    try:
        read_header(path)
    except LoadError as error:
        raise EngineConfigError(f"--resume: {error}; --force starts over") from error


def _locked(folder: Path) -> int:
    """Lock a work folder; return the file descriptor of the lock.

    Raises:
        EngineConfigError: another process uses the folder.
        WriteError: the lock file cannot be created or locked.
    """
    path = folder / _LOCK
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise atomic_files.WriteError(f"cannot write {path}: {error.strerror}") from error
    try:
        # Released by the system when the process ends, in whatever way.
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The previous owner may have removed the folder since the lock file was opened.
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
    """Return the origin recorded in a complete checkpoint; None if there is none."""
    return _read(out / REPORT).get("digests")


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
