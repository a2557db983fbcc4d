"""Settings of ``[upstreams.NAME.settings]`` for strategy ``openai``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class OpenAiUpstreamConfig(StrategyConfig):
    """What the servers of the upstream support."""

    continuous_usage: bool = setting(
        False,
        reload="restart",
        doc="Ask for token counts with every piece of a stream, as vLLM and gatewayd support, so "
        "that answers whose client disconnects are charged exactly.",
    )
    probe_path: str = setting(
        "/models",
        reload="restart",
        pattern=r"^/[\x21-\x7e]*$",
        max_length=256,
        doc="Path below the URL that is requested to find out whether an ejected endpoint serves "
        "again.",
    )
