"""Table of vLLM's options: mapped to keys of the configuration, implied, or refused.

``docs/vllm-options.md`` is generated from it. The names are those of vLLM's ``vllm serve --help``.
"""

from __future__ import annotations

from typing import Final

from gatewayd.cli.vllm import speculative
from gatewayd.cli.vllm.conversions import (
    Anything,
    By,
    NameChoice,
    Only,
    Switch,
    To,
    gibibytes,
    json_list,
    names,
    served_names,
    swap_space,
    tokens,
)
from gatewayd.cli.vllm.option import VllmOption, implied, mapped, own, refused

REVISION: Final = "revision"
"""Stands for a key: the revision is a part of the model's name in the configuration."""

_TOOLS, _THOUGHTS, _GUIDE = "tool_parser.strategy", "reasoning_parser.strategy", "guide.strategy"
_QUANTIZER, _CODEC, _DTYPE = "quantizer.strategy", "kv_codec.strategy", "model.dtype"


def _fp8(form: str) -> dict[str, str]:
    # vLLM's 8-bit KV cache has one scale for a layer, which is 1 unless the checkpoint has others.
    return {_CODEC: "fp8", "kv_codec.fp8.format": form, "kv_codec.fp8.scale": "none"}


_TASKS = "Every model generates and embeds; classifiers and reward models are not served."
_FLOAT16 = {name: "use bfloat16 or float32" for name in ("half", "float16")}
_FORMATS = {
    "pt": "convert the weights to safetensors",
    "npcache": "convert the weights to safetensors",
    "bitsandbytes": "set [quantizer] strategy to int8 or int4",
    "tensorizer": "serve the checkpoint's safetensors",
    "sharded_state": "serve the checkpoint's safetensors",
    "runai_streamer": "serve the checkpoint's safetensors",
}
_METHODS = {
    "bitsandbytes": "int4 and int8 quantize a float checkpoint at its load",
    "squeezellm": "quantize the float checkpoint: gatewayd quantize --to awq",
    "modelopt": "fp8 quantizes a float checkpoint at its load",
    "aqlm": "quantize the float checkpoint: gatewayd quantize --to awq",
}
_GUIDES = {
    "outlines": "llguidance and xgrammar support regular expressions and JSON schemas",
    "lm-format-enforcer": "llguidance and xgrammar support regular expressions and JSON schemas",
}

SERVER = (
    own("--host H", To("server.host"), "Address to listen on; the default is 127.0.0.1."),
    own("--port N", To("server.port"), "TCP port."),
    own("--api-key K", To("server.api_key"), "One key; `gatewayd key` manages more."),
    own("--config FILE", Anything(), "A file of gatewayd's own format, TOML, not vLLM's YAML."),
    mapped(
        "--allowed-origins JSON",
        To("server.allowed_origins", json_list),
        "Origins of browsers; `*` needs an API key.",
    ),
    implied(
        "--allowed-methods JSON, --allowed-headers JSON, --allow-credentials",
        "An allowed origin may use every method and header of the API.",
    ),
    mapped(
        "--uvicorn-log-level LEVEL",
        NameChoice(
            names("log.level", {level: level for level in ("debug", "info", "warning", "error")})
            | names("log.level", {"trace": "debug", "critical": "error"})
        ),
        "Log level of the daemon.",
    ),
    implied(
        "--disable-log-requests, --disable-uvicorn-access-log, --max-log-len N",
        "Requests are not logged, and texts of clients never are.",
    ),
    refused(
        "--enable-log-requests",
        "Texts of clients are never logged; `gatewayd explain` shows recent requests.",
    ),
    implied("--disable-log-stats", "Statistics are on `/metrics`, not in the log."),
    implied("--disable-frontend-multiprocessing", "The gateway is one process."),
    implied("--api-server-count N", "The gateway is one process.", Only(("1",))),
    implied("--enable-request-id-headers", "Every response has `x-request-id`."),
    implied("--enable-prompt-tokens-details", "`usage` has cached tokens."),
    implied("--enable-server-load-tracking", "The load is on `/metrics`."),
    implied("--disable-fastapi-docs", "There are no pages of documentation to disable."),
    refused(
        "--ssl-keyfile FILE, --ssl-certfile FILE, --ssl-ca-certs FILE, --ssl-cert-reqs N, "
        "--enable-ssl-refresh",
        "Terminate TLS in a reverse proxy in front of the daemon.",
    ),
    refused("--root-path PATH", "Remove the prefix in the reverse proxy."),
    refused("--middleware NAME...", "Write an observer plugin: `gatewayd plugin new`."),
    refused("--log-config-file FILE", "Set `[log]` in the configuration file."),
    refused("--headless", "Several machines are not supported: start a daemon on each."),
)

MODEL = (
    own("--model MODEL", To("model.path"), "Also the first argument; `ORG/NAME` is fetched."),
    mapped(
        "--served-model-name NAME...",
        By(served_names, ("model.served_name", "model.served_names")),
        "Names of the model in the API; answers and metrics have the first.",
    ),
    mapped("--revision R", To(REVISION), "Branch, tag or commit of a model of the Hub."),
    mapped(
        "--dtype D",
        NameChoice(
            names(_DTYPE, {"auto": "auto", "float32": "float32", "bfloat16": "bfloat16"})
            | names(_DTYPE, {"float": "float32"}),
            without=_FLOAT16,
        ),
        "Data type of weights and activations; float16 is refused.",
    ),
    mapped("--max-model-len N", To("model.max_model_len", tokens), "Also `8k` and `8K`."),
    mapped(
        "--load-format F",
        NameChoice(
            {"dummy": {"model.dummy_weights": True}}
            | {name: {} for name in ("auto", "safetensors", "hf", "gguf", "mistral")},
            without=_FORMATS,
        ),
        "`dummy` is random weights; safetensors and GGUF are recognized.",
    ),
    mapped(
        "--model-impl IMPL",
        NameChoice(
            names(
                "model.backend",
                {"auto": "auto", "vllm": "native", "transformers": "transformers"},
            )
        ),
        "`vllm` is the engine's own decoder.",
    ),
    mapped(
        "--quantization Q, -q Q",
        NameChoice(
            names(_QUANTIZER, {"awq_marlin": "awq", "gptq_marlin": "gptq", "marlin": "gptq"}),
            other=_QUANTIZER,
            without=_METHODS,
        ),
        "Format of the checkpoint's weights; any quantizer of `gatewayd plugin`.",
    ),
    implied("--trust-remote-code", "Code of a checkpoint is never run, whether trusted or not."),
    implied(
        "--tokenizer-mode M",
        "The checkpoint's tokenizer is recognized, Mistral's too.",
        Only(("auto", "hf", "mistral")),
    ),
    implied("--config-format F", "It is recognized.", Only(("auto", "hf", "mistral"))),
    implied("--task T", _TASKS, Only(("auto", "generate", "embed", "embedding"))),
    implied("--runner R", _TASKS, Only(("auto", "generate", "pooling"))),
    implied("--convert C", _TASKS, Only(("auto", "none", "embed"))),
    implied("--use-tqdm-on-load", "The log has the progress of the load."),
    implied(
        "--generation-config G",
        "Ends of a turn are read from it; sampling has the defaults of the OpenAI API.",
        Only(("auto", "vllm")),
    ),
    refused("--override-generation-config JSON", "Send sampling parameters with requests."),
    refused(
        "--tokenizer T, --tokenizer-revision R, --skip-tokenizer-init",
        "The checkpoint's own tokenizer is used: put another one into its folder.",
    ),
    refused(
        "--chat-template FILE, --chat-template-content-format F, --response-role ROLE",
        "The checkpoint's template is used: put another one into its folder as "
        "`chat_template.jinja`.",
    ),
    refused(
        "--hf-overrides JSON, --rope-scaling JSON, --rope-theta X, --hf-config-path PATH",
        "Edit `config.json` of a copy of the checkpoint's folder.",
    ),
    refused("--code-revision R", "Code of a checkpoint is never run."),
    refused("--download-dir DIR", "Set the environment variable `HF_HOME`."),
    refused("--hf-token TOKEN", "Set the environment variable `HF_TOKEN`."),
    refused("--ignore-patterns GLOB...", "Only the files that are served are fetched."),
    refused(
        "--enable-lora, --enable-lora-bias, --max-loras N, --max-lora-rank N, --max-cpu-loras N, "
        "--lora-dtype D, --lora-modules NAME=PATH..., --fully-sharded-loras, "
        "--lora-extra-vocab-size N",
        "LoRA adapters are not served: merge the adapter into its model.",
    ),
    refused(
        "--limit-mm-per-prompt JSON, --mm-processor-kwargs JSON, --allowed-local-media-path DIR",
        "Only text is served; requests with images are refused.",
    ),
)

MEMORY = (
    mapped(
        "--gpu-memory-utilization X",
        To("engine.gpu_memory_utilization"),
        "Share of the GPU's memory; without effect on a CPU, as there.",
    ),
    mapped("--block-size N", To("engine.page_size_tokens"), "Tokens of a KV page, 1 to 128."),
    mapped("--kv-cache-memory-bytes N", To("engine.kv_memory", tokens), "Also `25G`."),
    mapped("--num-gpu-blocks-override N", To("engine.kv_pages"), "Number of KV pages."),
    mapped(
        "--kv-cache-dtype D",
        NameChoice(
            names(_CODEC, {"auto": "none", "bfloat16": "bf16"})
            | {"fp8": _fp8("e4m3"), "fp8_e4m3": _fp8("e4m3"), "fp8_e5m2": _fp8("e5m2")},
            other=_CODEC,
        ),
        "Encoding of the KV cache; 8-bit floats without scales. Any KV codec of `gatewayd plugin`.",
    ),
    refused("--calculate-kv-scales", "Set `[kv_codec.fp8] scale` to `token`: a scale per token."),
    mapped(
        "--enable-prefix-caching",
        Switch({"prefix_cache.strategy": "hash"}, {"prefix_cache.strategy": "none"}),
        "Caching of whole pages by their hash.",
    ),
    implied("--prefix-caching-hash-algo A", "Pages of tenants are apart.", Only(("sha256",))),
    mapped(
        "--swap-space GIB",
        By(swap_space, ("preemption.strategy", "preemption.swap.memory")),
        "Host memory for preempted sequences; 0 recomputes them.",
    ),
    mapped(
        "--preemption-mode MODE",
        NameChoice(names("preemption.strategy", {"recompute": "recompute", "swap": "swap"})),
        "`recompute` or `swap`.",
    ),
    mapped(
        "--kv-offloading-size GIB",
        By(
            lambda given: {
                "kv_tier.strategies": ["host"],
                **To("kv_tier.host.memory", gibibytes)(given),
            },
            ("kv_tier.strategies", "kv_tier.host.memory"),
        ),
        "Host memory for KV pages that are evicted.",
    ),
    implied("--cpu-offload-gb GIB", "Weights are on one device.", Only(("0",))),
    refused(
        "--kv-transfer-config JSON, --kv-events-config JSON",
        "Name tiers in `[kv_tier] strategies`; prefill and decode run in one engine.",
    ),
    refused("--enable-sleep-mode", "Use `gatewayd model unload` and `gatewayd model load`."),
)

STEPS = (
    mapped("--max-num-seqs N", To("engine.max_running"), "Sequences in a batch."),
    mapped(
        "--max-num-batched-tokens N", To("engine.max_batch_tokens", tokens), "Tokens of a step."
    ),
    implied("--enable-chunked-prefill", "Every step mixes prefill and decode."),
    mapped(
        "--scheduling-policy P",
        NameChoice({}, other="scheduler.strategy"),
        "Any scheduler of `gatewayd plugin`.",
    ),
    implied(
        "--async-scheduling", "On a GPU a step is planned while the device computes another one."
    ),
    implied(
        "--num-scheduler-steps N, --multi-step-stream-outputs B, --scheduler-delay-factor X, "
        "--use-v2-block-manager, --disable-async-output-proc",
        "Options of vLLM's former engine.",
    ),
    implied(
        "--max-num-partial-prefills N, --max-long-partial-prefills N, "
        "--long-prefill-token-threshold N",
        "The scheduler divides the token budget of a step.",
    ),
    mapped(
        "--enforce-eager",
        Switch({"engine.capture": "off"}, {"engine.capture": "auto"}),
        "No CUDA graphs.",
    ),
    implied(
        "--max-seq-len-to-capture N, --cuda-graph-sizes N...",
        "Graphs are captured for all lengths, and for sizes up to the batch's.",
    ),
    mapped(
        "-O LEVEL, --compilation-config LEVEL",
        NameChoice({"0": {"engine.capture": "off"}} | {level: {} for level in "123"}),
        "0 is `--enforce-eager`; steps are tuned by measurement at any other level.",
    ),
    implied(
        "--attention-backend B", "The fastest one is measured on the machine.", Only(("auto",))
    ),
    mapped(
        "--disable-cascade-attn",
        Switch({"engine.cascade_attention": False}, {"engine.cascade_attention": True}),
        "Cascade attention is off by default.",
    ),
    refused("--disable-sliding-window", "Lower the context: `--max-model-len`."),
    mapped("--seed N", To("engine.seed"), "0: another one at each start."),
    own("--device D", To("engine.device"), "`cpu`, `cuda`, `cuda:N` or `auto`."),
)

PARALLEL = (
    implied(
        "--tensor-parallel-size N, -tp N, --pipeline-parallel-size N, -pp N",
        "A replica is one process on one device; `--data-parallel-size` starts several replicas.",
        Only(("1",)),
    ),
    mapped("--data-parallel-size N, -dp N", To("engine.replicas"), "Number of replicas."),
    implied(
        "--distributed-executor-backend B",
        "Engines are processes of one machine.",
        Only(("mp", "uni")),
    ),
    implied(
        "--disable-custom-all-reduce, --max-parallel-loading-workers N",
        "A replica is one process on one device.",
    ),
    refused("--enable-expert-parallel", "All experts of a replica are on one device."),
    refused(
        "--worker-cls NAME, --worker-extension-cls NAME, --nnodes N, --node-rank N, "
        "--data-parallel-address A, --data-parallel-rpc-port N, --data-parallel-size-local N",
        "Several machines are not supported: start a daemon on each.",
    ),
)

ANSWERS = (
    mapped(
        "--speculative-config JSON, -sc JSON",
        By(speculative.convert, speculative.KEYS),
        "Methods `ngram` and `draft_model`; others are set in `[drafter]`.",
    ),
    mapped("--speculative-model MODEL", To("model"), "As in `--speculative-config`.", part="model"),
    mapped(
        "--num-speculative-tokens N",
        To("num_speculative_tokens", int),
        "As in `--speculative-config`.",
        part="num_speculative_tokens",
    ),
    mapped(
        "--ngram-prompt-lookup-max N",
        To("prompt_lookup_max", int),
        "As in `--speculative-config`.",
        part="prompt_lookup_max",
    ),
    mapped(
        "--ngram-prompt-lookup-min N",
        To("prompt_lookup_min", int),
        "As in `--speculative-config`.",
        part="prompt_lookup_min",
    ),
    implied("--enable-auto-tool-choice", "Tools are used if requests have them."),
    mapped(
        "--tool-call-parser P",
        NameChoice(names(_TOOLS, {"llama3_json": "llama3"}), other=_TOOLS),
        "`auto`, the default, follows the chat template. Any parser of `gatewayd plugin`.",
    ),
    refused("--tool-parser-plugin FILE", "Install a plugin: `gatewayd plugin new`."),
    mapped(
        "--reasoning-parser P",
        NameChoice(names(_THOUGHTS, {"deepseek_r1": "think", "qwen3": "think"}), other=_THOUGHTS),
        "`auto`, the default, follows the chat template. Any parser of `gatewayd plugin`.",
    ),
    implied("--enable-reasoning", "Reasoning is parsed by the chat template."),
    mapped(
        "--guided-decoding-backend B",
        NameChoice(
            {"auto": {}} | names(_GUIDE, {"guidance": "llguidance"}),
            other=_GUIDE,
            without=_GUIDES,
        ),
        "`guidance` is llguidance, the default.",
    ),
    refused(
        "--structured-outputs-config JSON",
        "Set `[guide] strategy`, or `--guided-decoding-backend`.",
    ),
    implied("--max-logprobs N", "Requests may ask for 20.", Only(("20",))),
    refused("--return-tokens-as-token-ids", "Set `return_token_ids` in requests."),
    refused("--logits-processors NAME...", "Write a plugin: `gatewayd plugin new`."),
    refused(
        "--otlp-traces-endpoint URL, --collect-detailed-traces M",
        "`gatewayd explain` has the latency breakdown of each request.",
    ),
)

SECTIONS = {
    "Server": SERVER,
    "Model": MODEL,
    "Memory": MEMORY,
    "Steps": STEPS,
    "Parallelism": PARALLEL,
    "Answers": ANSWERS,
}

OPTIONS: tuple[VllmOption, ...] = tuple(row for rows in SECTIONS.values() for row in rows)
