"""What ``bench offline`` and ``bench serve`` measure: a model, a device, the sizes of the engine.

Weights are always random: the speed of a dense model does not depend on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gatewayd.cli.bench.dummy import LLAMA_8B, write_llama_8b
from gatewayd.config.load import load
from gatewayd.config.tables import ENV_DELIMITER, ENV_PREFIX, Config
from gatewayd_engine.model import embedded

_CUDA_SIZES = {
    # The longest of the workloads.
    "model.max_model_len": 16_384 + 128,
}
"""On a GPU, where no option says otherwise; on a CPU the daemon's own defaults."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured.

    Attributes:
        name: of the model.
        folder: its ``config.json`` and tokenizer.
        settings: values of the configuration by dotted key.
    """

    name: str
    folder: Path
    settings: dict[str, Any]

    def config(self) -> Config:
        """The daemon's configuration, of this and of nothing else.

        Raises:
            ConfigError: names the option and what is wrong with it.
        """
        return load(None, self.settings, {}).config

    @property
    def arithmetic(self) -> str:
        """Of the engine, as far as it can be said without asking one."""
        dtype: str = self.settings["model.dtype"]
        if dtype != "auto":
            return dtype
        return "bfloat16" if self.settings["engine.device"].startswith("cuda") else "float32"

    def environment(self) -> dict[str, str]:
        """The same as variables for a daemon of its own."""
        return {
            f"{ENV_PREFIX}{key.replace('.', ENV_DELIMITER)}".upper(): str(value)
            for key, value in self.settings.items()
        }


@contextmanager
def subject(model: str | None, device: str, options: dict[str, Any]) -> Iterator[Subject]:
    """Have what is measured at hand while the block lasts.

    Args:
        model: a folder, ``llama-8b``, or None for the embedded model.
        device: as in ``[engine] device``.
        options: other values of the configuration by dotted key; None is not given.

    Raises:
        ValueError: there is no such folder.
        ConfigError: another option cannot be.
    """
    given = {key: value for key, value in options.items() if value is not None}
    sizes = _CUDA_SIZES if device.startswith("cuda") else {}
    common = {**sizes, **given, "engine.device": device, "model.dummy_weights": True}
    with TemporaryDirectory(prefix="gatewayd-bench-") as made:
        if model is None:
            folder = embedded.folder()
        elif model == LLAMA_8B:
            folder = Path(made) / LLAMA_8B
            folder.mkdir()
            write_llama_8b(folder)
        else:
            folder = Path(model).expanduser()
            if not (folder / "config.json").is_file():
                raise ValueError(f"{model!r} is neither {LLAMA_8B} nor a folder with a config.json")
        found = Subject(folder.resolve().name, folder, {"model.path": str(folder), **common})
        found.config()
        yield found
