"""Settings of ``[logits_processor.watermark]``."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from gatewayd_hooks.strategy import StrategyConfig, setting

MIN_SECRET_CHARS = 16


class WatermarkConfig(StrategyConfig):
    """Strength of the watermark, its keys, and which requests get it."""

    secret: str = setting(
        "",
        reload="secret",
        max_length=1024,
        doc=f"Secret from which tenants' keys are derived, {MIN_SECRET_CHARS} to 1024 characters.",
    )
    secret_file: str = setting(
        "",
        reload="hot",
        is_path=True,
        doc="File that contains the secret instead; a trailing newline is removed.",
    )
    gamma: float = setting(
        0.25,
        reload="hot",
        ge=0.05,
        le=0.9,
        doc="Fraction of the vocabulary that is green, from 0.05 to 0.9.",
    )
    delta: float = setting(
        2.0,
        reload="hot",
        gt=0,
        le=100,
        doc="Number added to the logit of a green token, above 0 and up to 100.",
    )
    max_delta: float = setting(
        24.0,
        reload="hot",
        gt=0,
        le=100,
        doc=(
            "Maximum of the number added to the logit of a green token in answers that are "
            "hard to mark, above 0 and up to 100."
        ),
    )
    context: int = setting(
        1,
        reload="hot",
        ge=1,
        le=8,
        doc=(
            "Number of preceding tokens, from 1 to 8, that determine the green list of a token; "
            "more hide the lists better, but a changed token destroys more of the watermark."
        ),
    )
    requests: Literal["all", "opt_out", "opt_in"] = setting(
        "all",
        reload="hot",
        doc=(
            "Which requests are watermarked: all of them (`all`), all but those that decline "
            "(`opt_out`), or those that ask for it (`opt_in`)."
        ),
    )

    @model_validator(mode="after")
    def _has_one_secret(self) -> WatermarkConfig:
        if bool(self.secret) == bool(self.secret_file):
            raise ValueError("set either secret or secret_file: keys are derived from it")
        if self.secret and len(self.secret) < MIN_SECRET_CHARS:
            raise ValueError(f"secret is shorter than {MIN_SECRET_CHARS} characters")
        if self.max_delta < self.delta:
            raise ValueError(f"max_delta is {self.max_delta}, which is below delta, {self.delta}")
        return self
