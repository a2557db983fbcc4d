"""Field types that all APIs share, with the gateway's limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

MAX_CHOICES = 16
MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_BIASES = 1024
MAX_PROMPTS = 128
MAX_IDS = 2**20
MAX_SEED = 2**63 - 1
MAX_EXTRA_ARGS = 16
MAX_METADATA = 16
MAX_INT = 2**63 - 1
MAX_MESSAGES = 4096
MAX_PARTS = 1024
MAX_CALLS = 128
MAX_TOOLS = 128
MAX_ID = 256
MAX_INPUTS = 2048
MAX_ENTRIES = 32_768
"""Limit on parts and calls of all messages: a few bytes each, but hundreds of thousands occupy the
interpreter for a whole second."""

Model = Annotated[str, Field(min_length=1, max_length=256, description="A served model's name.")]
Count = Annotated[int, Field(ge=1, le=MAX_CHOICES)]
MaxTokens = Annotated[int, Field(ge=0, le=MAX_INT)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
# Otherwise a list of millions of invalid entries would produce an error for each of them.
TokenIds = Annotated[list[TokenId], Field(fail_fast=True, max_length=MAX_IDS)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
ExtraName = Annotated[str, Field(min_length=1, max_length=64)]
ExtraValue = bool | int | Finite | Annotated[str, Field(max_length=256)]
Priority = Literal["realtime", "standard", "batch"]
PriorityNumber = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
QueueSeconds = Annotated[float, Field(gt=0, le=86400, allow_inf_nan=False)]
CacheSalt = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^@/\\\x00]*$")]
ServiceTier = Literal["auto", "default", "standard", "scale", "flex", "priority", "fast"]
Temperature = Annotated[Finite, Field(ge=0, le=2)]
Share = Annotated[Finite, Field(ge=0, le=1)]
"""Probability, such as ``min_p``."""
TopP = Annotated[Finite, Field(gt=0, le=1)]
"""Probability above 0."""
TopK = Annotated[int, Field(ge=-1, le=2**31 - 1)]
Penalty = Annotated[Finite, Field(ge=-2, le=2)]
"""Additive penalty: ``frequency_penalty`` and ``presence_penalty``."""
RepetitionPenalty = Annotated[Finite, Field(gt=0, le=10)]
Seed = Annotated[int, Field(ge=-MAX_SEED - 1, le=MAX_SEED)]
NumLogprobs = Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]
StopStrings = Annotated[list[StopString], Field(max_length=MAX_STOPS)]
EndUser = Annotated[str, Field(max_length=512)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
CallId = Annotated[str, Field(min_length=1, max_length=MAX_ID)]
CallName = Annotated[str, Field(min_length=1, max_length=256)]
ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:/-]{1,128}$")]
Schema = dict[str, Any]
"""A JSON Schema."""


def few_entries(names: Sequence[str] = ("content", "tool_calls")) -> BeforeValidator:
    """Return a validator that refuses a conversation of too many entries before each is validated.

    Args:
        names: of lists in a message, and in the entries of those.
    """

    def entries(holder: object, depth: int = 1) -> int:
        """Count the entries of an object's lists, including those nested in entries."""
        if not isinstance(holder, dict):
            return 0
        count = 0
        for name in names:
            some = holder.get(name)
            if type(some) is list:
                count += len(some)
                # Beyond the limit the exact number does not matter.
                if depth and count <= MAX_ENTRIES:
                    count += sum([entries(one, depth - 1) for one in some])
        return count

    def check(value: object) -> object:
        left = MAX_ENTRIES
        for message in value if isinstance(value, list) else ():
            left -= entries(message)
            if left < 0:
                raise PydanticCustomError(
                    "too_many_entries",
                    "more than {most} parts and calls, the maximum of all messages: join texts",
                    {"most": MAX_ENTRIES},
                )
        return value

    return BeforeValidator(check)
