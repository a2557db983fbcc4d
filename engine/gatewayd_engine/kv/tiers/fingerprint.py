"""What the KV of a token depends on beside the tokens before it, as a digest."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from gatewayd_engine.process.config import EngineConfig, StrategyChoice
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.host.settings import decode
from gatewayd_hooks.strategy import Kind

_FORM = b"kv/1"
_SAMPLES, _SAMPLE_BYTES = 64, 1 << 16


def fingerprint(config: EngineConfig, *forms: str) -> bytes:
    """Tell engines apart that would compute other bits for the same tokens.

    Weights are told apart by names, sizes, times of change and samples of their files: reading
    them whole would take as long as loading them.

    Args:
        config: of the engine.
        forms: what its weights and its pool are in, with settings and version; none for numbers as
            they are.

    Returns:
        32 bytes.
    """
    digest = hashlib.blake2b(_FORM, digest_size=32)
    capability = "" if config.device != "cpu" else torch.backends.cpu.get_cpu_capability()
    numbers = (
        config.page_size,
        config.max_model_len,
        config.seed if config.dummy_weights else None,
    )
    for part in (torch.__version__, capability, config.device, config.dtype, *numbers):
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
    """What a strategy makes bytes in: its name, all its settings, and whose it is.

    Settings are those that count: what nobody has set is in it, and what is set to that as well.

    Raises:
        PluginError: it is not installed, or refuses its settings.
    """
    name = f"{kind}.{choice.name}"
    settings = decode(name, host.info(kind, choice.name).config_type, choice.settings)
    return f"{name} {settings!r} of {host.owner(kind, choice.name)}"


def add_file(digest: hashlib.blake2b, path: Path) -> None:
    """Tell a file of weights apart, by name, size, time of change and samples of it."""
    state = path.stat()
    digest.update(f"{path.name}\0{state.st_size}\0{state.st_mtime_ns}\0".encode())
    with path.open("rb") as file:
        for i in range(_SAMPLES):
            file.seek(i * state.st_size // _SAMPLES)
            digest.update(file.read(_SAMPLE_BYTES))
