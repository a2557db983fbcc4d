"""Fingerprint of everything but the tokens that a page's KV depends on."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from gatewayd_engine.kernels.cpu.select import kernels_name
from gatewayd_engine.process.config import EngineConfig, StrategyChoice
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.host.settings import decode
from gatewayd_hooks.strategy import Kind

_FORM = b"kv/1"
_SAMPLES, _SAMPLE_BYTES = 64, 1 << 16


def fingerprint(config: EngineConfig, *forms: str) -> bytes:
    """Return a digest that differs for engines whose KV is not bit-identical for equal tokens.

    Weights are identified by names, sizes, modification times and samples of their files: reading
    them whole would take as long as loading them.

    Args:
        config: engine configuration.
        forms: formats of its weights and its pool, with settings and version; none for unquantized
            numbers.

    Returns:
        32 bytes.
    """
    digest = hashlib.blake2b(_FORM, digest_size=32)
    # Instruction sets differ in the order of additions, and so in the last bits.
    capability, kernels = "", ""
    if config.device == "cpu":
        capability = torch.backends.cpu.get_cpu_capability()
        kernels = f"{kernels_name(config.cpu_kernels)}, {config.cpu_activations}"
    numbers = (
        config.page_size,
        # Selects the frequencies of longrope.
        config.max_model_len,
        # Dummy weights are drawn from the seed, and have no files to identify them.
        config.seed if config.dummy_weights else None,
    )
    for part in (torch.__version__, capability, kernels, config.device, config.dtype, *numbers):
        digest.update(repr(part).encode() + b"\0")
    for form in forms:
        digest.update(form.encode() + b"\0")
    folder = Path(config.model)
    digest.update((folder / "config.json").read_bytes())
    if not config.dummy_weights:
        for path in sorted((*folder.glob("*.safetensors"), *folder.glob("*.gguf"))):
            add_file(digest, path)
    return digest.digest()


def form_name(host: PluginHost, kind: Kind, choice: StrategyChoice) -> str:
    """Return an identifier of the format a strategy writes: its name, settings and distribution.

    Settings include defaults, so a setting that equals its default does not make a difference.

    Raises:
        PluginError: it is not installed, or rejects its settings.
    """
    name = f"{kind}.{choice.name}"
    settings = decode(name, host.info(kind, choice.name).config_type, choice.settings)
    return f"{name} {settings!r} of {host.owner(kind, choice.name)}"


def add_file(digest: hashlib.blake2b, path: Path) -> None:
    """Add a weights file to a digest: name, size, modification time and samples."""
    state = path.stat()
    digest.update(f"{path.name}\0{state.st_size}\0{state.st_mtime_ns}\0".encode())
    with path.open("rb") as file:
        for i in range(_SAMPLES):
            file.seek(i * state.st_size // _SAMPLES)
            digest.update(file.read(_SAMPLE_BYTES))
