"""Compiled code: the same communication in the same order on every rank, and never another rank's code."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch._inductor.utils import fresh_cache

from sp.runtime.ops import attention, reduce, replicate, shard
from sp.runtime.ops.order import COMMUNICATING
from sp.runtime.world import seat_name
from sp.testing import ProcessWorld
from tests.runtime.fake_group import fake_group


class Blocks(nn.Module):
    """Left alone, torch 2.13 orders the sums of its gradients differently for one token and for two."""

    def __init__(self, group: str, width: int = 16) -> None:
        super().__init__()
        self.group = group
        self.linears = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        hidden = shard(x, 1, 1, 0, length, length, "contiguous", self.group)
        for linear, norm in zip(self.linears, self.norms, strict=True):
            scale, shift, weight, bias = (
                replicate(value, self.group) for value in (norm.weight, norm.bias, linear.weight, linear.bias)
            )
            normed = F.layer_norm(hidden, hidden.shape[-1:], scale, shift)  # type: ignore[arg-type]
            hidden = hidden + F.gelu(F.linear(normed, weight, bias))
        return reduce(hidden.square().sum(), "sum", self.group)


def gradients(module: nn.Module, run: Any, x: Tensor) -> list[Tensor]:
    module.zero_grad()
    run(x).backward()
    return [value.grad for value in module.parameters() if value.grad is not None]


def worst_error(length: int) -> float:
    """Of the gradients that Inductor gives in this process, relative to those of one device."""
    torch.manual_seed(0)
    x = torch.randn(1, length, 16, dtype=torch.float64)
    module = Blocks(seat_name(dist.group.WORLD.group_name)).double()  # type: ignore[union-attr]
    found = gradients(module, torch.compile(module, fullgraph=True, dynamic=True), x)
    module.group = ""
    expected = gradients(module, module, x)
    assert len(found) == len(expected) == 8
    return max(float((a - b).norm() / b.norm()) for a, b in zip(found, expected, strict=True))


def test_uneven_ranks_add_up_the_same_gradients(world2: ProcessWorld) -> None:
    assert max(world2.run(worst_error, 3)) < 1e-13


@pytest.mark.slow
def test_a_cache_on_disk_gives_each_rank_its_own_code() -> None:
    def compiled(rank: int, world: int) -> tuple[Tensor, Tensor]:
        x = torch.arange(7.0)
        with fake_group(rank, world, "shared") as group:
            place = (0, 1, 0, 7, 7, "contiguous", seat_name(group))
            torch._dynamo.reset()
            return torch.compile(lambda x: shard(x, *place).sin() + 1, fullgraph=True)(x), shard(x, *place).sin() + 1

    with fresh_cache():
        for rank, world in ((0, 2), (1, 2), (0, 3)):
            torch.testing.assert_close(*compiled(rank, world))


def test_every_op_is_known_to_communicate_or_not_to() -> None:
    others = ("shard", "narrow", "widen", "replicate", "promise", "replicate_all", "share", "noise", "peak", "weigh")
    known = {f"sp::{name}" for name in (*COMMUNICATING, *others)}
    assert known == {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("sp::")}


def test_attention_and_sums_wait_for_each_other() -> None:
    """What is independent in the graph is a chain in Inductor's eyes."""
    from torch._inductor.virtualized import V

    chains: list[dict[str, list[str]]] = []

    def program(x: Tensor) -> tuple[Tensor, ...]:
        first = reduce(x, "sum", "")
        second = attention(x, x, x, [], "causal", "", 1.0, x.shape[2], x.shape[2], "striped", "ring", "dense", "")[0]
        return first, second, reduce(x * 2, "sum", "")

    def look(nodes: list[Any]) -> list[Any]:
        chains.append({key: sorted(value) for key, value in V.graph.additional_buffer_deps.items() if value})
        return nodes

    torch._dynamo.reset()
    with torch._inductor.config.patch(_pre_fusion_custom_pass=look), fresh_cache():
        torch.compile(program, fullgraph=True)(torch.randn(1, 2, 4, 8))
    assert [len(chain) for chain in chains] == [2]
