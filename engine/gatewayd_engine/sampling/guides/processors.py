"""The logits processors, and behind them what guides allow: the guide's word is the last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.kernels.select import choose
from gatewayd_engine.kernels.transfers import upload
from gatewayd_engine.process.plugin_faults import Fault
from gatewayd_engine.sampling.guides.compiler import Compiled
from gatewayd_engine.sampling.guides.matcher_rows import Follower, MaskStep
from gatewayd_engine.sampling.guides.matchers import Filler
from gatewayd_engine.sampling.processors import Processors
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.step_batch import DraftLines
from gatewayd_hooks.logits import LogitsProcessor

_kernels = cache(choose)


class GuidedProcessors(Processors):
    """As ``Processors``; rows may follow a grammar too.

    Masks are filled while the layers compute: ``begin`` lets a thread do it where a step's tokens
    are known and masks take long, and on a device, whose tokens come while it computes, ``apply``
    does.

    Args:
        names, processors, max_running, record: see ``Processors``.
        filler: asks the matchers.
    """

    def __init__(
        self,
        names: Sequence[str],
        processors: Sequence[LogitsProcessor],
        max_running: int,
        record: Callable[[str, BaseException], bool],
        filler: Filler,
    ) -> None:
        super().__init__(names, processors, max_running, record)
        self._filler = filler
        self._followers: dict[int, Follower] = {}
        self._is_guided = np.zeros(max_running, np.bool_)
        self._step: MaskStep | None = None
        self._depth: dict[int, int] = {}

    @property
    def guides_any(self) -> bool:
        """Whether any row follows a grammar."""
        return bool(self._followers)

    def is_guided(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each of the rows follows a grammar, shape ``[n]``."""
        guided: NDArray[np.bool_] = self._is_guided[rows]
        return guided

    def changed_by_chain(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each of the rows wants any logits processor of the chain, shape ``[n]``."""
        return super().wanted_by(rows)

    def wanted_by(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the logits of each of the rows are changed by anything, shape ``[n]``."""
        wanted = super().wanted_by(rows)
        if self._followers:
            wanted |= self._is_guided[rows]
        return wanted

    def follow(self, row: int, compiled: Compiled, output: NDArray[np.int32]) -> Fault | None:
        """The sequence of a row follows a grammar, from behind these tokens on; why it cannot."""
        self._drain()
        self._followers[row] = follower = self._filler.start(compiled, output.tolist())
        self._is_guided[row] = True
        return follower.fault

    def remove(self, row: int) -> None:
        """See ``Processors``."""
        super().remove(row)
        if self._followers.pop(row, None) is not None:
            self._is_guided[row] = False
            self._depth.pop(row, None)

    def forced(self, row: int) -> Sequence[int]:
        """See ``Processors``."""
        return super().forced(row) or self.forced_by_guide(row)

    def forced_by_guide(self, row: int) -> Sequence[int]:
        """Tokens that the grammar of a row forces to come next."""
        follower = self._followers.get(row)
        if follower is None:
            return ()
        self._drain()
        return self._filler.forced(follower)[: self.reach(row)]

    def reach(self, row: int) -> int:
        """How many tokens of a row that follows a grammar may be guessed in one step."""
        return self._filler.reach(self._followers[row], len(self._followers))

    # A step

    def begin(self, rows: NDArray[np.int64], drafts: DraftLines | None) -> None:
        """Begin to fill the masks of rows that are about to get tokens.

        Args:
            rows: no row twice, shape ``[n]``.
            drafts: of each.
        """
        if not self._followers:
            return
        self._drain()
        followers, chains = self._lay_out(rows, drafts)
        if followers and self._filler.is_quick(followers, chains):
            self._step = self._filler.fill(followers, chains)
        elif followers:
            self._filler.begin(followers, chains)

    def _lay_out(
        self, rows: NDArray[np.int64], drafts: DraftLines | None
    ) -> tuple[list[Follower], list[list[int]]]:
        followers: list[Follower] = []
        chains: list[list[int]] = []
        for i in np.flatnonzero(self._is_guided[rows]).tolist():
            row = int(rows[i])
            self._depth.pop(row, None)
            followers.append(self._followers[row])
            # Of a tree the first masks alone are foreseen.
            has_chain = drafts is not None and drafts.parents is None
            chains.append(
                drafts.tokens[i, : drafts.counts[i]].tolist() if has_chain and drafts else []
            )
        return followers, chains

    def apply(
        self,
        logits: torch.Tensor,
        rows: NDArray[np.int64],
        again: Callable[[], torch.Tensor],
    ) -> dict[int, Fault]:
        """See ``Processors``; rows stand where ``advance`` has brought them."""
        failed = super().apply(logits, rows, again)
        lines = np.flatnonzero(self._is_guided[rows])
        if len(lines):
            depths = [self._depth.get(row, 0) for row in rows[lines].tolist()]
            failed.update(self._mask(logits, lines, rows[lines], depths))
        return failed

    def apply_along(
        self,
        logits: torch.Tensor,
        rows: NDArray[np.int64],
        drafts: DraftLines,
        again: Callable[[], torch.Tensor],
    ) -> dict[int, Fault]:
        """As ``apply``, behind each row's last token and behind each of its drafts, a chain.

        Args:
            logits: float32, those of each row one after another, shape ``[n + drafts, vocab]``.
            rows: of which none has drafts and logits processors, shape ``[n]``.
            drafts: of each.
            again: computes the same logits anew.

        Returns:
            What failed, by index of ``rows``.
        """
        counts = drafts.counts + 1
        of = np.repeat(np.arange(len(rows)), counts)
        said = super().apply(logits, rows[of], again)
        if self._is_guided[rows].any():
            self._drain()
            self._step = step = self._filler.fill(*self._lay_out(rows, drafts))
            depth = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
            # Behind a draft that is not allowed nothing is looked at.
            lines = [
                i
                for i in np.flatnonzero(self._is_guided[rows[of]]).tolist()
                if depth[i] == 0
                or step.at(self._followers[int(rows[of[i]])], int(depth[i])) is not None
            ]
            at = np.array(lines, np.int64)
            said.update(self._mask(logits, at, rows[of[at]], depth[at].tolist()))
        return {int(of[line]): fault for line, fault in said.items()}

    def _mask(
        self,
        logits: torch.Tensor,
        lines: NDArray[np.int64],
        rows: NDArray[np.int64],
        depths: list[int],
    ) -> dict[int, Fault]:
        """Forbid what the grammars do not allow at some lines of logits."""
        followers = [self._followers[row] for row in rows.tolist()]
        step = self._masks(followers, depths)
        failed: dict[int, Fault] = {}
        places, masked = [], []
        for i, follower in enumerate(followers):
            place = step.at(follower, depths[i])
            if follower.fault is not None:
                failed[int(lines[i])] = follower.fault
            elif place is not None:
                places.append(place)
                masked.append(i)
        if places:
            bits = upload(step.masks[places], logits.device)
            index = upload(lines[masked], logits.device)
            _kernels(logits.device).mask(logits, bits, index)
            if super().wanted_by(rows).any():
                _allow_again(logits, bits, index)
        return failed

    def _masks(self, followers: list[Follower], depths: list[int]) -> MaskStep:
        """The masks of followers behind so many drafts, filled before or now."""
        self._drain()
        step = self._step
        if step is None or any(
            step.at(one, depth) is None and not one.is_lost
            for one, depth in zip(followers, depths, strict=True)
        ):
            step = self._filler.fill(followers, [[]] * len(followers))
            step.line = {
                (id(one), depth): step.line[id(one), 0]
                for one, depth in zip(followers, depths, strict=True)
                if (id(one), 0) in step.line
            }
        return step

    def rewind(self, rows: RunningBatch, lengths: dict[int, int]) -> None:
        """See ``Processors``."""
        ahead = [row for row in self._ahead if row in self._followers]
        super().rewind(rows, lengths)
        self._drain()
        self._step = None
        for row in ahead:
            output = rows.tokens[row, int(rows.prompt_len[row]) : lengths[row]]
            self._followers[row] = self._filler.start(
                self._followers[row].compiled, output.tolist()
            )
            self._depth.pop(row, None)

    def append(
        self, rows: NDArray[np.int64], tokens: NDArray[np.int32] | torch.Tensor
    ) -> dict[int, Fault]:
        """See ``Processors``; the masks of the step are of no use any more."""
        failed = super().append(rows, tokens)
        self._step = None
        self._depth.clear()
        return failed

    def _tell(
        self, rows: NDArray[np.int64], tokens: NDArray[np.int32] | torch.Tensor
    ) -> dict[int, Fault]:
        failed = super()._tell(rows, tokens)
        lines = np.flatnonzero(self._is_guided[rows]).tolist()
        if not lines:
            return failed
        self._drain()
        theirs = [(line, self._followers[int(rows[line])]) for line in lines]
        if isinstance(tokens, torch.Tensor):
            self._send(theirs, tokens)
            return failed
        self._filler.accept([(one, int(tokens[line])) for line, one in theirs])
        for line, follower in theirs:
            row = int(rows[line])
            self._depth[row] = self._depth.get(row, 0) + 1
            if follower.fault is not None:
                failed.setdefault(line, follower.fault)
        return failed

    def _send(self, followers: list[tuple[int, Follower]], tokens: torch.Tensor) -> None:
        """Tokens that a device chooses are read when the next masks are due, and not waited for."""

        def read(ids: NDArray[np.int32]) -> None:
            # Of a line whose numbers went wrong it may be any; its request has failed.
            coming = [(one, int(ids[line])) for line, one in followers]
            self._filler.accept(coming, is_sure=False)

        self._sampled.send(tokens, read)

    def _drain(self) -> None:
        """See ``Processors``: then no thread asks the matchers, and they know all tokens."""
        if self._filler.is_filling:
            self._step = self._filler.step()
        super()._drain()


def _allow_again(logits: torch.Tensor, bits: torch.Tensor, lines: torch.Tensor) -> None:
    """Where processors forbid all that the grammars allow, let the grammars have their way."""
    at = torch.arange(32, dtype=torch.int32, device=logits.device)
    is_allowed = (bits.unsqueeze(-1) >> at & 1).flatten(1)[:, : logits.shape[1]].bool()
    masked = logits[lines]
    is_empty = masked.amax(-1, keepdim=True) == -torch.inf
    logits[lines] = masked.masked_fill(is_empty & is_allowed, 0.0)
