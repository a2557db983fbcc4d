"""General checks of ``gatewayd doctor``; none changes anything or raises."""

from __future__ import annotations

import http.client
import importlib.metadata
import importlib.util
import json
import os
import resource
import sys
from pathlib import Path

from gatewayd.cli.doctor.finding import Finding
from gatewayd.config.catalogue import ModelConfig, model_configs
from gatewayd.config.device_defaults import sizes
from gatewayd.config.strategies import NONE
from gatewayd.config.tables import Config
from gatewayd.engines.replicas.launch import model_folder
from gatewayd.engines.replicas.weight_bytes import expected_bytes, files_of_weights

_MIN_PYTHON = (3, 11)
_GIB = 1 << 30
# The engine's default, repeated here because its module imports torch.
_CPU_KV_BYTES = _GIB


def python(config: Config) -> Finding:
    """Check the version of the Python interpreter."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < _MIN_PYTHON:
        return Finding("python", "failure", f"{version}; 3.11 or later is needed")
    return Finding("python", "ok", version)


def torch(config: Config) -> Finding:
    """Check that torch is installed, without importing it, which takes seconds."""
    if importlib.util.find_spec("torch") is None:
        return Finding("torch", "failure", "not installed; the engine needs it: pip install torch")
    return Finding("torch", "ok", importlib.metadata.version("torch"))


def memory(config: Config) -> Finding:
    """Compare free memory with the needs of the model and the KV cache."""
    available = _available_bytes()
    device = sizes(config.engine).device
    weights = expected_bytes(config, device)
    pages = _CPU_KV_BYTES if config.engine.kv_memory is None else int(config.engine.kv_memory)
    given = config.engine.copy_memory
    copies = pages if given is None else int(given)
    if given is None and config.kv_codec.strategy != NONE:
        # Copies are decoded, so they are larger than the encoded records in pages.
        copies = max(pages, _CPU_KV_BYTES)
    if device != "cpu":
        pages = copies = 0  # the KV cache is in GPU memory, without copies
    needed = config.engine.replicas * (weights + pages + copies)
    text = (
        f"{available / _GIB:.1f} GiB free; up to {needed / _GIB:.1f} GiB for "
        f"{config.engine.replicas} engine(s) with weights and a full KV cache"
    )
    if needed > available:
        return Finding("memory", "warning", f"{text}; lower [engine] kv_memory or copy_memory")
    return Finding("memory", "ok", text)


def descriptors(config: Config) -> Finding:
    """Compare file descriptor limits with ``[server] connections``.

    The daemon raises its soft limit itself.
    """
    from gatewayd.daemon.systemd.descriptors import descriptors_for

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = descriptors_for(config.server.connections)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        text = (
            f"{hard} allowed, {wanted} needed for [server] connections; raise ulimit -Hn, or "
            "LimitNOFILE= of the unit"
        )
        return Finding("descriptors", "warning", text)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        return Finding("descriptors", "ok", f"{soft} allowed; the daemon raises it to {wanted}")
    return Finding("descriptors", "ok", f"{soft} allowed")


def port(config: Config) -> Finding:
    """Check that the port is free, or that a gatewayd answers on it."""
    from gatewayd.http.server.listener import ListenError, listen

    host, number = config.server.host, config.server.port
    try:
        listen(host, number).close()
    except ListenError as error:
        if _is_ours(host, number):
            return Finding("port", "ok", f"a gatewayd answers on {number} of {host}")
        return Finding("port", "failure", str(error))
    return Finding("port", "ok", f"{number} of {host} is free")


def _is_ours(host: str, number: int) -> bool:
    """Whether a gatewayd answers at this address."""
    connection = http.client.HTTPConnection(host, number, timeout=1)
    try:
        connection.request("GET", "/readyz")
        answer = json.loads(connection.getresponse().read(4096))
        return answer["status"] in ("ready", "not_ready")
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return False
    finally:
        connection.close()


def model(config: Config) -> Finding:
    """Check that the model's folder is readable and complete."""
    try:
        folder = model_folder(config)
    except ValueError as error:
        return Finding("model", "failure", str(error))
    try:
        described = json.loads((folder / "config.json").read_text("utf-8"))
        architecture = str((described.get("architectures") or ["none"])[0])
    except (OSError, ValueError, AttributeError) as error:
        return Finding("model", "failure", f"{folder} is not a Hugging Face checkpoint: {error}")
    missing = [name for name in ("tokenizer.json",) if not (folder / name).is_file()]
    if not config.model.dummy_weights and not files_of_weights(folder):
        missing.append("*.safetensors or *.gguf")
    if missing:
        return Finding("model", "failure", f"{folder} has no {' and no '.join(missing)}")
    return Finding("model", "ok", f"{folder}: {architecture}")


def plugins(config: Config) -> Finding:
    """Check that enabled plugins load with their settings, each in a separate process."""
    from gatewayd.cli.authoring.health import check
    from gatewayd.config.chosen_strategies import enabled, settings_of
    from gatewayd_hooks.host.catalog import Catalog

    models = model_configs(config)
    # By plugin and settings: each check is a process, and models share most of them.
    shared: dict[tuple[str, str], list[ModelConfig]] = {}
    for model in models:
        for plugin in sorted(enabled(model.config)):
            given = repr(settings_of(model.config, plugin))
            shared.setdefault((plugin, given), []).append(model)
    found: dict[str, list[str]] = {"failure": [], "warning": []}
    for model in models:
        own = {plugin: having for (plugin, _), having in shared.items() if having[0] is model}
        if not own:
            continue
        settings = {plugin: settings_of(model.config, plugin) for plugin in own}
        for checkup in check(Catalog.installed(), own, settings, only=own):
            having = own[checkup.plugin]
            where = ", ".join(one.table for one in having) + ": "
            for problem in checkup.problems:
                text = f"{checkup.plugin} {problem.text}: {problem.advice}"
                found[checkup.state].append(text if len(having) == len(models) else where + text)
    if found["failure"]:
        return Finding("plugins", "failure", "; ".join(found["failure"]))
    if found["warning"]:
        return Finding("plugins", "warning", "; ".join(found["warning"]))
    return Finding("plugins", "ok", f"all {len(enabled(config))} enabled plugins load")


def _available_bytes() -> int:
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    # Without /proc all memory counts as free.
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
