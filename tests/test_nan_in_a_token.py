"""One token of a model is NaN: over ranks so is each output that sees it, and no other that is a number on one device.

Plain attention may spread it further, to rows that are hidden from it, since 0 · NaN is NaN; ranks skip what is hidden.
Gradients of parameters are sums over all tokens: NaN in exactly the elements in which they are on one device.
"""

import copy

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import sp
from sp.testing import run_ranks

pytestmark = pytest.mark.usefixtures("one_capture")

LENGTH, TOKEN = 11, 4
DOCUMENTS = torch.tensor([[0] * 6 + [1] * 5, [0] * 3 + [1] * 8])
PADDING = torch.arange(LENGTH) >= torch.tensor([[0], [5]])  # in the second row the token is padding


class Attention(nn.Module):
    """Its linear layers mix no tokens."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def seen(self, length: int, facts_BS: Tensor) -> Tensor:
        """[B or 1, 1, S, S]"""
        i = torch.arange(length)
        causal = i[:, None] >= i
        if self.kind == "window":
            return (causal & (i[:, None] - i < 3))[None, None]
        if self.kind == "documents":
            return causal & (facts_BS[:, None, :, None] == facts_BS[:, None, None, :])
        return causal & facts_BS[:, None, None, :] if self.kind == "padding" else causal[None, None]

    def forward(self, x_BSD: Tensor, facts_BS: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.qkv(x_BSD).chunk(3, -1))
        if self.kind == "causal":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = F.scaled_dot_product_attention(q, k, v, self.seen(x_BSD.shape[1], facts_BS))
        return self.out(y.transpose(1, 2).flatten(2))


def outputs_and_gradients(run: nn.Module, model: nn.Module, x: Tensor, facts: Tensor) -> list[Tensor]:
    out = run(x, facts)
    return [out.detach(), *torch.autograd.grad(out.square().mean(), list(model.parameters()))]


@pytest.mark.parametrize("kind", ["causal", "window", "documents", "padding"])
@pytest.mark.parametrize(
    ("strategy", "world"),
    [
        ("striped", 3),
        *(
            pytest.param(name, world, marks=pytest.mark.slow)
            for name in ("striped", "ring", "ulysses")
            for world in (2, 4)
        ),
    ],
)
def test_nan_is_where_it_is_on_one_device(kind: str, strategy: str, world: int) -> None:
    torch.manual_seed(0)
    model, x = Attention(kind), torch.randn(2, LENGTH, 8)
    facts = DOCUMENTS if kind == "documents" else PADDING
    x[:, TOKEN, 3] = torch.nan
    models = [copy.deepcopy(model) for _ in range(world)]

    def rank(group: dist.ProcessGroup) -> list[Tensor]:
        mine = models[group.rank()]
        return outputs_and_gradients(sp.parallelize(mine, strategy, mesh=group, compile=False), mine, x, facts)

    plain, *gradients = outputs_and_gradients(model, model, x, facts)
    seen = model.seen(LENGTH, facts)[:, 0, :, TOKEN].expand(2, -1).clone()
    seen[:, TOKEN] = True  # its own query is NaN as well
    if kind == "padding":  # where it sees no key at all there is nothing that its query could spoil
        seen[1, TOKEN] = False
    for out, *found in run_ranks(world, rank):
        assert out.isnan().any(-1)[seen].all(), "hidden"
        assert plain.isnan()[out.isnan()].all(), "spread"
        torch.testing.assert_close(out[~plain.isnan()], plain[~plain.isnan()])
        for mine, right in zip(found, gradients, strict=True):
            assert mine.isnan().equal(right.isnan())
