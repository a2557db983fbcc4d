"""Target of ``bench offline`` and ``bench serve``: a model and a configuration.

Weights are always random, because the speed of a dense model does not depend on them.
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
    # Length of the longest workload.
    "model.max_model_len": 16_384 + 128,
}
"""Default settings for ``llama-8b`` on a GPU; elsewhere the daemon's own defaults apply, because
other models may take fewer tokens."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Model and configuration that are measured.

    Attributes:
        name: of the model.
        folder: folder with its ``config.json`` and tokenizer.
        settings: configuration values by dotted key.
    """

    name: str
    folder: Path
    settings: dict[str, Any]

    def config(self) -> Config:
        """Build the daemon's configuration from the settings alone.

        Raises:
            ConfigError: a setting is invalid; the message names it.
        """
        return load(None, self.settings, {}).config

    @property
    def arithmetic(self) -> str:
        """Dtype that the engine will use, resolved without starting one."""
        dtype: str = self.settings["model.dtype"]
        if dtype != "auto":
            return dtype
        return "bfloat16" if self.settings["engine.device"].startswith("cuda") else "float32"

    def environment(self) -> dict[str, str]:
        """Return the settings as environment variables for a daemon process."""
        return {
            f"{ENV_PREFIX}{key.replace('.', ENV_DELIMITER)}".upper(): str(value)
            for key, value in self.settings.items()
        }


@contextmanager
def subject(model: str | None, device: str, options: dict[str, Any]) -> Iterator[Subject]:
    """Provide the target of a benchmark, with a temporary folder for generated models.

    Args:
        model: a folder, ``llama-8b``, or None for the embedded model.
        device: as in ``[engine] device``.
        options: other configuration values by dotted key; None leaves the default.

    Raises:
        ValueError: there is no such folder.
        ConfigError: another option is invalid.
    """
    given = {key: value for key, value in options.items() if value is not None}
    sizes = _CUDA_SIZES if model == LLAMA_8B and device.startswith("cuda") else {}
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
        # Validated here, so that an invalid option is reported before anything is started.
        found.config()
        yield found
