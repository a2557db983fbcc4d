"""``gatewayd doctor``: check the machine and the configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Annotated

import typer
from rich.console import Console

from gatewayd.cli.common import (
    FAILURE,
    AsJson,
    ConfigFile,
    load_config,
    models_in,
    named_folder,
    print_json,
)
from gatewayd.cli.doctor import (
    backend as checks_backend,
)
from gatewayd.cli.doctor import (
    checks,
)
from gatewayd.cli.doctor import (
    cpus as checks_cpus,
)
from gatewayd.cli.doctor import (
    gpu as checks_gpu,
)
from gatewayd.cli.doctor import (
    kernels as checks_kernels,
)
from gatewayd.cli.doctor import (
    service as checks_service,
)
from gatewayd.cli.doctor import (
    weights as checks_weights,
)
from gatewayd.cli.doctor.finding import Finding
from gatewayd.config.catalogue import ModelConfig
from gatewayd.config.tables import Config

CHECKS: tuple[Callable[[Config], Finding], ...] = (
    checks.python,
    checks.torch,
    checks_cpus.cpu,
    checks_kernels.kernels,
    checks_gpu.gpu,
    checks.memory,
    checks.descriptors,
    checks_service.disk,
    checks_service.sqlite,
    checks_service.unit,
    checks_service.confinement,
    checks.port,
    checks.model,
    checks_backend.backend,
    checks_weights.weights,
    checks.plugins,
)
_OF_MODELS = {
    checks_cpus.cpu,
    checks_kernels.kernels,
    checks_gpu.gpu,
    checks.memory,
    checks_service.confinement,
    checks.model,
    checks_backend.backend,
    checks_weights.weights,
}
"""Checks of each model with its own configuration; others are of the machine or of all models."""
_MARKS = {"ok": "[green]ok[/]", "warning": "[yellow]warning[/]", "failure": "[red]failure[/]"}


Model = Annotated[
    str | None,
    typer.Argument(help="Folder of a checkpoint to check instead of the configured one, or nano."),
]


def doctor(model: Model = None, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Check this machine, the configuration and a model; exit status 1 if something is wrong."""
    flags = {} if model is None else {"model.path": named_folder(model)}
    loaded = load_config(config, flags).config
    models = models_in(loaded, flags)
    if len(models) == 1:
        loaded = models[0].config
    findings = [one for check in CHECKS for one in _findings(check, loaded, models)]
    is_fit = all(finding.state != "failure" for finding in findings)
    if as_json:
        print_json({"ok": is_fit, "checks": [asdict(finding) for finding in findings]})
    else:
        console = Console()
        for finding in findings:
            console.print(f"{_MARKS[finding.state]:<24}{finding.subject:<13}", end="")
            console.print(finding.text, markup=False, highlight=False, soft_wrap=True)
    if not is_fit:
        raise typer.Exit(FAILURE)


def _findings(
    check: Callable[[Config], Finding], config: Config, models: Sequence[ModelConfig]
) -> list[Finding]:
    """Perform a check; findings of several models name theirs, unless they are all the same."""
    if check not in _OF_MODELS:
        return [check(config)]
    found = [check(model.config) for model in models]
    if len(set(found)) == 1:
        return found[:1]
    return [
        replace(finding, text=f"{model.table}: {finding.text}")
        for model, finding in zip(models, found, strict=True)
    ]
