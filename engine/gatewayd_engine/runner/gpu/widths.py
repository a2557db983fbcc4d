"""Padded widths of sequences with drafts, and limits on the slots of a step.

Slot 0 of a sequence is its last token, the others are drafts.
"""

from __future__ import annotations

from gatewayd_engine.runner.gpu.draft_slots import MOST_SLOTS

MOST_CAPTURED = 512
"""Most slots of a captured step; a larger one takes longer to compute than to launch."""
WIDTHS = (2, 3, 5, 9, 17, 33)
"""Slots of a sequence in captured steps: its last token and 1, 2, 4, 8, 16 or 32 drafts. Trees of
Medusa and EAGLE have up to 32 and 24 drafts with the default settings."""
_WIDER = (MOST_SLOTS,)
"""Additional widths of steps that are not captured: attention is compiled for each width."""


def steps_of_widths() -> list[tuple[int, int]]:
    """Return pairs of the fewest slots padded to a width, and the width, for uncaptured steps."""
    widths = (*WIDTHS, *_WIDER)
    return [(before + 1, width) for before, width in zip((1, *widths), widths, strict=False)]


def padded(num_slots: int) -> int:
    """Return the width to which sequences of at most ``num_slots`` slots are padded, uncaptured."""
    return next(width for _, width in steps_of_widths() if width >= num_slots)


# Limits of a step


def most_slots(max_lines: int) -> int:
    """Return the most slots of a step with drafts, where sequences without drafts count one each.

    That is also the most rows of logits. All sequences can have a draft. More drafts do not pay off
    on a GPU: from some 300 slots on (H100 in bfloat16) a step is compute-bound rather than bound by
    reading the weights, so that a draft costs as much as a token, and is accepted less often.
    """
    return max(2 * max_lines, MOST_CAPTURED)


def most_drafts(num_lines: int, max_lines: int) -> int:
    """Return the most drafts per sequence for which a step has at most ``most_slots`` slots.

    Args:
        num_lines: sequences with drafts.
        max_lines: most sequences of a step.
    """
    # Each row may take a slot for its last token; the rest is for drafts.
    drafts = (most_slots(max_lines) - max_lines) // max(num_lines, 1)
    return max(width - 1 for _, width in steps_of_widths() if width - 1 <= drafts)


def most_lines(fewest: int, width: int, max_lines: int, max_tokens: int) -> int:
    """Return the most sequences of a step that can be padded to a width; 0 if none can.

    One of them has more slots than the next smaller width, all others have a single draft.

    Args:
        fewest: fewest slots that are padded to the width.
        width: see ``steps_of_widths``.
        max_lines: most sequences of a step.
        max_tokens: most tokens of a step.
    """
    allowed = (most_slots(max_lines) - max_lines) // (width - 1)
    return max(min(max_lines, allowed, 1 + (max_tokens - fewest) // 2), 0)


def most_padding(max_lines: int, max_tokens: int) -> int:
    """Return the most padding slots of a step."""
    most = 0
    for fewest, width in steps_of_widths():
        lines = most_lines(fewest, width, max_lines, max_tokens)
        if lines:
            most = max(most, lines * width - fewest - 2 * (lines - 1))
    return most


# Captured sizes


def captured_sizes(width: int, max_lines: int) -> list[int]:
    """Return the captured batch sizes of a width: powers of two, and the largest that fits."""
    most = min(max_lines, MOST_CAPTURED // width)
    return sorted({1 << bit for bit in range(most.bit_length())} | {most}) if most else []


def captured_widths(max_lines: int) -> list[int]:
    """Return the widths of captured steps, the largest first."""
    return [width for width in WIDTHS[::-1] if captured_sizes(width, max_lines)]


def num_captured(max_lines: int) -> int:
    """Return the number of CUDA graphs for steps with drafts."""
    return sum(len(captured_sizes(width, max_lines)) for width in WIDTHS)


def most_captured(max_lines: int) -> int:
    """Return the slots of the largest captured step with drafts."""
    return max(width * max(captured_sizes(width, max_lines), default=0) for width in WIDTHS)


def captured_slots(max_lines: int) -> set[int]:
    """Return the slots of each captured step, including padding: the rows of its products."""
    return {width * lines for width in WIDTHS for lines in captured_sizes(width, max_lines)}
