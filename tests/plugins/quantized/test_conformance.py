"""Quantized formats: pass the kit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gatewayd_hooks.quantization import Stored
from gatewayd_hooks.testing.quantization import QuantizerConformance
from gatewayd_quant_awq.strategy import Awq
from gatewayd_quant_compressed_tensors.strategy import CompressedTensors
from gatewayd_quant_fp8.config import Fp8QuantizerConfig
from gatewayd_quant_fp8.strategy import Fp8Quantizer
from gatewayd_quant_gptq.strategy import Gptq
from tests.plugins.quantized.format_cases import CASES

Damages = Sequence[tuple[Mapping[str, Any], str]]


class TestAwq(QuantizerConformance):
    def make(self) -> Awq:
        return Awq()

    def announced(self) -> Mapping[str, Any]:
        return CASES["awq"].announced

    def damages(self) -> Damages:
        return [
            ({"bits": 8}, "bits"),
            ({"version": "gemv"}, "version"),
            ({"group_size": 7}, "group"),
        ]


class TestGptq(QuantizerConformance):
    def make(self) -> Gptq:
        return Gptq()

    def announced(self) -> Mapping[str, Any]:
        return CASES["gptq"].announced

    def damages(self) -> Damages:
        return [({"bits": "4"}, "bits"), ({"sym": 1}, "sym"), ({"dynamic": {"a": {}}}, "dynamic")]


class TestGptqWithAnOrder(TestGptq):
    def announced(self) -> Mapping[str, Any]:
        return CASES["gptq with an order"].announced

    def sample(
        self, forms: Mapping[str, Stored], generator: torch.Generator
    ) -> dict[str, torch.Tensor]:
        made = super().sample(forms, generator)
        made["g_idx"] %= forms["scales"].shape[0]
        return made


class TestCompressedTensors(QuantizerConformance):
    def make(self) -> CompressedTensors:
        return CompressedTensors()

    def announced(self) -> Mapping[str, Any]:
        return CASES["integers with zeros"].announced

    def damages(self) -> Damages:
        return [
            ({"format": "dense"}, "format"),
            ({"config_groups": {}}, "config_groups"),
            ({"ignore": 3}, "ignore"),
            ({"quantization_status": "calibration"}, "quantization_status"),
        ]


class TestPackedCompressedTensors(TestCompressedTensors):
    def announced(self) -> Mapping[str, Any]:
        return CASES["packed with zeros"].announced

    def sample(
        self, forms: Mapping[str, Stored], generator: torch.Generator
    ) -> dict[str, torch.Tensor]:
        made = super().sample(forms, generator)
        rows, words = forms["weight_packed"].shape
        made["weight_shape"] = torch.tensor([rows, 8 * words])
        return made


class TestFp8(QuantizerConformance):
    def make(self) -> Fp8Quantizer:
        return Fp8Quantizer(Fp8QuantizerConfig())

    def announced(self) -> Mapping[str, Any]:
        return CASES["fp8 in blocks"].announced

    def damages(self) -> Damages:
        return [({"weight_block_size": [128]}, "weight_block_size"), ({"fmt": "e5m2"}, "fmt")]


class TestPackedFp8(TestFp8):
    def make(self) -> Fp8Quantizer:
        return Fp8Quantizer(Fp8QuantizerConfig(packed=True))


class TestNvfp4CompressedTensors(TestCompressedTensors):
    def announced(self) -> Mapping[str, Any]:
        return CASES["floats of 4 bits"].announced
