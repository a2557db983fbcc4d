"""Template values of a new project for each kind of plugin, with an example setting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gatewayd_hooks.strategy import Kind


class TemplateSetting(NamedTuple):
    """Example setting of a template, an integer.

    Attributes:
        name: configuration key.
        default: default value.
        least: lower bound.
        doc: description for operators, one sentence.
    """

    name: str
    default: int
    least: int
    doc: str


class KindTemplate(NamedTuple):
    """Template values of one kind.

    Attributes:
        short: abbreviation of the kind in package names.
        noun: suffix of the strategy's class name.
        summary: description of the template's strategy, one sentence.
        setting: example setting; None if there is none.
        requires: dependencies besides the contract.
    """

    short: str
    noun: str
    summary: str
    setting: TemplateSetting | None = None
    requires: tuple[str, ...] = ()


KIND_TEMPLATES: Mapping[Kind, KindTemplate] = {
    Kind.SCHEDULER: KindTemplate(
        "sched",
        "Scheduler",
        "Schedules sequences in order of arrival, with chunked prefill.",
        TemplateSetting("max_chunk", 256, 1, "Maximum tokens of one sequence per step."),
        ("numpy>=1.26",),
    ),
    Kind.PREFIX_CACHE: KindTemplate(
        "prefix",
        "PrefixCache",
        "Finds cached KV pages by the hash of all tokens up to their end.",
        None,
        ("numpy>=1.26",),
    ),
    Kind.EVICTION: KindTemplate(
        "evict", "Eviction", "Evicts pages in the order in which they were released (FIFO).", None
    ),
    Kind.PREEMPTION: KindTemplate(
        "preempt",
        "Preemption",
        "Preempts the sequence of the lowest priority that was admitted last.",
        None,
        ("numpy>=1.26",),
    ),
    Kind.KV_TIER: KindTemplate(
        "tier",
        "Tier",
        "Keeps KV pages in memory and evicts the least recently used (LRU).",
        TemplateSetting("most_pages", 1024, 1, "Maximum number of pages to keep."),
        ("numpy>=1.26",),
    ),
    Kind.KV_CODEC: KindTemplate(
        "kv",
        "Codec",
        "Stores the KV cache as bfloat16.",
        None,
        ("torch>=2.11",),
    ),
    Kind.KV_COMPRESSION: KindTemplate(
        "kvc",
        "Compression",
        "Attends to the first and the most recent tokens (sliding window with sinks).",
        TemplateSetting("newest", 256, 1, "Number of most recent tokens to attend to."),
        ("numpy>=1.26", "torch>=2.11"),
    ),
    Kind.QUANTIZER: KindTemplate(
        "quant",
        "Quantizer",
        "Quantizes weights to INT8 with a scale per group.",
        TemplateSetting("group_size", 32, 1, "Weights of a row per quantization group."),
        ("torch>=2.11",),
    ),
    Kind.MODEL_BACKEND: KindTemplate(
        "model",
        "Backend",
        "Serves models of one layer: attention and nothing else.",
        None,
        ("torch>=2.11", "safetensors>=0.5"),
    ),
    Kind.LOGITS_PROCESSOR: KindTemplate(
        "logits",
        "Processor",
        "Adds a bias that the request sets to the logits of the prompt's tokens.",
        TemplateSetting("limit", 10, 0, "Maximum absolute value of the bias."),
        ("numpy>=1.26", "torch>=2.11"),
    ),
    Kind.GUIDE: KindTemplate(
        "guide",
        "Guide",
        "Constrains answers to one of several strings.",
        TemplateSetting("most_choices", 1000, 1, "Maximum number of allowed strings."),
        ("numpy>=1.26", "tokenizers>=0.21"),
    ),
    Kind.DRAFTER: KindTemplate(
        "draft",
        "Drafter",
        "Drafts the tokens that followed the last token at its previous occurrence.",
        TemplateSetting("window", 1024, 2, "Number of tokens of a sequence to search."),
        ("numpy>=1.26",),
    ),
    Kind.SPEC_CONTROLLER: KindTemplate(
        "spec",
        "Controller",
        "Adapts the draft length of each sequence to its acceptance rate.",
        TemplateSetting("most", 8, 1, "Maximum draft tokens of one sequence per step."),
        ("numpy>=1.26",),
    ),
    Kind.ADMISSION: KindTemplate(
        "admit",
        "Admission",
        "Refuses batch requests while the queue is long.",
        TemplateSetting("crowd", 64, 1, "Queue length at which batch requests are refused."),
    ),
    Kind.ROUTER: KindTemplate(
        "route",
        "Router",
        "Routes to the least loaded replica; batch requests avoid full ones.",
        TemplateSetting(
            "crowd", 32, 1, "Sequences at which a replica counts as full for batch requests."
        ),
    ),
    Kind.RESIDENCY: KindTemplate(
        "residency",
        "Residency",
        "Unloads the least recently used of the models that have few requests.",
        TemplateSetting("rare", 100, 1, "Requests below which a model is unloaded before others."),
    ),
    Kind.MODEL_ROUTER: KindTemplate(
        "mroute",
        "ModelRouter",
        "Chooses the first target for short requests, and the last one for long ones.",
        TemplateSetting("most_chars", 2000, 1, "Characters up to which a request is short."),
    ),
    Kind.EXECUTOR: KindTemplate(
        "exec",
        "Executor",
        "Runs engines as child processes of lower CPU priority.",
        TemplateSetting("nice", 5, 0, "Niceness of engine processes, as in nice(1)."),
    ),
    Kind.PROTOCOL: KindTemplate(
        "proto",
        "Protocol",
        "Answers a question as JSON Lines.",
        TemplateSetting("most_tokens", 256, 1, "Maximum tokens of an answer."),
    ),
    Kind.UPSTREAM: KindTemplate(
        "upstream",
        "Upstream",
        "Relays chats to a server that answers in JSON Lines.",
        TemplateSetting("most_tokens", 1024, 1, "Maximum tokens of requests that set none."),
    ),
    Kind.TOOL_PARSER: KindTemplate(
        "tools",
        "Tools",
        "Parses tool calls that are JSON after a marker.",
    ),
    Kind.REASONING_PARSER: KindTemplate(
        "reasoning",
        "Reasoning",
        "Parses reasoning between two markers.",
    ),
    Kind.OBSERVER: KindTemplate("observe", "", "Counts requests by outcome.", None),
    Kind.CONSOLE: KindTemplate(
        "console", "", "Shows the requests that wait longest, and pauses admission.", None
    ),
}
"""Templates of every kind in ``KINDS``, and of the kinds that only have hooks."""
