"""What a new project of each kind begins with: its words, and one setting to show how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gatewayd_hooks.strategy import Kind


class TemplateSetting(NamedTuple):
    """One whole-numbered setting.

    Attributes:
        name: its key.
        default: its value when the configuration is silent.
        least: its lower bound.
        doc: one sentence for operators.
    """

    name: str
    default: int
    least: int
    doc: str


class KindTemplate(NamedTuple):
    """How a project of one kind begins.

    Attributes:
        short: what stands for the kind in names of packages.
        noun: what its class is called after its own name.
        summary: what the strategy of the template does, one sentence.
        setting: of the template; None where there is nothing to set.
        requires: what it imports beside the contract.
    """

    short: str
    noun: str
    summary: str
    setting: TemplateSetting | None = None
    requires: tuple[str, ...] = ()


BEGINNINGS: Mapping[Kind, KindTemplate] = {
    Kind.SCHEDULER: KindTemplate(
        "sched",
        "Scheduler",
        "Whoever came first computes first, in chunks.",
        TemplateSetting("max_chunk", 256, 1, "Most tokens of one sequence in a step."),
        ("numpy>=1.26",),
    ),
    Kind.PREFIX_CACHE: KindTemplate(
        "prefix",
        "PrefixCache",
        "Finds computed pages by the digest of all tokens up to their end.",
        None,
        ("numpy>=1.26",),
    ),
    Kind.EVICTION: KindTemplate(
        "evict", "Eviction", "Gives up the page that was released first.", None
    ),
    Kind.PREEMPTION: KindTemplate(
        "preempt",
        "Preemption",
        "Whoever was admitted last among the less urgent waits again.",
        None,
        ("numpy>=1.26",),
    ),
    Kind.KV_TIER: KindTemplate(
        "tier",
        "Tier",
        "Keeps pages in memory and gives up the one that was not used for longest.",
        TemplateSetting("most_pages", 1024, 1, "Pages that are kept."),
        ("numpy>=1.26",),
    ),
    Kind.KV_CODEC: KindTemplate(
        "kv",
        "Codec",
        "Keeps keys and values as numbers of sixteen bits.",
        None,
        ("torch>=2.11",),
    ),
    Kind.KV_COMPRESSION: KindTemplate(
        "kvc",
        "Compression",
        "Attends to the first tokens and to the newest.",
        TemplateSetting("newest", 256, 1, "Newest tokens that are attended to."),
        ("numpy>=1.26", "torch>=2.11"),
    ),
    Kind.QUANTIZER: KindTemplate(
        "quant",
        "Quantizer",
        "Rounds weights to 8 bits, with a scale for each group of neighbours.",
        TemplateSetting("group_size", 32, 1, "Numbers of a row that share a scale."),
        ("torch>=2.11",),
    ),
    Kind.LOGITS_PROCESSOR: KindTemplate(
        "logits",
        "Processor",
        "Adds to the logits of the prompt's tokens what a request asks for.",
        TemplateSetting(
            "limit", 10, 0, "Most that a request may add to a logit, and least negated."
        ),
        ("numpy>=1.26", "torch>=2.11"),
    ),
    Kind.GUIDE: KindTemplate(
        "guide",
        "Guide",
        "Answers that are one of several strings.",
        TemplateSetting("most_choices", 1000, 1, "Most strings that an answer may be one of."),
        ("numpy>=1.26", "tokenizers>=0.21"),
    ),
    Kind.DRAFTER: KindTemplate(
        "draft",
        "Drafter",
        "Guesses what stood behind the last token when it came before.",
        TemplateSetting("window", 1024, 2, "Tokens of a sequence that are searched."),
        ("numpy>=1.26",),
    ),
    Kind.SPEC_CONTROLLER: KindTemplate(
        "spec",
        "Controller",
        "More drafts for those whose drafts are kept, fewer for the others.",
        TemplateSetting("most", 8, 1, "Most drafts of one sequence in a step."),
        ("numpy>=1.26",),
    ),
    Kind.ADMISSION: KindTemplate(
        "admit",
        "Admission",
        "Batch requests are refused while many wait.",
        TemplateSetting("crowd", 64, 1, "Waiting requests at which batch requests are refused."),
    ),
    Kind.ROUTER: KindTemplate(
        "route",
        "Router",
        "The replica with the fewest sequences serves; batch requests shun full ones.",
        TemplateSetting("crowd", 32, 1, "Sequences at which a replica is full for batch requests."),
    ),
    Kind.EXECUTOR: KindTemplate(
        "exec",
        "Executor",
        "Engines as child processes that are nice to others.",
        TemplateSetting("nice", 5, 0, "How nice engines are to other processes, as in nice(1)."),
    ),
    Kind.PROTOCOL: KindTemplate(
        "proto",
        "Protocol",
        "Answers a question in lines of JSON.",
        TemplateSetting("most_tokens", 256, 1, "Most tokens of an answer."),
    ),
    Kind.TOOL_PARSER: KindTemplate(
        "tools",
        "Tools",
        "Reads calls that are JSON behind a mark.",
    ),
    Kind.REASONING_PARSER: KindTemplate(
        "reasoning",
        "Reasoning",
        "Reads reasoning between two marks.",
    ),
    Kind.OBSERVER: KindTemplate("observe", "", "Counts requests by their end.", None),
    Kind.CONSOLE: KindTemplate(
        "console", "", "Shows who waits longest, and pauses admission.", None
    ),
}
"""Every kind of ``KINDS``, and those that have hooks alone."""
