"""vLLM's options of ``gatewayd serve``: what they set, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from gatewayd.cli.serve import app, model_path
from gatewayd.cli.vllm.arguments import UsageProblem, read
from gatewayd.cli.vllm.conversions import NameChoice, Only
from gatewayd.cli.vllm.option import Takes, Treatment
from gatewayd.cli.vllm.table import OPTIONS, REVISION
from gatewayd.config.load import load
from gatewayd.config.tables import Config
from gatewayd.hub.errors import HubError
from gatewayd.plugins.loaded import check_strategies
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.strategy import Kind

OWN = {
    name: not vars(option)["is_flag"]
    for option in get_command(app).params
    for name in option.opts
    if name.startswith("-")
}
NAMES = [name for row in OPTIONS for name in row.names()]


def config(line: str) -> Config:
    found = read(line.split(), OWN)
    assert found.rest == []
    return load(None, found.settings.values, {}).config


def problem(line: str) -> str:
    with pytest.raises(UsageProblem) as error:
        read(line.split(), OWN)
    return str(error.value)


def test_the_list_of_the_first_vllm_deployment_has_no_unknown_key() -> None:
    """Row 87 of the features."""
    made = config(
        "--gpu-memory-utilization 0.90 --swap-space 16 --tensor-parallel-size 1 --quantization awq"
        " --kv-cache-dtype fp8_e5m2 --block-size 16 --enable-prefix-caching"
    )
    check_strategies(made)
    assert made.engine.gpu_memory_utilization == 0.9
    assert made.preemption.strategy == "swap"
    assert made.preemption.settings("swap") == {"memory": 16 << 30}
    assert made.quantizer.strategy == "awq"
    assert made.kv_codec.strategy == "fp8"
    assert made.kv_codec.settings("fp8") == {"format": "e5m2", "scale": "none"}
    assert made.engine.page_size_tokens == 16
    assert made.prefix_cache.strategy == "hash"


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("--max_num_seqs=7", "engine.max_running", 7),
        ("--max-num-seqs 7 --max-num-seqs 8", "engine.max_running", 8),
        ("--max-model-len 25.6k", "model.max_model_len", 25_600),
        ("--max-num-batched-tokens 2K", "engine.max_batch_tokens", 2048),
        ("--kv-cache-memory-bytes 1G", "engine.kv_memory", 1 << 30),
        ("--no-enable-prefix-caching", "prefix_cache.strategy", "none"),
        ("--enforce-eager", "engine.capture", "off"),
        ("-O0", "engine.capture", "off"),
        ("-O3", "engine.capture", "auto"),
        ("-dp 2", "engine.replicas", 2),
        ("-dp=2", "engine.replicas", 2),
        ("--dtype float", "model.dtype", "float32"),
        ("--load-format dummy", "model.dummy_weights", True),
        ("--served-model-name a", "model.served_name", "a"),
        ("--served-model-name a b c", "model.served_name", "a"),
        ("--served-model-name a b a c", "model.served_names", ["b", "c"]),
        ("--served-model-name=a", "model.served_names", []),
        ("--tool-call-parser llama3_json", "tool_parser.strategy", "llama3"),
        ("--tool-call-parser of_a_plugin", "tool_parser.strategy", "of_a_plugin"),
        ("--quantization compressed-tensors", "quantizer.strategy", "compressed_tensors"),
        ("--reasoning-parser deepseek_r1", "reasoning_parser.strategy", "think"),
        ("--kv-cache-dtype auto", "kv_codec.strategy", "none"),
        ("--swap-space 0", "preemption.strategy", "recompute"),
        ("--uvicorn-log-level trace", "log.level", "debug"),
        ('--allowed-origins ["http://a"]', "server.allowed_origins", ["http://a"]),
        ("--kv-offloading-size 0.5", "kv_tier.host.memory", 1 << 29),
        ("--seed 3 --disable-log-requests -tp 1", "engine.seed", 3),
    ],
)
def test_an_option_sets_its_key(line: str, key: str, value: Any) -> None:
    found: Any = config(line).model_dump()
    for part in key.split("."):
        found = found[part]
    assert found == value


@pytest.mark.parametrize(
    "line",
    [
        '--speculative-config {"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":5}',
        "--speculative-config.method ngram -sc.num_speculative_tokens 3 -sc.prompt_lookup_max=5",
        "--speculative-model [ngram] --num-speculative-tokens 3 --ngram-prompt-lookup-max 5",
    ],
)
def test_all_spellings_of_speculation_mean_the_same(line: str) -> None:
    made = config(line)
    check_strategies(made)
    assert made.drafter.strategy == "ngram"
    assert made.drafter.settings("ngram") == {"min_match": 5, "max_match": 5}
    assert made.spec_controller.settings("fixed") == {"drafts": 3}


def test_a_draft_model_drafts_as_many_tokens_as_it_is_told_to() -> None:
    made = config('--speculative-config {"model":"/m","num_speculative_tokens":2}')
    assert made.drafter.settings("draft_model") == {"model": "/m", "min_confidence": 0}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--tensor-parallel-size 2", "-size 2 is not supported: it must be 1. A replica is one"),
        ("--task classify", "--task classify is not supported: it must be auto or generate or"),
        ("--task reward", "classifiers and reward models are not served"),
        ("--runner draft", "--runner draft is not supported: it must be auto or generate or"),
        ("--convert classify", "--convert classify is not supported: it must be auto or none or"),
        ("--enable-lora", "--enable-lora of vLLM is not supported. LoRA adapters"),
        ("--hf-token secret", "--hf-token of vLLM is not supported. Set the environment"),
        ("--no-enable-chunked-prefill", "it cannot be disabled. Every step mixes"),
        ("--dtype half", "'half' is not available: use bfloat16"),
        ("--load-format pt", "convert the weights to safetensors"),
        ("--seed", "--seed requires a value"),
        ("--enforce-eager=1", "--enforce-eager takes no value: remove =1"),
        ("--swap-space much", "'much' is not valid"),
        ("--swap-space inf", "'inf' is not valid: write a number of GiB from 0"),
        ("--swap-space nan", "'nan' is not valid: write a number of GiB from 0"),
        ("--swap-space -1", "'-1' is not valid: write a number of GiB from 0"),
        ("--kv-offloading-size -0.5", "'-0.5' is not valid: write a number of GiB from 0"),
        ("--max-model-len 1.00001k", "it is not a whole number"),
        ("--max-model-len infk", "it is not a whole number"),
        ("--kv-cache-memory-bytes 1e308G", "it is not a whole number"),
        ("--swap-space 0 --preemption-mode swap", "--swap-space and --preemption-mode both set"),
        ('--num-speculative-tokens 2 -sc {"num_speculative_tokens":3}', "-tokens and -sc both"),
        ("-sc {", "is not JSON"),
        ("-sc []", "must be a JSON object"),
        ('-sc {"method":"eagle3"}', "there is no method 'eagle3'"),
        ('-sc {"method":"draft_model"}', "needs a model"),
        ('-sc {"disable_by_batch_size":4}', "disable_by_batch_size has no equivalent"),
        ("--seed.x 1", "it has no parts"),
        ("--tensor-paralel-size 2", "No such option: --tensor-paralel-size Did you mean --tensor-"),
    ],
)
def test_a_problem_names_the_option_and_the_remedy(line: str, words: str) -> None:
    assert words in problem(line)
    assert "secret" not in problem(line)


def test_no_option_is_in_the_table_twice() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert len(NAMES) > 120


@pytest.mark.parametrize("name", NAMES)
def test_every_option_of_the_table_is_read(name: str) -> None:
    """Its row says what becomes of it; no option is left for the parser to refuse."""
    row = next(row for row in OPTIONS if name in row.names())
    line = [name] if row.names()[name] is Takes.NONE else [name, "1"]
    if row.is_own:
        assert read(line, OWN).rest == line
    elif row.treatment is Treatment.REFUSED:
        assert row.meaning in problem(" ".join(line))
    elif row.treatment is Treatment.IMPLIED and isinstance(row.convert, Only):
        assert read([name, row.convert.values[0]], OWN).settings.values == {}
    elif isinstance(row.convert, NameChoice):
        for value in row.convert.settings:
            assert set(read([name, value], OWN).settings.values) <= set(row.convert.keys)
    else:
        values = {"--allowed-origins": "[]", "--speculative-config": "{}", "-sc": "{}"}
        assert read([*line[:1], values.get(name, "1")][: len(line)], OWN).rest == []


def test_every_mapped_key_is_one_of_the_configuration() -> None:
    host, tables = PluginHost(Catalog.installed()), Config().model_dump()
    for key in {key for row in OPTIONS if not row.part for key in row.convert.keys} - {REVISION}:
        table, _, rest = key.partition(".")
        name, _, setting = rest.partition(".")
        if setting:
            assert setting in host.info(Kind(table), name).config_type.model_fields, key
        else:
            assert name in tables[table], key


def test_the_origin_of_an_invalid_value_is_the_option() -> None:
    result = CliRunner().invoke(app, ["--block-size", "1000"])
    assert result.exit_code == 78
    assert "flag --block-size: engine.page_size_tokens = '1000'" in result.output


def test_options_of_serve_are_left_to_it_with_their_values() -> None:
    found = read(["nano", "--api_key", "-k", "--host=h", "--seed", "1", "--", "--seed"], OWN)
    assert found.rest == ["nano", "--api-key", "-k", "--host=h", "--", "--seed"]
    assert found.settings.values == {"engine.seed": "1"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["--prot", "1"], "No such option: --prot"),
        (["nano", "--model", "other"], "both name a model"),
        (["nano", "--revision", "main"], "is no model of the Hub"),
        (["--pipeline-parallel-size", "2"], "must be 1"),
    ],
)
def test_wrong_usage_ends_with_status_2(line: list[str], words: str) -> None:
    result = CliRunner().invoke(app, line)
    assert result.exit_code == 2
    assert words in " ".join(result.output.replace("│", " ").split())


def test_a_name_of_the_hub_needs_no_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert model_path("org/name") == "hf:org/name"
    assert model_path("org/name", "v1") == model_path("hf:org/name", "v1") == "hf:org/name@v1"
    assert model_path("hf:org/name@v1", "v1") == "hf:org/name@v1"
    with pytest.raises(HubError):
        model_path("hf:org/name@v2", "v1")
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert model_path("org/name") == "org/name"
    assert model_path("/no/such/folder") == "/no/such/folder"
    assert model_path(None) is None
