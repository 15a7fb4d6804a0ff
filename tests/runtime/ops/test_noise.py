"""sp::noise: a function of seed, site and place; ranks of every layout see the parts of one whole."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from sp.layout import LAYOUTS
from sp.runtime.ops import noise, unshard
from sp.testing import run_ranks

REPLICATED = (-1, 1, 0, 0, 0, "striped", "")


def whole(x: Tensor, seed: int = 3, site: int = 0, p: float = 0.25) -> Tensor:
    return noise(x, torch.tensor(seed), site, p, *REPLICATED)


def test_values_and_share() -> None:
    found = whole(torch.empty(400, 500, dtype=torch.float64))
    assert set(found.unique().tolist()) == {0.0, 1 / 0.75}
    assert (found == 0).double().mean().item() == pytest.approx(0.25, abs=0.005)  # 5 standard deviations
    # Neither rows nor columns lean to one side, nor are neighbours alike.
    kept = (found > 0).double()
    assert (kept.mean(0) - 0.75).abs().max() < 0.12
    assert (kept.mean(1) - 0.75).abs().max() < 0.12
    for neighbours in ((kept[1:], kept[:-1]), (kept[:, 1:], kept[:, :-1])):
        assert torch.corrcoef(torch.stack([n.flatten() for n in neighbours]))[0, 1].abs() < 0.012


def test_the_ends_of_the_range() -> None:
    x = torch.empty(50)
    assert torch.equal(whole(x, p=0.0), torch.ones(50))
    assert torch.equal(whole(x, p=1.0), torch.zeros(50))
    with pytest.raises(AssertionError, match="no probability"):
        whole(x, p=1.5)


def test_seed_and_site_make_other_noise() -> None:
    x = torch.empty(1000)
    first = whole(x)
    assert torch.equal(first, whole(x))
    for other in (whole(x, seed=4), whole(x, site=1), whole(x, seed=2, site=1)):
        assert 0.3 < (first != other).double().mean() < 0.45  # 2 · 0.25 · 0.75


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_ranks_draw_the_parts_of_one_whole(world: int, layout: str) -> None:
    """Also where the value covers a part of the sequence, or merges dims with it."""
    seed = torch.tensor(7)

    def check(group: dist.ProcessGroup) -> None:
        name = group.group_name if world > 1 else ""
        for start, length, total in ((0, 9, 9), (1, 8, 9), (0, 1, 9)):
            for outer, inner in ((1, 1), (2, 3)):
                everything = torch.empty(4, outer * length * inner, 5, dtype=torch.float64)
                span = (1, outer, start, length, total, layout, name, inner)
                local = torch.ops.sp.shard(everything, *span)
                part = noise(local, seed, 1, 0.5, *span)
                assert torch.equal(unshard(part, *span), noise(everything, seed, 1, 0.5, *REPLICATED))

    run_ranks(world, check)


def test_no_gradient_and_opcheck() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    arguments = (x, torch.tensor(1), 0, 0.5, *REPLICATED)
    assert not noise(*arguments).requires_grad
    torch.library.opcheck(noise, arguments, test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"))
