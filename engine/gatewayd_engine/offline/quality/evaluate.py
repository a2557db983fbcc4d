"""Lets each scheme read all texts, the reference beside it, and tells what comes of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from itertools import repeat

import torch

from gatewayd_engine.offline.quality.job import (
    Event,
    Measured,
    QualityAdvanced,
    QualityFailed,
    QualityJob,
    Sample,
    SchemeUnusable,
)
from gatewayd_engine.offline.quality.scheme_model import PROMPT, Opened
from gatewayd_engine.offline.quality.scores import Scores
from gatewayd_engine.process.config import EngineConfigError
from gatewayd_hooks.host.loading import PluginHost

_log = logging.getLogger(__name__)


def measure(job: QualityJob, host: PluginHost, tell: Callable[[Event], None]) -> None:
    """Measure all schemes of a job, one after the other.

    The reference computes each text again beside each scheme: whatever the vocabulary is, no more
    than a chunk of its probabilities is kept, and nothing of them is rounded.
    """
    longest = max(len(sample.ids) for sample in job.samples)
    prompt = min(sample.prompt for sample in job.samples)
    with ExitStack() as opened:
        reference = None
        if job.reference is not None:
            try:
                reference = Opened(job.reference.config, host, longest)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is told
                tell(QualityFailed(f"{job.reference.name}: {_sentence(error)}"))
                return
            opened.callback(reference.close)
        for index, scheme in enumerate(job.schemes):
            try:
                with closing(Opened(scheme.config, host, longest, prompt)) as candidate:
                    tell(_measured(index, candidate, reference, job.samples, tell))
            except Exception as error:  # noqa: BLE001 - a plugin's may be any
                _log.debug("%s", scheme.name, exc_info=True)
                tell(SchemeUnusable(index, _sentence(error)))


def _measured(
    index: int,
    candidate: Opened,
    reference: Opened | None,
    samples: Sequence[Sample],
    tell: Callable[[Event], None],
) -> Measured:
    """What a scheme comes to.

    Raises:
        ConfigError: the two have not the same vocabulary.
    """
    if reference is not None and reference.vocab_size != candidate.vocab_size:
        raise EngineConfigError(
            f"its vocabulary has {candidate.vocab_size} tokens, the reference's"
            f" {reference.vocab_size}; give --against a model of the same tokenizer"
        )
    scores = {sample.kind: Scores() for sample in samples}
    for done, sample in enumerate(samples, 1):
        _read(sample, candidate, reference, scores[sample.kind])
        tell(QualityAdvanced(index, done))
    first = samples[0]
    return Measured(
        scheme=index,
        weight_bytes=candidate.weight_bytes,
        kv_bytes_per_token=candidate.kv_bytes_per_token,
        decode_tokens_per_second=candidate.decode_rate(first.ids[: first.prompt or PROMPT]),
        kinds={kind: score.figures() for kind, score in scores.items()},
        kv_read=candidate.kv_read,
        note=candidate.note,
    )


def _read(sample: Sample, candidate: Opened, reference: Opened | None, scores: Scores) -> None:
    ids, begin = sample.ids, sample.prompt
    following = torch.tensor(ids[1:])
    beside = repeat(None) if reference is None else reference.logits(ids, begin)
    for logits, others in zip(candidate.logits(ids, begin), beside, strict=False):
        # Nothing is known to follow the last token.
        after = following[begin : begin + len(logits)]
        scores.add(logits[: len(after)], after, None if others is None else others[: len(after)])
        begin += len(logits)


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text or type(error).__name__
