"""Decision of a route as lines of text, for the command line and the console."""

from __future__ import annotations

from gatewayd.wire.requests import AttemptPart, RoutePart


def route_lines(route: RoutePart) -> list[str]:
    """Describe the decision, the candidates with their scores, and the attempts."""
    lines = [f"route {route.route} ({route.strategy}): {route.reason}"]
    # In the order of the decision; candidates that it left out last.
    places = {name: place for place, name in enumerate(route.order, start=1)}
    names = [*route.order, *(name for name in route.scores if name not in places)]
    for name in names:
        score = route.scores.get(name)
        shown = "no score" if score is None else f"score {score:.4g}"
        place = f"{places[name]}." if name in places else "-"
        lines.append(f"  {place:<3} {name}: {shown}")
    return lines + [_attempt(attempt) for attempt in route.attempts]


def _attempt(attempt: AttemptPart) -> str:
    said = f"  {attempt.target} {attempt.outcome} after {attempt.ms:.1f} ms"
    if attempt.detail and attempt.detail != attempt.outcome:
        said += f": {attempt.detail}"
    if attempt.score is not None:
        said += f" (score {attempt.score:.4g})"
    if attempt.prompt_tokens or attempt.completion_tokens:
        said += f"; charged {attempt.prompt_tokens} + {attempt.completion_tokens} tokens"
    return said
