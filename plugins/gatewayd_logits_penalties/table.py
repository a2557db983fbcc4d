"""Table with a vocabulary-sized line for each row that needs one."""

from __future__ import annotations

import torch


class RowTable:
    """Vocabulary-sized lines, allocated when needed and reused.

    A table over every row would take rows x vocabulary even when no request has a penalty (128 MiB
    for 256 rows and 128k tokens); this one takes the maximum of rows that needed one at once.

    The mapping of rows to lines is also known on the CPU, so that looking it up does not
    synchronize with the device.

    Attributes:
        data: shape ``[lines, vocab_size]``.
        line_of: each row's line, -1 for none, int64, shape ``[max_running]``; on the device.
    """

    def __init__(
        self, max_running: int, vocab_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.data = torch.zeros((0, vocab_size), dtype=dtype, device=device)
        self._line_of = torch.full((max_running,), -1, dtype=torch.int64)
        self.line_of = self._line_of.to(device, copy=True)
        self._used: dict[int, int] = {}
        self._free: list[int] = []

    def add(self, row: int) -> torch.Tensor:
        """Allocate a line of zeros for a row; return it, shape ``[vocab_size]``."""
        if not self._free:
            old = len(self.data)
            # Doubled, up to a line for every row.
            new = min(max(1, old), len(self._line_of) - old)
            self.data = torch.cat([self.data, self.data.new_zeros(new, self.data.shape[1])])
            self._free.extend(range(old + new - 1, old - 1, -1))
        line = self._used[row] = self._free.pop()
        self._assign(row, line)
        return self.data[line].zero_()

    def release(self, row: int) -> None:
        """Release a row's line, if it has one."""
        line = self._used.pop(row, None)
        if line is not None:
            self._assign(row, -1)
            self._free.append(line)

    def _assign(self, row: int, line: int) -> None:
        self._line_of[row] = line
        self.line_of[row].fill_(line)  # a number that is assigned is copied, and waited for

    def find(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Find the rows that have a line.

        Args:
            rows: row numbers, int64, shape ``[n]``; on the CPU.

        Returns:
            Positions in ``rows`` of those that have one, shape ``[k]``, and their lines; on the
            device.
        """
        lines, device = self._line_of[rows], self.data.device
        have = (lines >= 0).nonzero().squeeze(1)
        # Asynchronous: small arrays are staged before this returns.
        return have.to(device, non_blocking=True), lines[have].to(device, non_blocking=True)
