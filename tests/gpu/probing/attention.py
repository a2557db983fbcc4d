"""Lines over a block-major pool, and the Triton kernels that attend them: ``_decode_attention``."""

from __future__ import annotations

from functools import cached_property, partial

import torch

from gatewayd_engine.attention.append import Append
from gatewayd_engine.attention.draft_slots import SlotAttention
from gatewayd_engine.attention.step_inputs import HostPlan, StepInputs
from gatewayd_engine.attention.triton_decode import DecodeKernels
from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.attention_shape import AttentionShape
from tests.gpu.probing.bench import TWIN, Bench
from tests.gpu.probing.trial import Tensors, Trial

E4M3 = torch.float8_e4m3fn
_MOST_BYTES = 18 << 30
"""Of a pool; where it would be larger, fewer layers are read one after the other."""
_FEW_LAYERS = 4
_COMPARED = 4
"""Lines that are compared: the twin compares each query with the tokens of all lines."""
_MOST_SLOTS = 16
"""Slots of a line that are told what they see."""
_BLOCK = 64
"""Pages that are filled at a time."""


class Contexts:
    """Lines of one length, in pages that do not lie one behind another.

    Args:
        bench: has the sizes.
        lines: how many.
        length: tokens of each, those of the step included.
        element: of keys and values; None for that of queries.
        width: queries of each line.
        latents: whether it is latent attention, with the sizes of that.
        chunk: positions of the chunks that layers attend within; 0 for whole contexts.

    Attributes:
        queries: ``[lines * width, heads, dim]``, a part of something wider.
        read: bytes of keys and values of a layer that are read.
    """

    def __init__(
        self,
        bench: Bench,
        lines: int,
        length: int,
        element: torch.dtype | None = None,
        width: int = 1,
        *,
        latents: bool = False,
        chunk: int = 0,
    ) -> None:
        sizes, device = bench.sizes, bench.device
        self.lines, self.length, self.width = lines, length, width
        self.each = -(-length // sizes.page)
        keys = element or sizes.dtype
        own, parts = (sizes.heads, sizes.kv_heads, sizes.dim), 2
        if latents:
            own, parts = (sizes.latents.heads, 1, sizes.latents.dim), 1
        heads, kv_heads, dim = own
        token = parts * kv_heads * dim * keys.itemsize
        of_layer = lines * self.each * sizes.page * token
        fits = of_layer * sizes.layers <= _MOST_BYTES
        layers = sizes.layers if fits else min(_FEW_LAYERS, sizes.layers)
        value_dim = sizes.latents.value_dim if latents else 0
        self.shape = AttentionShape(
            *(layers, *own, dim**-0.5, None, (chunk,) * layers),
            values_are_keys=latents,
            chunked=chunk > 0,
            value_dim=value_dim,
        )
        self.pool = _filled(self.shape, lines * self.each, sizes.page, bench, element)
        qkv = bench.randn(lines * width, heads + parts * kv_heads, dim)
        self.queries = qkv[:, :heads]
        self.indptr = torch.arange(lines + 1, dtype=torch.int32) * self.each
        self.last = torch.full((lines,), length - (self.each - 1) * sizes.page, dtype=torch.int32)
        none = torch.zeros(lines * width, dtype=torch.int64, device=device)
        self.inputs = StepInputs(
            ids=none,
            positions=none,
            write=none,
            page_indptr=self.indptr.to(device),
            pages=torch.randperm(lines * self.each, device=device).int(),
            last_page_len=self.last.to(device),
            host=HostPlan(lines, self.indptr, self.indptr, self.last, longest=length),
        )
        self.read = lines * ((length - 1) % chunk + 1 if chunk else length) * token
        self._max_len = sizes.max_len
        # Each query sees itself and those before it: a chain, as bits.
        # Prompts have more than a mask has bits, and need none.
        slots = range(min(width, _MOST_SLOTS))
        masks = torch.tensor([(1 << slot + 1) - 1 for slot in slots] * lines)
        self.ancestors = masks.to(device)

    def compared(self, out: torch.Tensor) -> Tensors:
        """The part of an answer that ``wanted`` has."""
        return (out[: _COMPARED * self.width].clone(),)

    def empty(self, num_queries: int) -> torch.Tensor:
        """Room for the answers to so many queries."""
        return self.queries.new_empty(num_queries, self.shape.num_heads, self.shape.out_dim)

    @cached_property
    def _wanted(self) -> Tensors:
        few, inputs = min(_COMPARED, self.lines), self.inputs
        query = self.queries[: few * self.width]
        out = self.empty(len(query))
        TWIN.decode_attention(
            query,
            self.pool.data[:, 0],
            inputs.page_indptr[: few + 1],
            inputs.pages[: few * self.each],
            inputs.last_page_len[:few],
            out,
            scale=self.shape.scale,
            softcap=None,
            window=self.shape.windows[0],
            sinks=None,
            width=self.width,
            num_queries=None,
            ancestors=self.ancestors[: few * self.width],
            splits=1,
            scratch=None,
            chunked=self.shape.chunked,
        )
        return (out,)

    def wanted(self) -> Tensors:
        """What the first lines' queries should be answered with, in the first layer."""
        return self._wanted

    def by_decode(self, kernels: Kernels) -> Trial:
        """As captured decode steps attend by our kernels; see ``attention/decode.py``."""
        append = Append(self.shape, self.pool, kernels, ())
        of = DecodeKernels(self.shape, self.pool, append, kernels, self.lines, self._max_len)
        splits = of.splits(self.lines, self.shape.windows[0])
        out = self.empty(len(self.queries))
        calls = [
            partial(of.attend, layer, self.queries, self.inputs, splits, None, out)
            for layer in range(self.shape.num_layers)
        ]

        def answer() -> Tensors:
            calls[0]()
            return self.compared(out)

        note = f"up to {splits} parts" if splits > 1 else ""
        return Trial(calls, answer, self.wanted, self.read, note)

    def by_slots(self, kernels: Kernels) -> Trial:
        """As steps that verify drafts attend; see ``attention/slots.py``."""
        append = Append(self.shape, self.pool, kernels, ())
        of = SlotAttention(self.shape, self.pool, append, kernels, self._max_len)
        splits, out = of.splits(self.lines, self.width), of.allocate_output(len(self.queries))
        scratch = of.scratch([(self.lines, self.width)]) if splits > 1 else None
        counts = torch.full_like(self.inputs.last_page_len, self.width)

        def attend(layer: int) -> None:
            kernels.decode_attention(
                self.queries,
                of.layers[layer],
                self.inputs.page_indptr,
                self.inputs.pages,
                self.inputs.last_page_len,
                out,
                scale=self.shape.scale,
                softcap=None,
                window=0,
                sinks=None,
                width=self.width,
                num_queries=counts,
                ancestors=self.ancestors,
                splits=splits,
                scratch=scratch,
            )

        def answer() -> Tensors:
            attend(0)
            return self.compared(out)

        calls = [partial(attend, layer) for layer in range(self.shape.num_layers)]
        note = f"up to {splits} parts" if splits > 1 else ""
        return Trial(calls, answer, self.wanted, self.read, note)


def _filled(
    shape: AttentionShape, pages: int, page: int, bench: Bench, element: torch.dtype | None
) -> KvPool:
    """A pool of random keys and values, the same in each block of pages."""
    pool = KvPool(shape, pages, page, bench.sizes.dtype, bench.device.type, None, element)
    block = bench.randn(*pool.data[:_BLOCK].shape).to(pool.data.dtype).view(torch.uint8)
    raw = pool.data.view(torch.uint8)  # floats of 8 bits know few operations
    for begin in range(0, len(raw), _BLOCK):
        part = raw[begin : begin + _BLOCK]
        part.copy_(block[: len(part)])
    return pool
