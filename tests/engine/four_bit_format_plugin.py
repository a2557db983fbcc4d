"""Third-party quantizer plugin with a 4-bit format of its own: written, read, rounded."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from gatewayd_hooks.host.catalog import Catalog, Entry
from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.quantization import Announcement, GroupedWeight, Matrix, Stored
from gatewayd_hooks.strategy import StrategyConfig, StrategyInfo

GROUP = 16


def catalog() -> Catalog:
    """What is installed, and this."""
    ours = [
        Entry("quantizer", "int8", "gatewayd", "0.1.0", "gatewayd_quant_int8"),
        Entry("quantizer", "nibbles", "gatewayd-quant-nibbles", "2.0", __name__),
        Entry("quantizer", "rounds", "gatewayd-quant-nibbles", "2.0", __name__),
    ]
    names = {entry.plugin for entry in ours}
    return Catalog([*ours, *(e for e in Catalog.installed().entries if e.plugin not in names)])


def rounded(weight: torch.Tensor) -> GroupedWeight:
    """Codes of 4 bits: a scale and the least number for each 16 neighbours, both as float16."""
    groups = torch.unflatten(weight, 1, (-1, GROUP))
    least, most = groups.amin(-1).half().float(), groups.amax(-1)
    scales = ((most - least) / 15).clamp_min(1e-6).half().float()
    codes = (groups - least.unsqueeze(-1)).div_(scales.unsqueeze(-1)).round_().clamp_(0, 15)
    return GroupedWeight(codes.to(torch.uint8).flatten(1), scales, least, 4)


def meant(weight: GroupedWeight) -> torch.Tensor:
    """Its numbers, column by column."""
    columns = [
        weight.codes[:, column].float() * weight.scales[:, column // GROUP]
        + (0.0 if weight.offsets is None else weight.offsets[:, column // GROUP])
        for column in range(weight.codes.shape[1])
    ]
    return torch.stack(columns, 1)


class Nibbles:
    """The format: two codes in a byte, the first in its low half."""

    def open(self, resources: Any) -> None:
        """See ``QuantizerStrategy``."""

    def close(self) -> None:
        """See ``QuantizerStrategy``."""

    def scheme(self, announced: Announcement) -> Nibbles:
        """See ``Reads``."""
        unknown = announced.values.keys() - {"quant_method", "bits"}
        if unknown:
            raise ValueError(f"{announced.where}.{min(unknown)} is not known")
        if announced.values.get("bits") != 4:
            raise ValueError(f"{announced.where}.bits must be 4")
        return self

    def stored(self, matrix: Matrix) -> Mapping[str, tuple[Stored, ...]] | None:
        """See ``Scheme``."""
        if matrix.name == "lm_head":
            return None
        groups = Stored("F16", (matrix.rows, matrix.columns // GROUP))
        packed = Stored("U8", (matrix.rows, matrix.columns // 2))
        return {"packed": (packed,), "scales": (groups,)}

    def optional(self, matrix: Matrix) -> Mapping[str, tuple[Stored, ...]]:
        """See ``Scheme``."""
        return {"least": (Stored("F16", (matrix.rows, matrix.columns // GROUP)),)}

    def weight(self, matrix: Matrix, take: Callable[[str], torch.Tensor]) -> GroupedWeight:
        """See ``Scheme``."""
        packed, scales = take("packed"), take("scales").float()
        try:
            least = take("least").float()
        except KeyError:
            least = torch.zeros_like(scales)
        if not (scales.isfinite().all() and least.isfinite().all()):
            raise ValueError("a scale is not finite")
        codes = torch.stack((packed & 15, packed >> 4), -1).flatten(1)
        return GroupedWeight(codes, scales, least, 4)


class Rounds:
    """The same codes, made while loading."""

    def open(self, resources: Any) -> None:
        """See ``QuantizerStrategy``."""

    def close(self) -> None:
        """See ``QuantizerStrategy``."""

    def quantize(self, matrix: Matrix, weight: torch.Tensor) -> GroupedWeight:
        """See ``Quantizes``."""
        return rounded(weight)


@hookimpl
def gatewayd_quantizers() -> Sequence[StrategyInfo[Any]]:
    """Offer both."""
    return [
        StrategyInfo("nibbles", StrategyConfig, lambda config: Nibbles(), "4 bits."),
        StrategyInfo("rounds", StrategyConfig, lambda config: Rounds(), "4 bits, while loading."),
    ]


def pack(folder: Path, **announced: Any) -> dict[str, torch.Tensor]:
    """Quantize the one file of a checkpoint of floats in place.

    Returns:
        The numbers that its tensors mean now.
    """
    path = folder / "model.safetensors"
    stored: dict[str, torch.Tensor] = {}
    numbers = dict(load_file(path))
    for name, tensor in numbers.items():
        stem = name.removesuffix(".weight")
        if tensor.dim() != 2 or stem == "lm_head":
            stored[name] = tensor
            continue
        made = rounded(tensor.float())
        assert made.offsets is not None
        stored[f"{stem}.packed"] = made.codes[:, ::2] | made.codes[:, 1::2] << 4
        stored[f"{stem}.scales"] = made.scales.half()
        stored[f"{stem}.least"] = made.offsets.half()
        numbers[name] = meant(made)
    save_file(stored, path)
    announce(folder, {"quant_method": "nibbles", "bits": 4, **announced})
    return numbers


def announce(folder: Path, values: Mapping[str, Any] | None) -> None:
    """Let config.json say how the weights are quantized."""
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = values
    (folder / "config.json").write_text(json.dumps(config))
