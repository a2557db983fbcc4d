"""Settings of ``[logits_processor.watermark]``."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from gatewayd_hooks.strategy import StrategyConfig, setting

MIN_SECRET_CHARS = 16


class WatermarkConfig(StrategyConfig):
    """How strong the mark is, whose keys it has, and which requests get it."""

    secret: str = setting(
        "",
        reload="secret",
        max_length=1024,
        doc=f"What every tenant's key is derived from, at least {MIN_SECRET_CHARS} characters.",
    )
    secret_file: str = setting(
        "",
        reload="hot",
        is_path=True,
        doc="A file that holds the secret instead; its last newline is cut.",
    )
    gamma: float = setting(
        0.25, reload="hot", ge=0.05, le=0.9, doc="Share of the vocabulary that is green."
    )
    delta: float = setting(
        2.0, reload="hot", gt=0, le=100, doc="What is added to the logit of a green token."
    )
    max_delta: float = setting(
        24.0, reload="hot", gt=0, le=100, doc="The same where an answer is hard to mark."
    )
    context: int = setting(
        1, reload="hot", ge=1, le=8, doc="Tokens before a token that choose its green list."
    )
    requests: Literal["all", "opt_out", "opt_in"] = setting(
        "all", reload="hot", doc="Which requests are marked; see above."
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
