"""No host reads: captured steps of any model, format and kind read no tensor on the host."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gatewayd_draft_eagle.config import EagleConfig
from gatewayd_draft_eagle.strategy import Eagle
from gatewayd_draft_medusa.config import MedusaConfig
from gatewayd_draft_medusa.strategy import Medusa
from gatewayd_engine.attention import select
from gatewayd_engine.attention.append import Append
from gatewayd_engine.attention.triton_decode import CapturedDecode
from gatewayd_engine.model import embedded
from gatewayd_engine.model.decoder import Decoder
from gatewayd_engine.model.layers import FeedForward
from gatewayd_engine.model.linears.select_gpu import DenseGpuLinear
from gatewayd_engine.model.moe import GroupedExperts
from gatewayd_engine.model.spec import read_spec
from gatewayd_engine.runner.gpu.draft_model import DeviceRowModel
from gatewayd_engine.runner.gpu.drafter_graphs import DrafterLaunches
from gatewayd_engine.runner.gpu.runner import DeviceRunner
from gatewayd_engine.speculation.draft_heads import read_heads
from gatewayd_engine.speculation.draft_models import DraftTarget
from gatewayd_hooks.quantization import Matrix, StaticWeight, Weight
from gatewayd_hooks.speculation import Heads
from tests.engine.runner.gpu import meta_device
from tests.engine.runner.gpu.meta_device import LINES, MAX_LEN, decoder_of, install, runner_of
from tests.engine.runner.gpu.no_host_reads import DEVICE, Unread, Waits
from tests.engine.runner.gpu.test_experts import FORMS, by_row
from tests.engine.runner.gpu.test_no_host_reads_faults import FAULTS

TOKENS = [48]
"""More than are multiplied with codes of few bits."""
CONFIGS = {
    "llama": meta_device.DENSE,
    "qwen3": meta_device.QWEN3,
    "gemma2": meta_device.GEMMA2,
    "mixtral": meta_device.MIXTRAL,
    "glm4_moe": meta_device.GLM4_MOE,
    "gpt_oss": meta_device.GPT_OSS,
    "deepseek_v3": meta_device.DEEPSEEK,
}


def by_one_scale(matrix: Matrix, weight: torch.Tensor) -> Weight:
    made = by_row(torch.float8_e4m3fn)(matrix, weight)
    assert not isinstance(made, torch.Tensor)
    return StaticWeight(made, "e4m3", 0.5)  # type: ignore[arg-type]


QUANTIZED = {name: quantize for name, (quantize, _) in FORMS.items()} | {"static": by_one_scale}
LAUNCHED = {
    "floats": ("_norm_mm", "_expert_mm"),
    "e4m3 by row": ("_gated_quant", "_expert_mm"),
    "int8 by row": ("_scaled", "_expert_mm"),
    "e4m3 in blocks": ("_block_mm", "_expert_mm"),
    "e4m3 for floats": ("_expand", "_packed_mm"),
    "4 bits": ("_grouped_mm", "_packed_mm"),
    "static": ("_gated", ""),
}
"""What each is multiplied with, or rounded: of a dense model, and of experts."""


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch, flashinfer: SimpleNamespace) -> Unread:
    """What is captured with, once tensors without numbers are those of a GPU."""
    made = Unread()
    install(monkeypatch, made)
    return made


@pytest.fixture
def kernels(capture: Unread) -> Any:
    """The project's, which are not launched."""
    from gatewayd_engine.kernels.triton_kernels import TritonKernels

    return TritonKernels(can_launch_early=True)


def capture_steps(runner: DeviceRunner, capture: Unread, lines: list[int]) -> list[int]:
    """Capture steps with prompts, and decode steps; how many there are of each."""
    runner.capture_pieces(TOKENS, capture, lambda part: None)
    num_mixed = capture.captured
    runner.capture(lines, capture, lambda part: None)
    assert capture.errors == []
    return [num_mixed, capture.captured - num_mixed]


@pytest.mark.parametrize("attention", ["flashinfer", "own", "cascade"])
@pytest.mark.parametrize("name", CONFIGS)
def test_steps_of_all_kinds_are_captured_unread(
    name: str,
    attention: str,
    tmp_path: Path,
    kernels: Any,
    capture: Unread,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if attention == "own":
        monkeypatch.setattr(select, "find_spec", lambda name: None)
    kernels.launches_early = attention == "own"
    decoder = decoder_of(tmp_path, CONFIGS[name], kernels)
    runner = runner_of(decoder, kernels, shares_prefixes=attention == "cascade")
    # With a beginning in common and without, but of a line alone, and with windows, which hide it.
    shares = attention == "cascade" and name not in ("gemma2", "gpt_oss")
    # Each up to the logits, and whole.
    assert capture_steps(runner, capture, [1, 2, LINES]) == [len(TOKENS), 2 * (3 + 2 * shares)]
    wanted = {"_gather", "_rope_append", "_choose", "_add_rms_norm"}
    wanted |= {"_norm_heads"} if name == "qwen3" else set()
    wanted |= (
        {"_expert_mm"} if "moe" in name or name in ("mixtral", "gpt_oss", "deepseek_v3") else set()
    )
    wanted |= {"_gated"} if name not in ("mixtral", "gpt_oss") else set()
    wanted |= {"_scale_by_sinks"} if name == "gpt_oss" and attention != "own" else set()
    is_own = attention == "own" or shares or name == "deepseek_v3"
    wanted |= {"_decode_attention"} if is_own else set()
    assert wanted <= capture.launched.keys()


@pytest.mark.parametrize("name", CONFIGS)
def test_steps_with_drafts_are_captured_unread(
    name: str, tmp_path: Path, kernels: Any, capture: Unread
) -> None:
    decoder = decoder_of(tmp_path, CONFIGS[name], kernels)
    runner = runner_of(decoder, kernels, shares_prefixes=False)
    runner.capture_drafted(capture, lambda part: None)
    assert capture.errors == []
    assert capture.captured > LINES
    assert {"_slots", "_rope_append", "_decode_attention"} <= capture.launched.keys()


@pytest.mark.parametrize("config", ["llama", "mixtral"])
@pytest.mark.parametrize("name", QUANTIZED)
def test_formats_of_weights_are_captured_unread(
    name: str, config: str, tmp_path: Path, kernels: Any, capture: Unread
) -> None:
    decoder = decoder_of(tmp_path, CONFIGS[config], kernels, QUANTIZED[name])
    runner = runner_of(decoder, kernels, shares_prefixes=False, element=torch.float8_e4m3fn)
    if (name, config) == ("static", "mixtral"):
        # Experts with one scale for all inputs are multiplied one by one.
        assert not decoder.is_capturable
        return
    assert capture_steps(runner, capture, [2, LINES]) == [len(TOKENS), 4]
    assert LAUNCHED[name][config == "mixtral"] in capture.launched


def test_a_draft_model_is_captured_unread(tmp_path: Path, kernels: Any, capture: Unread) -> None:
    model = DeviceRowModel(
        decoder_of(tmp_path, meta_device.DENSE, kernels), kernels, LINES, MAX_LEN
    )
    model.capture(capture, lambda part: None)
    assert capture.errors == []
    assert capture.captured >= 8
    assert {"_slots", "_decode_attention", "_choose"} <= capture.launched.keys()


@pytest.mark.parametrize(
    ("kind", "drafter"),
    [("medusa", Medusa(MedusaConfig())), ("eagle", Eagle(EagleConfig()))],
    ids=["medusa", "eagle"],
)
def test_what_drafters_launch_is_captured_unread(
    kind: str, drafter: Any, tmp_path: Path, kernels: Any, capture: Unread
) -> None:
    folder = embedded.folder("nano")
    spec = read_spec(folder)
    target = DraftTarget(spec.hidden_size, torch.bfloat16)
    target.set_model(
        decoder_of(tmp_path, json.loads((folder / "config.json").read_text()), kernels)
    )
    launches = DrafterLaunches(LINES)

    def heads(setting: str, kind: str) -> Heads:
        tensors, facts = read_heads(setting, kind, folder, target, spec.vocab_size, "cpu")
        return Heads({name: tensor.to(DEVICE) for name, tensor in tensors.items()}, facts)

    resources: Any = SimpleNamespace(
        target=target,
        read_heads=heads,
        max_running=LINES,
        max_model_len=MAX_LEN,
        device="cuda",
        capture=launches,
    )
    drafter.open(resources)
    launches.capture(capture, lambda part: None)
    assert capture.errors == []
    assert capture.captured == 4


@pytest.mark.parametrize(
    ("owner", "method", "config"),
    [
        (Append, "__call__", "llama"),
        (Decoder, "raw_logits", "llama"),
        (FeedForward, "add_to", "llama"),
        (GroupedExperts, "_run_experts", "mixtral"),
        (DenseGpuLinear, "__call__", "qwen3"),
        (CapturedDecode, "attended", "llama"),
    ],
)
@pytest.mark.parametrize("fault", ["item", "branch", "a mask", "cpu", "a tensor"])
def test_a_fault_in_a_captured_function_is_found(
    fault: str,
    owner: type,
    method: str,
    config: str,
    tmp_path: Path,
    kernels: Any,
    capture: Unread,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(select, "find_spec", lambda name: None)
    runner = runner_of(
        decoder_of(tmp_path, CONFIGS[config], kernels), kernels, shares_prefixes=False
    )
    real = getattr(owner, method)

    def faulty(self: Any, *args: Any, **named: Any) -> Any:
        FAULTS[fault](next(arg for arg in args if isinstance(arg, torch.Tensor)))
        return real(self, *args, **named)

    monkeypatch.setattr(owner, method, faulty)
    runner.capture([4], capture, lambda part: None)
    assert [type(error) for error in capture.errors] == [Waits]
    assert runner._graphs is not None
    assert runner._graphs.size_for(1) is None


@torch.inference_mode()
def test_a_kernel_that_is_given_a_tensor_of_the_host_is_found(
    kernels: Any, capture: Unread
) -> None:
    gates = torch.zeros(2, 8, device=DEVICE)
    capture.whole(lambda: kernels.gated(gates, "silu"))
    with pytest.raises(Waits, match="weight on cpu"):
        capture.whole(lambda: kernels.add_rms_norm(gates, None, torch.ones(8), 1e-5))
