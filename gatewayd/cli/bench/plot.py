"""Terminal plot of throughput and latency over the levels of a sweep.

plotext is imported only when a plot is drawn, so that benchmarks run without it.
"""

from __future__ import annotations

from collections.abc import Sequence

from gatewayd.cli.bench.stats import Level

NUM_TICKS = 4


class NoPlot(Exception):
    """plotext is not installed."""


def draw(levels: Sequence[Level], width: int, *, colorless: bool) -> str:
    """Plot output tokens per second on the left axis and median TTFT on the right.

    Levels are evenly spaced, whatever their values; levels without a success are left out.

    Raises:
        NoPlot: plotext is not installed.
    """
    try:
        import plotext
    except ModuleNotFoundError as error:
        raise NoPlot(f"no plot: {error.name} is not installed") from None
    shown = [(level, level.ttft) for level in levels if level.ttft is not None]
    positions = list(range(len(shown)))
    figure = plotext.figure
    figure.clear()
    figure.theme("colorless" if colorless else "simple")
    figure.plot_size(min(width, 100), 16)
    speeds = [level.output_tokens_per_second for level, _ in shown]
    _line("left", positions, speeds, "tokens/s", "hd")
    _line("right", positions, [ttft.p50 for _, ttft in shown], "TTFT p50, ms", "braille")
    figure.ruler("x").ticks(positions, [f"{level.value:g}" for level, _ in shown])
    figure.label(" / ".join(dict.fromkeys(level.load for level, _ in shown)), "x")
    return str(figure.build().string(colorless=colorless))


def _line(
    side: str, positions: Sequence[int], values: Sequence[float], label: str, marker: str
) -> None:
    import plotext

    figure = plotext.figure
    figure.draw(figure.signal(positions, values, marker=marker, yside=side).lines().label(label))
    top = max(values) or 1.0
    ticks = [top * index / NUM_TICKS for index in range(NUM_TICKS + 1)]
    ruler = figure.ruler("y", side)
    ruler.lim(0, top)
    ruler.ticks(ticks, [f"{tick:,.0f}" if top >= 10 else f"{tick:.1f}" for tick in ticks])
