"""RoPE and KV append: torch reference equals ``Rotary``, kernel equals the reference."""

from __future__ import annotations

import pytest
import torch

from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from gatewayd_engine.model.config.rope import RopeSpec
from gatewayd_engine.model.rotary_embedding import Rotary, frequencies
from tests.engine.kernels import checks

DTYPES = (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("n", "num_heads", "kv_heads", "dim", "rotary_dim"),
    [(0, 2, 1, 16, 16), (1, 1, 1, 2, 2), (5, 4, 2, 24, 24), (7, 7, 1, 16, 12), (3, 4, 4, 128, 128)],
)
def test_the_kernel_rotates_and_appends_as_its_twin(
    kernels: Kernels,
    device: torch.device,
    dtype: torch.dtype,
    n: int,
    num_heads: int,
    kv_heads: int,
    dim: int,
    rotary_dim: int,
) -> None:
    for page_size in (1, 16):
        checks.rope_append(
            kernels,
            device,
            dtype,
            n,
            num_heads,
            kv_heads,
            dim,
            rotary_dim,
            page_size,
            keeps_keys=page_size == 1,
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("n", "num_heads", "first", "rotary_dim"), [(5, 4, 22, 6), (2, 7, 512, 64)]
)
def test_the_kernel_rotates_the_ends_of_latents_records(
    kernels: Kernels,
    device: torch.device,
    dtype: torch.dtype,
    n: int,
    num_heads: int,
    first: int,
    rotary_dim: int,
) -> None:
    sizes = (n, num_heads, 1, first + rotary_dim, rotary_dim)
    for element in (None, torch.float8_e4m3fn):
        checks.rope_append(kernels, device, dtype, *sizes, first=first, element=element)


def test_the_twin_rotates_the_end_of_a_record_as_if_it_were_a_head() -> None:
    heads, table = torch.randn(3, 5, 14), torch.randn(9, 6)
    positions, write = torch.tensor([4, 0, 8]), torch.tensor([7, 2, 3])
    ends, pool = heads[..., 8:].clone(), torch.zeros(3, 2, 1, 4, 1, 14)
    alone = torch.zeros(3, 2, 1, 4, 1, 6)
    TorchKernels().rope_append(ends, table, positions, write, alone, 1, 4)
    wanted = torch.cat((heads[:, :4, :8], ends[:, :4]), -1)
    record = heads[:, 4, :8].clone()
    TorchKernels().rope_append(heads, table, positions, write, pool, 1, 4, first=8)
    checks.close(heads[:, :4], wanted)
    places = pool[:, 1, 0].flatten(0, 1)[write, 0]
    checks.close(places[:, :8], record)
    checks.close(places[:, 8:], alone[:, 1, 0].flatten(0, 1)[write, 0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rotary_dim", [12, 16])
def test_the_twin_rotates_as_the_model_on_a_cpu_and_appends_as_the_pool(
    dtype: torch.dtype, rotary_dim: int
) -> None:
    spec = RopeSpec(kind="default", theta=100.0, rotary_dim=rotary_dim, max_len=50)
    angles = torch.outer(torch.arange(50.0), frequencies(spec))
    table = torch.stack((angles.cos(), angles.sin()), -1).flatten(1)
    heads = checks.random(6, 8, 16, dtype=dtype, device=torch.device("cpu"))
    positions = torch.tensor([3, 4, 5, 0, 49, 17])
    page, offset = torch.tensor([1, 1, 2, 0, 4, 3]), torch.tensor([2, 3, 0, 3, 1, 1])
    expected = heads.clone()
    rotary = Rotary(spec, 50, "cpu")
    rotary.rotate(rotary.view(expected[:, :6]), rotary.at(positions))
    pool = torch.zeros(5, 2, 2, 4, 2, 16, dtype=dtype)
    full = pool.clone()
    full[:, 1].index_put_(
        (page, torch.tensor([[0], [1]]), offset),
        torch.stack((expected[:, 4:6], expected[:, 6:])),
    )
    before = heads[:, 4:].clone()
    TorchKernels().rope_append(heads, table, positions, page * 4 + offset, pool, 1, 4)
    assert heads[:, 4:].equal(before)
    checks.close(heads[:, :4], expected[:, :4])
    checks.close(pool, full)


def test_infinite_values_stay_alone(kernels: Kernels, device: torch.device) -> None:
    heads = torch.ones(1, 3, 4, device=device)
    heads[0, 2, 1] = torch.inf
    heads[0, 1, 3] = torch.inf
    pool = torch.zeros(1, 1, 2, 1, 1, 4, device=device)
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    table = torch.tensor([[0.6, 0.8]], device=device)
    kernels.rope_append(heads, table, zero, zero, pool, 0, 1)
    assert pool[0, 0, 1, 0, 0].tolist() == [1.0, torch.inf, 1.0, 1.0]
    assert pool[0, 0, 0, 0, 0, 2:].tolist() == [1.0, torch.inf]


@pytest.mark.parametrize("element", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("dtype", DTYPES)
def test_floats_of_8_bits_are_appended(
    kernels: Kernels, device: torch.device, dtype: torch.dtype, element: torch.dtype
) -> None:
    for sizes in ((1, 1, 1, 2, 2), (5, 4, 2, 24, 24), (7, 7, 1, 16, 12)):
        checks.rope_append(kernels, device, dtype, *sizes, element=element)


@pytest.mark.parametrize("element", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_what_is_no_number_stays_none_in_8_bits(
    kernels: Kernels, device: torch.device, element: torch.dtype
) -> None:
    for which in (kernels, TorchKernels()):
        heads = torch.tensor([[[1.0, 2.0], [1e9, -1e9], [torch.nan, 3.0]]], device=device)
        table = torch.tensor([[1.0, 0.0]], device=device)
        pool = torch.zeros(1, 1, 2, 1, 1, 2, device=device).to(element)
        zero = torch.zeros(1, dtype=torch.int64, device=device)
        which.rope_append(heads, table, zero, zero, pool, 0, 1)
        most = torch.finfo(element).max
        assert pool[0, 0, 0, 0, 0].float().tolist() == [most, -most]
        value = pool[0, 0, 1, 0, 0].float()
        assert value[0].isnan()
        assert value[1] == 3.0
