"""Identification of the machine, as far as measurements depend on it."""

from __future__ import annotations

from importlib import import_module, metadata

import torch

from gatewayd_engine.tuning.table import TunedMachine

_ABSENT = "absent"


def this_machine(device: torch.device) -> TunedMachine:
    """Return the chip of a CUDA device and the versions of the libraries that compute on it."""
    properties = torch.cuda.get_device_properties(device)
    versions = {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda or _ABSENT,
        "triton": _version("triton"),
        "flashinfer": _version("flashinfer"),
        # The project's own kernels are among the candidates.
        "gatewayd": metadata.version("gatewayd"),
    }
    capability = f"{properties.major}.{properties.minor}"
    chip = f"{properties.name}, {properties.multi_processor_count} multiprocessors"
    return TunedMachine(chip, capability, versions)


def _version(module: str) -> str:
    """Return a module's own version, because vendored modules have no package metadata."""
    try:
        return str(import_module(module).__version__)
    except ImportError:
        return _ABSENT
