"""Evaluation of each scheme on all texts, compared with the reference."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from itertools import repeat

import torch

from gatewayd_engine.offline.quality.job import (
    Event,
    QualityAdvanced,
    QualityFailed,
    QualityJob,
    Sample,
    SchemeMeasured,
    SchemeUnusable,
)
from gatewayd_engine.offline.quality.scheme_model import PROMPT, SchemeModel
from gatewayd_engine.offline.quality.scores import Scores
from gatewayd_engine.process.config import EngineConfigError
from gatewayd_hooks.host.loading import PluginHost

_log = logging.getLogger(__name__)


def measure(job: QualityJob, host: PluginHost, emit: Callable[[Event], None]) -> None:
    """Measure all schemes of a job, one after the other, and emit the results.

    The reference computes each text again for each scheme, so that whatever the size of the
    vocabulary, no more than a chunk of its probabilities is in memory, unrounded.
    """
    longest = max(len(sample.ids) for sample in job.samples)
    prompt = min(sample.prompt for sample in job.samples)
    with ExitStack() as opened:
        reference = None
        if job.reference is not None:
            try:
                reference = SchemeModel(job.reference.config, host, longest)
            except Exception as error:  # noqa: BLE001 - reported as an event
                emit(QualityFailed(f"{job.reference.name}: {_sentence(error)}"))
                return
            opened.callback(reference.close)
        # A scheme that fails is reported and does not stop the others.
        for index, scheme in enumerate(job.schemes):
            try:
                with closing(SchemeModel(scheme.config, host, longest, prompt)) as candidate:
                    emit(_measured(index, candidate, reference, job.samples, emit))
            except Exception as error:  # noqa: BLE001 - plugins may raise anything
                _log.debug("%s", scheme.name, exc_info=True)
                emit(SchemeUnusable(index, _sentence(error)))


def _measured(
    index: int,
    candidate: SchemeModel,
    reference: SchemeModel | None,
    samples: Sequence[Sample],
    emit: Callable[[Event], None],
) -> SchemeMeasured:
    """Measure one scheme.

    Raises:
        EngineConfigError: candidate and reference have different vocabularies.
    """
    if reference is not None and reference.vocab_size != candidate.vocab_size:
        raise EngineConfigError(
            f"its vocabulary has {candidate.vocab_size} tokens, the reference's"
            f" {reference.vocab_size}; give --against a model of the same tokenizer"
        )
    scores = {sample.kind: Scores() for sample in samples}
    for done, sample in enumerate(samples, 1):
        _read(sample, candidate, reference, scores[sample.kind])
        emit(QualityAdvanced(index, done))
    first = samples[0]
    return SchemeMeasured(
        scheme=index,
        weight_bytes=candidate.weight_bytes,
        kv_bytes_per_token=candidate.kv_bytes_per_token,
        decode_tokens_per_second=candidate.decode_rate(first.ids[: first.prompt or PROMPT]),
        kinds={kind: score.figures() for kind, score in scores.items()},
        kv_read=candidate.kv_read,
        note=candidate.note,
    )


def _read(
    sample: Sample, candidate: SchemeModel, reference: SchemeModel | None, scores: Scores
) -> None:
    ids, begin = sample.ids, sample.prompt
    following = torch.tensor(ids[1:])
    expected = repeat(None) if reference is None else reference.logits(ids, begin)
    # Both yield chunks with the same boundaries; see ``SchemeModel.logits``.
    for logits, others in zip(candidate.logits(ids, begin), expected, strict=False):
        # The last token has no successor to be scored with.
        after = following[begin : begin + len(logits)]
        scores.add(logits[: len(after)], after, None if others is None else others[: len(after)])
        begin += len(logits)


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text or type(error).__name__
