"""Determinism: the same call gives the same bits, and every rank has the same bits of what all of them hold.

Without the second, replicas of parameters drift apart.  Gradients are summed by one message for all ranks, losses too:
gloo adds in an order of ranks that is fixed.  Over processes and through an optimizer: tests/benchmarks/test_drift.py.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import sp
from sp.models import Llama, LlamaConfig
from sp.runtime.comm import all_reduce
from sp.runtime.world import World
from sp.testing import run_processes, run_ranks

IDS = torch.randint(0, 64, (2, 67), generator=torch.Generator().manual_seed(0))


def run_twice(strategy: str, world: int, dtype: torch.dtype) -> list[list[Tensor]]:
    """Loss, logits and gradients of each rank, of two runs one after the other."""

    def built() -> Llama:
        torch.manual_seed(0)
        return Llama(LlamaConfig(vocab_size=64, layers=1, heads=4, kv_heads=2, width=32)).to(dtype)

    models = [built() for _ in range(world)]

    def rank(group: dist.ProcessGroup) -> list[Tensor]:
        model = models[group.rank()]
        model.zero_grad()
        out = sp.parallelize(model, strategy, mesh=group, compile=False)(IDS, labels=IDS)
        out.loss.backward()
        gradients = [x.grad.clone() for x in model.parameters() if x.grad is not None]
        return [out.loss.detach(), out.logits.detach(), *gradients]

    return run_ranks(world, rank, timeout_s=300) + run_ranks(world, rank, timeout_s=300)


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "strategy",
    ["striped", "ulysses", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ring", "zigzag", "allgather"))],
)
def test_runs_and_ranks_have_the_same_bits(strategy: str, dtype: torch.dtype) -> None:
    first, *others = run_twice(strategy, 3, dtype)
    for other in others:
        assert all(mine.equal(theirs) for mine, theirs in zip(other, first, strict=True))


@pytest.mark.parametrize("world", [2, 3, 5, 8])
def test_gloo_sums_to_the_same_bits_on_every_rank(world: int) -> None:
    """Of sizes that it cuts into unequal parts, and of numbers whose sum depends on the order."""
    sizes = (1, 2, 7, 1001, 65_537)

    def rank(group: dist.ProcessGroup) -> list[Tensor]:
        generator = torch.Generator().manual_seed(group.rank())
        mine = [torch.randn(size, generator=generator) * 10.0 ** torch.randint(-4, 5, (size,)) for size in sizes]
        return [all_reduce(World(group.rank(), world, group), x, dist.ReduceOp.SUM) for x in mine]

    first, *others = run_ranks(world, rank)
    for other in others:
        assert all(mine.equal(theirs) for mine, theirs in zip(other, first, strict=True))


def compiled_twice(cache: str, strategy: str, way: Any) -> list[list[Tensor]]:
    """Of two lengths one after the other, twice: loss, logits and gradients, by code that is kept in `cache` alone."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    torch.manual_seed(0)
    model = Llama(LlamaConfig(vocab_size=64, layers=1, heads=4, kv_heads=2, width=32))
    parallel, found = sp.parallelize(model, strategy, compile=way), list[list[Tensor]]()
    for _ in range(2):
        seen = list[Tensor]()
        for ids in (IDS, IDS[:, :40]):
            model.zero_grad()
            out = parallel(ids, labels=ids)
            out.loss.backward()
            gradients = [x.grad.clone() for x in model.parameters() if x.grad is not None]
            seen += [out.loss.detach(), out.logits.detach(), *gradients]
        found.append(seen)
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("strategy", "way"), [("striped", True), ("ulysses", "blocks")])
def test_compiled_code_has_the_same_bits_run_for_run_and_start_for_start(
    strategy: str, way: Any, tmp_path: Path
) -> None:
    """Inductor's code, made anew for each of two starts of two processes."""
    starts = [run_processes(2, compiled_twice, str(tmp_path / at), strategy, way, timeout_s=800) for at in "ab"]
    first, *others = [run for start in starts for rank in start for run in rank]
    assert len(others) == 7
    for other in others:
        assert all(mine.equal(theirs) for mine, theirs in zip(other, first, strict=True))
