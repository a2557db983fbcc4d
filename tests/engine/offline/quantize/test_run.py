"""Whole quantization runs: written, read back, resumed, refused."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from gatewayd_engine.model import embedded
from gatewayd_engine.model.loading.checkpoint import Checkpoint
from gatewayd_engine.model.spec import read_spec
from gatewayd_engine.model.weights import dense
from gatewayd_engine.offline.quality.scheme_model import SchemeModel
from gatewayd_engine.offline.quantize.job import (
    REPORT,
    CheckpointWritten,
    Event,
    LayerWritten,
    QuantizeAdvanced,
    QuantizeFailed,
    QuantizeJob,
    QuantizeStarted,
)
from gatewayd_engine.offline.quantize.run import quantize
from gatewayd_engine.offline.quantize.texts import BUNDLED, bundled
from gatewayd_engine.process.config import EngineConfig, StrategyChoice
from gatewayd_hooks.host.loading import PluginHost
from tests.engine.core.small_model import NUM_LAYERS, small
from tests.engine.offline.quantize.jobs import HOST, job, reason, told
from tests.engine.offline.quantize.make_texts import WINDOW, Overlaps
from tests.plugins.quantized.format_cases import Case
from tests.plugins.quantized.formulas import meant


@pytest.fixture(scope="module")
def samples() -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(embedded.folder() / "tokenizer.json"))
    return [tokenizer.encode(text.text).ids[:128] for text in bundled()[:4]]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*")}


@pytest.mark.parametrize("to", ["awq", "gptq", "fp8"])
def test_what_is_written_is_served(to: str, samples: list[list[int]], tmp_path: Path) -> None:
    out = tmp_path / "out"
    events = told(job(out, to, samples))
    assert events[0] == QuantizeStarted(0, NUM_LAYERS)
    assert [event.layer for event in events if isinstance(event, LayerWritten)] == [0, 1]
    done = [event.done for event in events if isinstance(event, QuantizeAdvanced)]
    assert done == sorted(done)
    assert done[-1] == NUM_LAYERS
    written = events[-1]
    assert isinstance(written, CheckpointWritten)
    assert len(written.matrices) == 7 * NUM_LAYERS
    assert written.weight_bytes < 0.75 * written.source_bytes
    if to != "fp8":
        lost, nearest = (sum(getattr(m, k) for m in written.matrices) for k in ("lost", "nearest"))
        assert lost < (0.8 if to == "awq" else 0.5) * nearest
    assert os.listdir(tmp_path) == ["out"]
    assert (out / "tokenizer.json").read_bytes() == (small() / "tokenizer.json").read_bytes()
    assert (out / "model.safetensors").stat().st_mode & 0o077 == 0o044
    assert json.loads((out / REPORT).read_text())["quantizer"] == to
    # The engine computes what transformers does of the numbers that the words mean.
    plain = tmp_path / "plain"
    dequantized(out, plain)
    config = EngineConfig(
        model=str(out),
        scheduler=StrategyChoice("fcfs"),
        prefix_cache=None,
        eviction=StrategyChoice("lru"),
        preemption=StrategyChoice("recompute"),
        quantizer=StrategyChoice("auto"),
        threads=1,
    )
    ids = samples[0][:48]
    opened = SchemeModel(config, HOST, 64)
    ours = torch.cat(list(opened.logits(ids)))
    opened.close()
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    with torch.inference_mode():
        theirs = model(torch.tensor([ids])).logits[0]
    # Products of 4 bits on a CPU round what they multiply.
    assert (ours - theirs).square().mean() < 2e-4 * theirs.square().mean()
    whole = AutoModelForCausalLM.from_pretrained(small(), dtype=torch.float32)
    with torch.inference_mode():
        before = whole(torch.tensor([ids])).logits[0]
    assert 1e-6 < (theirs - before).square().mean() / before.square().mean() < 0.05


def test_scales_of_keys_and_values_stay(tmp_path: Path) -> None:
    scaled = shutil.copytree(small(), tmp_path / "scaled")
    (file,) = scaled.glob("*.safetensors")
    before = "model.layers.1.self_attn"
    scales = {f"{before}.k_scale": torch.tensor(0.5), f"{before}.q_scale": torch.tensor([3.0])}
    save_file({**load_file(file), **scales}, file, {"format": "pt"})
    out = tmp_path / "out"
    assert isinstance(told(job(out, "fp8", [], model=str(scaled)))[-1], CheckpointWritten)
    written = load_file(out / "model.safetensors")
    assert {name: written[name] for name in scales} == scales


def dequantized(folder: Path, to: Path) -> None:
    """A checkpoint of floats with the numbers of a quantized one, some by the formulas."""
    shutil.copytree(folder, to)
    config = json.loads((folder / "config.json").read_text())
    announced = config.pop("quantization_config")
    (to / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    spec = read_spec(folder)
    assert spec.quantization is not None
    reader: Any = HOST.strategy("quantizer", announced["quant_method"], {})  # type: ignore[arg-type]
    checkpoint = Checkpoint.open(folder, spec, reader.scheme(spec.quantization))
    numbers: dict[str, torch.Tensor] = {}
    for name, shape in checkpoint.shapes.items():
        stem = name.removesuffix(".weight")
        parts = {k.removeprefix(f"{stem}."): t for k, t in tensors.items() if f"{stem}." in k}
        if parts.keys() == {"weight"} or name not in (f"{stem}.weight",):
            numbers[name] = tensors[name].float()
            continue
        numbers[name] = dense(checkpoint.matrix(stem)).float()
        if stem.endswith("0.self_attn.k_proj"):
            case = Case(stem, announced, lambda rows, columns: {})
            assert torch.equal(numbers[name], meant(case, parts, *shape))
    save_file(numbers, to / "model.safetensors", metadata={"format": "pt"})


def test_a_run_that_was_killed_goes_on_to_the_same_bytes(
    samples: list[list[int]], tmp_path: Path
) -> None:
    whole, cut, to = tmp_path / "whole", tmp_path / "cut", "gptq"
    run(job(whole, to, samples))
    killed = run(job(cut, to, samples), until=LayerWritten)
    assert not any(isinstance(event, CheckpointWritten) for event in killed)
    assert not cut.exists()
    assert (tmp_path / "cut.part").is_dir()
    # What a kill in the middle of a file would leave.
    (tmp_path / "cut.part" / "layer-00001.safetensors.unfinished").write_bytes(b"x")
    resumed = job(cut, to, samples, resume=True)
    assert run(resumed)[0] == QuantizeStarted(1, NUM_LAYERS)
    assert files(cut) == files(whole)
    assert not (tmp_path / "cut.part").exists()


def run(one: QuantizeJob, until: type | None = None, **options: Any) -> list[Event]:
    """Do a job in a process of its own, which is killed at an event of a kind."""
    events: list[Event] = []
    with subprocess.Popen(
        [sys.executable, "-m", "gatewayd_engine.offline.quantize"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        **options,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(msgspec.json.encode(one))
        child.stdin.close()
        for line in child.stdout:
            events.append(msgspec.json.decode(line, type=Event))
            if until is not None and isinstance(events[-1], until):
                child.send_signal(signal.SIGKILL)
                break
    return events


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("to", ["awq", "gptq"])
def test_killed_anywhere_it_goes_on_to_the_same_bytes(
    to: str, samples: list[list[int]], tmp_path: Path
) -> None:
    run(job(tmp_path / "whole", to, samples))
    cut = tmp_path / "cut"
    kills, patience = 0, 0.5
    while True:
        one = job(cut, to, samples, resume=True)
        child = subprocess.Popen(
            [sys.executable, "-m", "gatewayd_engine.offline.quantize"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        assert child.stdin is not None
        child.stdin.write(msgspec.json.encode(one))
        child.stdin.close()
        try:
            assert child.wait(patience) == 0
            break
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            kills += 1
            patience *= 1.15
    assert kills
    assert files(cut) == files(tmp_path / "whole")


def test_a_full_disk_is_told_and_gone_on_from(samples: list[list[int]], tmp_path: Path) -> None:
    out = tmp_path / "out"

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    (failed,) = [
        event
        for event in run(job(out, "gptq", samples), preexec_fn=limited)
        if isinstance(event, QuantizeFailed)
    ]
    part = tmp_path / "out.part"
    assert failed.reason.startswith(f"cannot write {part}")
    assert "File too large" in failed.reason
    assert failed.reason.endswith(f"what is done stays in {part}, and --resume continues it")
    assert not list(part.glob("*.unfinished"))
    assert isinstance(told(job(out, "gptq", samples, resume=True))[-1], CheckpointWritten)


def test_nothing_is_overwritten_unasked(samples: list[list[int]], tmp_path: Path) -> None:
    out, part = tmp_path / "out", tmp_path / "out.part"
    one = job(out, "fp8", [])
    out.mkdir()
    (out / "notes").write_text("mine")
    assert reason(one) == f"{out} exists; give another --out, or --force to replace it"
    assert "was not written by this command" in reason(msgspec.structs.replace(one, force=True))
    assert (out / "notes").read_text() == "mine"
    shutil.rmtree(out)
    part.mkdir()
    (part / "notes").write_text("mine")
    for changes in ({}, {"force": True}, {"resume": True}):
        assert "contains other files" in reason(msgspec.structs.replace(one, **changes))
    shutil.rmtree(part)
    assert isinstance(told(one)[-1], CheckpointWritten)
    assert "exists" in reason(one)
    (out / "old").touch()
    assert isinstance(told(msgspec.structs.replace(one, force=True))[-1], CheckpointWritten)
    assert os.listdir(tmp_path) == ["out"]
    assert not (out / "old").exists()
    source = msgspec.structs.replace(one, model=str(out), out=str(tmp_path / "again"))
    assert reason(source) == "config.json: quantization_config: the weights are quantized already"


def test_only_the_same_work_is_gone_on_with(samples: list[list[int]], tmp_path: Path) -> None:
    out = tmp_path / "out"
    one = job(out, "gptq", samples[:2])
    run(one, until=LayerWritten)
    assert "holds 1 layers of an earlier run; --resume continues" in reason(one)
    for changes, differs in (
        ({"samples": samples[1:]}, "text"),
        ({"quantizer": StrategyChoice("gptq", {"group_size": 64})}, "setting"),
        ({"skip": ["*.layers.*.down_proj"]}, "--skip"),
    ):
        other = msgspec.structs.replace(one, resume=True, **changes)
        assert f"was started with another {differs};" in reason(other)
    both = msgspec.structs.replace(one, resume=True, force=True)
    assert reason(both) == "--resume continues and --force starts over: give one of them"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PluginHost, "owner", lambda *_: "gatewayd 99")
        assert "another version;" in reason(msgspec.structs.replace(one, resume=True))
    first = told(msgspec.structs.replace(one, force=True))
    assert first[0] == QuantizeStarted(0, NUM_LAYERS)


def test_fp8_is_in_blocks_where_all_are_whole_and_says_twice_what_stays(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """As vLLM reads it: ``weight_scale_inv`` of blocks or a scalar, and ``ignored_layers``."""

    def made(name: str, **changes: Any) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        out = tmp_path / name
        assert isinstance(told(job(out, "fp8", [], **changes))[-1], CheckpointWritten)
        announced = json.loads((out / "config.json").read_text())["quantization_config"]
        return announced, load_file(out / "model.safetensors")

    announced, tensors = made("blocks", skip=["*.layers.0.mlp.*", "lm_head"])
    stays = [f"model.layers.0.mlp.{part}_proj" for part in ("down", "gate", "up")]
    assert announced["weight_block_size"] == [128, 128]
    assert sorted(announced["ignored_layers"]) == stays
    assert sorted(announced["modules_to_not_convert"]) == ["lm_head", *stays]
    name = "model.layers.1.mlp.down_proj"
    rows, columns = tensors[f"{name}.weight"].shape
    assert tensors[f"{name}.weight_scale_inv"].shape == (rows // 128, columns // 128)
    announced, tensors = made("tensor", model=str(checkpoint("llama")))
    assert "weight_block_size" not in announced
    assert {t.shape for n, t in tensors.items() if n.endswith(".weight_scale")} == {()}


def test_what_ended_at_its_very_end_is_complete(tmp_path: Path) -> None:
    one = job(tmp_path / "out", "fp8", [], resume=True)
    assert isinstance(told(one)[-1], CheckpointWritten)
    (tmp_path / "out.part").mkdir()
    (tmp_path / "out.part" / "lock").touch()
    assert "was already complete" in reason(one)
    assert os.listdir(tmp_path) == ["out"]


def test_a_quantizer_that_breaks_is_named(
    samples: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gatewayd_quant_gptq.fitting._BLOCK", "128")
    said = reason(job(tmp_path / "out", "gptq", samples))
    assert said.startswith("model.layers.0.self_attn.q_proj: TypeError: ")


def test_two_do_not_write_the_same(samples: list[list[int]], tmp_path: Path) -> None:
    seen: list[str] = []

    def tell(event: Event) -> None:
        if isinstance(event, QuantizeStarted):
            seen.append(reason(job(tmp_path / "out", "fp8", [], resume=True)))

    quantize(job(tmp_path / "out", "fp8", []), HOST, tell)
    assert seen == [f"another process writes {tmp_path / 'out.part'}; wait for it"]


@pytest.mark.parametrize(
    ("to", "changes", "sentence"),
    [
        ("nope", {}, "quantizer.nope is not installed"),
        ("int8", {}, "--to int8: quantizer.int8 writes no checkpoints"),
        ("awq", {"skip": ["*.nope"]}, "[quantizer] skip: *.nope matches no matrix"),
        ("awq", {"skip": ["*"]}, "every matrix is skipped"),
        ("gptq", {"skip": ["*.0.*.down_proj"]}, "skip it in all or in none"),
        ("gptq", {"quantizer": StrategyChoice("gptq", {"group_size": 256})}, "no multiple of 256"),
        ("gptq", {"quantizer": StrategyChoice("gptq", {"bits": 3})}, "bits"),
        ("fp8", {"model": "/nowhere"}, "/nowhere/config.json does not exist"),
        ("fp8", {"out": "/proc/out"}, "cannot write /proc/out.part"),
        ("awq", {"samples": [[1, 5000]]}, "the vocabulary is of 4096"),
    ],
)
def test_what_cannot_be_is_said(
    to: str, changes: dict[str, Any], sentence: str, samples: list[list[int]], tmp_path: Path
) -> None:
    one = job(tmp_path / "out", to, samples)
    assert sentence in reason(msgspec.structs.replace(one, **changes))
    assert not (tmp_path / "out").exists()


def test_other_architectures_are_calibrated(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """What is written is opened as a reader does before it counts."""
    ids = torch.randint(2, 320, (6, 90), generator=torch.Generator().manual_seed(4)).tolist()
    choice = StrategyChoice("awq", {"group_size": 16})
    one = QuantizeJob(str(checkpoint("gemma2")), str(tmp_path / "out"), choice, ids)
    written = told(one)[-1]
    assert isinstance(written, CheckpointWritten), written
    lost, nearest = (sum(getattr(m, k) for m in written.matrices) for k in ("lost", "nearest"))
    assert 0 < lost < nearest


def test_a_part_of_what_others_join_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """VLLM raises for some but not all of a fused matrix."""
    told(job(tmp_path / "some", "fp8", [], skip=["*.k_proj"]))
    assert "model.layers.0.self_attn.k_proj is not quantized but" in caplog.text
    caplog.clear()
    told(job(tmp_path / "all", "fp8", [], skip=["*.[qkv]_proj", "*.down_proj"]))
    assert "vLLM" not in caplog.text


def test_what_is_skipped_stays_and_without_text_all_is_nearest(tmp_path: Path) -> None:
    out = tmp_path / "out"
    events = told(job(out, "awq", [], skip=["*.layers.0.mlp.*", "*.o_proj"]))
    written = events[-1]
    assert isinstance(written, CheckpointWritten)
    assert len(written.matrices) == 7 * NUM_LAYERS - 3 - 2
    assert all(one.lost == one.nearest > 0 for one in written.matrices)
    name = "model.layers.0.mlp.down_proj.weight"
    source: dict[str, torch.Tensor] = {}
    for path in small().glob("*.safetensors"):
        source |= load_file(path)
    assert torch.equal(load_file(out / "model.safetensors")[name], source[name])


def test_what_the_engine_would_skip_by_the_name_of_joined_matrices_stays(tmp_path: Path) -> None:
    skip = ["*.0.self_attn.qkv_proj", "*.gate_up_proj", "lm_head"]
    written = told(job(tmp_path / "out", "fp8", [], skip=skip))[-1]
    assert isinstance(written, CheckpointWritten)
    names = [one.matrix.removeprefix("model.layers.") for one in written.matrices]
    first = [name for name in names if name.startswith("0.")]
    assert first == ["0.self_attn.o_proj", "0.mlp.down_proj"]
    assert len(names) - len(first) == 5


def test_files_that_are_none_of_the_model_do_not_count(tmp_path: Path) -> None:
    """As Mistral's releases have them: all weights again, under other names."""
    folder = Path(shutil.copytree(small(), tmp_path / "model"))
    whole = (folder / "model.safetensors").stat().st_size
    shutil.copy(folder / "model.safetensors", folder / "consolidated.safetensors")
    one = job(tmp_path / "out", "fp8", [], model=str(folder))
    written = told(one)[-1]
    assert isinstance(written, CheckpointWritten)
    assert written.source_bytes == whole


def test_shards_are_as_large_as_they_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gatewayd_engine.offline.quantize.checkpoint._SHARD_BYTES", 2_000_000)
    assert isinstance(told(job(tmp_path / "out", "fp8", []))[-1], CheckpointWritten)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    names = sorted(set(index["weight_map"].values()))
    count = len(names)
    assert names == [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
    assert count > 2
    for name in names:
        held = load_file(tmp_path / "out" / name)
        assert {k for k, home in index["weight_map"].items() if home == name} == held.keys()
        assert len(held) == 1 or sum(t.nbytes for t in held.values()) <= 2_000_000


def test_nothing_is_calibrated_on_that_is_measured() -> None:
    from gatewayd_engine.offline.quality.texts import bundled as measured

    tokenizer = Tokenizer.from_file(str(embedded.folder() / "tokenizer.json"))
    overlaps = Overlaps(measured(), tokenizer)
    assert WINDOW == 32
    assert not any(overlaps.has(text.text) for text in bundled())
    assert overlaps.has(measured()[2].text)
    kinds = [text.kind for text in bundled()]
    assert (kinds.count("chats"), kinds.count("code")) == (229, 41)
    assert BUNDLED.stat().st_size < 192 << 10


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info[:3] != (3, 11, 7), reason="of another library")
def test_the_bundled_texts_are_what_the_recipe_makes() -> None:
    from tests.engine.offline.quantize.make_texts import make

    assert make() == bundled()
