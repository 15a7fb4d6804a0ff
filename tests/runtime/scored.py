"""Every kind of score that people write, beside the same written out on one device over the whole sequence.

B batch · H query heads · G key/value heads · S tokens · D, E head sizes of k and v
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from sp.layout import find_layout
from sp.mask import CAUSAL, FULL, Band
from sp.runtime.ops.attention import attention
from tests.runtime.attention_reference import SCALE, on_threads, visible

LEAST = torch.finfo(torch.float32).min
# (scaled scores [B, H, S, S], positions i [S, 1] and j [S], leaves) → new scores
Formula = Callable[[Tensor, Tensor, Tensor, list[Tensor]], Tensor]


@dataclass(frozen=True)
class Case:
    """A score as text, its leaves for a length, and what it does to the scores.  sink: which leaf, if any, is one."""

    text: str
    leaves: Callable[[int], list[Tensor]]
    formula: Formula
    mask: Band = CAUSAL
    sink: int | None = None


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def documents(length: int) -> list[Tensor]:
    """Two sequences, packed differently."""
    starts = random(2, length) > 1
    ids_BS = starts.cumsum(-1)
    return [ids_BS.view(2, 1, length, 1), ids_BS.view(2, 1, 1, length)]


def left_padding(length: int) -> list[Tensor]:
    """The first sequence begins with padding that nobody may see, so that its queries there see nothing."""
    real_BS = torch.arange(length) >= torch.tensor([[length // 3], [0]])
    return [real_BS.view(2, 1, 1, length)]


def added_padding(length: int) -> list[Tensor]:
    (real,) = left_padding(length)
    return [torch.where(real, 0.0, LEAST).double()]


def hide(s: Tensor, seen: Tensor) -> Tensor:
    return s.masked_fill(~seen, -torch.inf)


def buckets(i: Tensor, j: Tensor) -> Tensor:
    return (i - j).clamp(0, 6)


CASES = {
    "documents": Case(
        "l0:q l1:k; a = eq.Tensor(l0, l1) -> visible=a", documents, lambda s, i, j, x: hide(s, x[0] == x[1])
    ),
    "padding, rows that see nothing": Case("l0:k -> visible=l0", left_padding, lambda s, i, j, x: hide(s, x[0])),
    "padding, and nothing else": Case("l0:k -> visible=l0", left_padding, lambda s, i, j, x: hide(s, x[0]), FULL),
    "padding by the least number": Case(
        "l0:k -> bias=l0",
        added_padding,
        lambda s, i, j, x: s + x[0],
        FULL,
    ),
    "causal and padding by the least number": Case(
        f"l0:k; a = gt.Tensor(j, i); b = mul.Tensor(a, {LEAST!r}); c = minimum.default(l0, b) -> bias=c",
        added_padding,
        lambda s, i, j, x: s + torch.minimum(x[0], (j > i) * LEAST),
        FULL,
    ),
    "bias": Case("l0:qk -> bias=l0", lambda n: [random(1, 4, n, n)], lambda s, i, j, x: s + x[0]),
    "bias that trains": Case("l0:qk+grad -> bias=l0", lambda n: [random(2, 1, n, n)], lambda s, i, j, x: s + x[0]),
    "slopes": Case(
        "l0:+grad; d = sub.Tensor(j, i); b = mul.Tensor(d, l0) -> bias=b",
        lambda n: [random(1, 4, 1, 1)],
        lambda s, i, j, x: s + (j - i) * x[0],
    ),
    "slopes that do not train": Case(
        "l0:; d = sub.Tensor(j, i); b = mul.Tensor(d, l0) -> bias=b",
        lambda n: [random(1, 4, 1, 1)],
        lambda s, i, j, x: s + (j - i) * x[0],
        Band(7, 2),
    ),
    "table": Case(
        "l0:table+grad; d = sub.Tensor(i, j); e = clamp.default(d, 0, 6); b = lookup(l0, e) -> bias=b",
        lambda n: [random(7, 4)],
        lambda s, i, j, x: s + x[0][buckets(i, j)].permute(2, 0, 1),
        FULL,
    ),
    "soft cap": Case(
        "t = div.Tensor(s, 2.0); u = tanh.default(t); w = mul.Tensor(u, 2.0) -> score=w",
        lambda n: [],
        lambda s, i, j, x: (s / 2).tanh() * 2,
    ),
    "temperatures of queries": Case(
        "l0:q+grad; t = mul.Tensor(s, l0) -> score=t",
        lambda n: [random(2, 4, n, 1)],
        lambda s, i, j, x: s * x[0],
        Band(4, None),
    ),
    "sink": Case("l0:+grad -> sink=l0", lambda n: [random(1, 4, 1, 1)], lambda s, i, j, x: s, sink=0),
    "sinks of queries, documents, soft cap": Case(
        "l0:q l1:k l2:q+grad; a = eq.Tensor(l0, l1); u = tanh.default(s) -> visible=a, score=u, sink=l2",
        lambda n: [*documents(n), random(2, 4, n, 1)],
        lambda s, i, j, x: hide(s.tanh(), x[0] == x[1]),
        sink=2,
    ),
    "sink where nothing is seen": Case(
        "l0:k l1:+grad -> visible=l0, sink=l1",
        lambda n: [*left_padding(n), random(1, 4, 1, 1)],
        lambda s, i, j, x: hide(s, x[0]),
        sink=1,
    ),
}


def trains(text: str) -> list[bool]:
    words = text.partition(";")[0].partition(" -> ")[0].split(" ") if text.startswith("l0:") else []
    return [word.endswith("+grad") for word in words]


def leaves_of(case: Case, length: int, dtype: torch.dtype) -> list[Tensor]:
    """Those that train in the dtype of the model; the others are often wider."""
    pairs = zip(case.leaves(length), trains(case.text), strict=True)
    return [x.to(dtype) if grads else x for x, grads in pairs]


def written_out(case: Case, inputs: list[Tensor]) -> list[Tensor]:
    """out, dq, dk, dv and the gradients of the leaves that train, in float64 by autograd."""
    q, k, v = (x.detach().double().requires_grad_() for x in inputs[:3])
    length = q.shape[2]
    leaves = [x.double() if x.is_floating_point() else x for x in leaves_of(case, length, inputs[0].dtype)]
    for x, grads in zip(leaves, trains(case.text), strict=True):
        x.requires_grad_(grads)
    share = q.shape[1] // k.shape[1]
    s_BHSS = q @ k.repeat_interleave(share, 1).mT * SCALE
    s_BHSS = case.formula(s_BHSS, torch.arange(length).unsqueeze(1), torch.arange(length), leaves)
    s_BHSS = hide(s_BHSS, visible(case.mask, length))
    blind = (s_BHSS == -torch.inf).all(-1, keepdim=True)
    if case.sink is not None:
        s_BHSS = torch.cat([s_BHSS, leaves[case.sink].expand(*s_BHSS.shape[:3], 1)], -1)
        blind = torch.zeros_like(blind)
    weights = s_BHSS.masked_fill(blind, 0).softmax(-1).masked_fill(blind, 0)[..., :length]
    out = weights @ v.repeat_interleave(share, 1)
    trained = [x for x in leaves if x.requires_grad]
    return [out.detach(), *torch.autograd.grad(out, (q, k, v, *trained), inputs[3].double())]


def spread_and_gather(
    case: Case, inputs: list[Tensor], layout: str, kernel: str, world: int | tuple[int, int], transport: str = "ring"
) -> list[Tensor]:
    """The same, computed by `world` threads that hold some tokens each; the leaves' gradients are summed over them."""
    length, dtype = inputs[0].shape[2], inputs[0].dtype

    def rank(group: dist.ProcessGroup, name: str) -> list[Tensor]:
        here = torch.tensor(find_layout(layout).positions(length, group.rank(), group.size()))
        q, k, v, grad = (x.transpose(1, 2)[:, here].transpose(1, 2) for x in inputs)
        leaves = leaves_of(case, length, dtype)
        trained = [x for x, grads in zip(leaves, trains(case.text), strict=True) if grads]
        for x in (q, k, v, *trained):
            x.requires_grad_()
        how = (leaves, str(case.mask), case.text, SCALE, length, length, layout, transport, kernel, name)
        out, _ = attention(q, k, v, *how)
        return [out.detach(), *torch.autograd.grad(out, (q, k, v, *trained), grad)]

    parts = on_threads(world, rank)
    held = [p for r in range(len(parts)) for p in find_layout(layout).positions(length, r, len(parts))]
    order = torch.tensor(held).argsort()
    values = list(zip(*parts, strict=True))
    return [*(torch.cat(x, 2)[:, :, order] for x in values[:4]), *(torch.stack(x).sum(0) for x in values[4:])]
