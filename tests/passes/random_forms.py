"""Attention written out by hand, at random: products, scales, caps, biases, masks of data and sinks, in any order."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.passes.scores import BATCH, HEADS, WIDTH, Data, Maker
from tests.passes.test_random_scores import Generator as OfMasks

Form = Callable[["Forms", Data, Tensor, Tensor, Tensor], Tensor]
Beside = Callable[[Tensor], Tensor]
Step = Callable[["Forms", Data, Tensor, Beside], Tensor]
SOFT = (-1e4, -1e5, torch.finfo(torch.float32).min, torch.finfo(torch.float64).min)


class Forms(nn.Module):
    """One attention for each form, of queries, keys and values of its own: x [B, S, H * D] → as many of the same."""

    def __init__(self, forms: Mapping[str, Form]) -> None:
        super().__init__()
        self.forms = forms
        generator = torch.Generator().manual_seed(7)
        self.qkv = nn.Parameter(torch.randn(3, HEADS * WIDTH, HEADS * WIDTH, generator=generator))
        self.slopes = nn.Parameter(torch.tensor([0.5, 0.25]))
        self.table = nn.Parameter(torch.randn(8, HEADS, generator=generator))
        self.sinks = nn.Parameter(torch.randn(HEADS, generator=generator))
        self.heat = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        data = Data(*given, slopes=self.slopes, table=self.table)
        q, k, v = ((x @ weight).unflatten(2, (HEADS, WIDTH)).transpose(1, 2) for weight in self.qkv)
        return tuple(form(self, data, q, k, v) for form in self.forms.values())


@dataclass(frozen=True)
class Product:
    """Scores of queries and keys, weights times values; beside: brings [B or 1, H or 1, ·, ·] to where scores are."""

    scores: Callable[[Tensor, Tensor], Tensor]
    output: Callable[[Tensor, Tensor], Tensor]
    beside: Beside


def _whole(x: Tensor) -> Tensor:
    return x


def _flat(x: Tensor) -> Tensor:
    """[B * H, ·, ·]"""
    return x.expand(BATCH, HEADS, *x.shape[-2:]).reshape(-1, *x.shape[-2:])


def _turned(x: Tensor) -> Tensor:
    return x.transpose(1, 2)


PRODUCTS = (
    Product(lambda q, k: q @ k.mT, lambda w, v: w @ v, _whole),
    Product(lambda q, k: torch.matmul(q, k.transpose(2, 3)), torch.matmul, _whole),
    Product(
        lambda q, k: torch.bmm(_flat(q), _flat(k).transpose(1, 2)),
        lambda w, v: torch.bmm(w, _flat(v)).unflatten(0, (-1, HEADS)),
        _flat,
    ),
    Product(
        lambda q, k: torch.einsum("bqhd,bkhd->bhqk", _turned(q), _turned(k)),
        lambda w, v: _turned(torch.einsum("bhqk,bkhd->bqhd", w, _turned(v))),
        _whole,
    ),
    Product(
        lambda q, k: torch.einsum("bgnqd,bgkd->bgnqk", q.unflatten(1, (1, HEADS)), k[:, :1]),
        lambda w, v: torch.einsum("bgnqk,bgkd->bgnqd", w, v[:, :1]).flatten(1, 2),
        lambda x: x[:, None] if x.dim() == 4 else x,
    ),
    Product(lambda q, k: q @ k[:, :1].mT, lambda w, v: w @ v[:, :1], _whole),
)


class Generator:
    """Forms.  Where -inf hides, each query sees itself: rows of nan have no gradients to compare."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.masks = OfMasks(seed)

    def form(self) -> Form:
        product = self.random.choice(PRODUCTS)
        steps = [self._scale(), *(self._step() for _ in range(self.random.randint(0, 3)))]
        if self.random.random() < 0.2:
            self.random.shuffle(steps)
        weigh = self._weigh()

        def form(m: Forms, d: Data, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            scores = product.scores(q, k)
            for step in steps:
                scores = step(m, d, scores, product.beside)
            return product.output(weigh(m, d, scores, product.beside), v)

        return form

    def _scale(self) -> Step:
        return self.random.choice(
            [
                lambda m, d, s, beside: s * 0.3,
                lambda m, d, s, beside: s / math.sqrt(WIDTH),
                lambda m, d, s, beside: s * m.heat,
                lambda m, d, s, beside: s,
            ]
        )

    def _step(self) -> Step:
        return self.random.choice([self._hide, self._hide, self._hide, self._bias, self._bias, self._change])()

    def _hide(self) -> Step:
        condition, soft, turn = self._condition(), self.random.choice(SOFT), self.random.randint(0, 6)

        def hide(m: Forms, d: Data, s: Tensor, beside: Beside) -> Tensor:
            seen = condition(d)
            hard = beside(seen | (d.i == d.j))
            seen = beside(seen)
            match turn:
                case 0:
                    return s.masked_fill(~hard, -math.inf)
                case 1:
                    return torch.where(hard, s, -math.inf)
                case 2:
                    return s + torch.zeros_like(hard, dtype=s.dtype).masked_fill(~hard, -math.inf)
                case 3:
                    return s.masked_fill(seen.logical_not(), soft)
                case 4:
                    return torch.where(seen, s, soft)
                case 5:
                    return s + (1 - seen.to(s.dtype)) * max(soft, -1e300)
                case _:
                    return s + torch.where(seen, 0.0, max(soft, -1e38))

        return hide

    def _condition(self) -> Maker:
        return self.masks.condition(self.random.randint(0, 2))

    def _bias(self) -> Step:
        bias = self.masks.bias()
        return lambda m, d, s, beside: s + beside(torch.where(d.i == d.j, 0.0, bias(d)).to(s.dtype))

    def _change(self) -> Step:
        number = self.masks.numbers()
        return self.random.choice(
            [
                lambda m, d, s, beside: torch.tanh(s / 5.0) * 5.0,
                lambda m, d, s, beside: torch.tanh(s / m.heat) * m.heat,
                lambda m, d, s, beside: s * beside(1 + number(d)[:, None, None, :].to(s.dtype).clamp(0, 3)),
                lambda m, d, s, beside: s * 0.5 + s.sigmoid(),
                lambda m, d, s, beside: s.clamp(-3, 3),
            ]
        )

    def _weigh(self) -> Step:
        return self.random.choice(
            [
                lambda m, d, s, beside: s.softmax(-1),
                lambda m, d, s, beside: F.softmax(s, dim=-1, dtype=torch.float64),
                lambda m, d, s, beside: (s - s.amax(-1, keepdim=True)).softmax(-1),
                lambda m, d, s, beside: torch.ops.aten._safe_softmax(s, -1),
                _sunk,
            ]
        )


def _sunk(m: Forms, d: Data, s: Tensor, beside: Beside) -> Tensor:
    sinks = beside(m.sinks.view(1, HEADS, 1, 1)).expand(*s.shape[:-1], 1)
    return torch.cat([s, sinks], -1).softmax(-1)[..., :-1]


def named(forms: Sequence[Form], seed: int) -> dict[str, Form]:
    return {f"seed {seed}, form {number}": form for number, form in enumerate(forms)}
