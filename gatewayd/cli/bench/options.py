"""Options shared by ``bench offline`` and ``bench serve``, and their validation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from gatewayd.cli.bench.run import Form
from gatewayd.cli.bench.target import Subject, subject
from gatewayd.config.chosen_strategies import configured
from gatewayd.config.load import ConfigError
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.loading import PluginError, PluginHost


class BenchDtype(StrEnum):
    """Dtype of weights and activations."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


Model = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER|llama-8b",
        help="Checkpoint folder, or llama-8b for random weights in the shape of Llama 3.1 "
        "8B. Default: the embedded model nano.",
    ),
]
Device = Annotated[
    str, typer.Option(metavar="cpu|cuda[:N]", help="Device that the engine runs on.")
]
DtypeOption = Annotated[BenchDtype, typer.Option(help="Data type of weights and activations.")]
MaxRunning = Annotated[
    int | None,
    typer.Option(metavar="N", help="Maximum number of running sequences. Default on cuda: 256."),
]
MaxBatchTokens = Annotated[
    int | None,
    typer.Option(metavar="N", help="Maximum number of tokens per step. Default on cuda: 8192."),
]
MaxModelLen = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Maximum context length in tokens. Default of llama-8b on cuda: 16512."
    ),
]
KvMemory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE", help="Memory for the KV cache. Default on cuda: all that is free."
    ),
]
QuantizerOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Weight quantizer. Default: weights as stored.")
]
KvCodec = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="KV-cache codec (quantization). Default: the data type of activations."
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a configuration key, such as kv_codec.fp8.scale=none. Repeatable.",
    ),
]
Only = Annotated[
    str | None, typer.Option(metavar="NAME[,NAME...]", help="Run only these workloads.")
]
Scale = Annotated[
    float,
    typer.Option(
        min=0.0001,
        max=1,
        help="Scale factor for the number and length of requests, for shorter runs.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the results as JSON.")]
AsMarkdown = Annotated[
    bool, typer.Option("--markdown", help="Print the results as Markdown tables.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        dir_okay=False,
        writable=True,
        help="Also write the JSON results to this file after each workload.",
    ),
]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of both commands for the engine and the workloads."""

    model: Model = None
    device: Device = "cpu"
    dtype: DtypeOption = BenchDtype.AUTO
    only: Only = None
    scale: Scale = 1.0
    max_running: MaxRunning = None
    max_batch_tokens: MaxBatchTokens = None
    max_model_len: MaxModelLen = None
    kv_memory: KvMemory = None

    @property
    def settings(self) -> dict[str, Any]:
        """Configuration values by dotted key; None for those to leave at their default."""
        return {
            "model.dtype": self.dtype.value,
            "model.max_model_len": self.max_model_len,
            "engine.max_running": self.max_running,
            "engine.max_batch_tokens": self.max_batch_tokens,
            "engine.kv_memory": self.kv_memory,
        }


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Options of both commands for the output."""

    out: Out = None
    as_json: AsJson = False
    as_markdown: AsMarkdown = False

    @property
    def form(self) -> Form:
        """Format of the printed results."""
        return "json" if self.as_json else "markdown" if self.as_markdown else "table"


def chosen(only: str | None, names: Sequence[str]) -> list[str]:
    """Return the workloads selected by ``--only``, in their standard order; all by default."""
    wanted = only.split(",") if only is not None else list(names)
    for name in wanted:
        if name not in names:
            raise typer.BadParameter(
                f"{name!r} is not a workload; known: {', '.join(names)}", param_hint="--only"
            )
    return [name for name in names if name in wanted]


def pairs(given: Sequence[str] | None) -> dict[str, Any]:
    """Parse the values of ``--set`` to configuration values by dotted key."""
    made = {}
    for pair in given or ():
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{pair!r} is not KEY=VALUE", param_hint="--set")
        made[key] = value
    return made


@contextmanager
def measured(model: str | None, device: str, options: dict[str, Any]) -> Iterator[Subject]:
    """Enter ``subject``; errors are turned into usage errors that name the option."""
    with ExitStack() as stack:
        try:
            # Errors of the setup alone become usage errors, not those of the block.
            found = stack.enter_context(subject(model, device, options))
        except ConfigError as error:
            raise typer.BadParameter(str(error)) from None
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--model") from None
        _check_installed(found)
        yield found


def _check_installed(found: Subject) -> None:
    """Refuse strategies that are not installed, before an engine is started."""
    host = PluginHost(Catalog.installed())
    for kind, name, _ in configured(found.config()):
        if f"{kind}.strategy" in found.settings:
            try:
                host.info(kind, name)
            except PluginError as error:
                flag = f"--{kind.replace('_', '-')}"
                raise typer.BadParameter(str(error), param_hint=flag) from None
