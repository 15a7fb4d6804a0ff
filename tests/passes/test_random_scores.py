"""Random masks of data, positions and inputs: what is accepted is what the model computes, at every length."""

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.passes.scores import Data, Maker, check
from tests.passes.test_mask_proof import Generator as OfPositions

INF = float("inf")


class Generator:
    """From what people write: padding, documents, positions, bands of all kinds, masks passed in, biases, and any of
    these combined; with a few things that cannot be computed tile by tile."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.positions = OfPositions(seed)

    def condition(self, depth: int) -> Maker:
        """[B or 1, 1, S or 1, S or 1] of truth values."""
        if depth == 0:
            return self.random.choice([self.banded, self.token, self.token, self.pair, self.pair, self.stored])()
        a, b = self.condition(depth - 1), self.condition(self.random.randint(0, depth - 1))
        return self.random.choice(
            [
                lambda d: a(d) & b(d),
                lambda d: a(d) & b(d),
                lambda d: torch.logical_and(a(d), ~b(d)),
                lambda d: a(d) | b(d),
                lambda d: ~(a(d) | b(d)),
                lambda d: ~a(d),
                lambda d: a(d) ^ b(d),
                lambda d: a(d) * b(d),
                lambda d: a(d) == b(d),
                lambda d: torch.where(a(d), b(d), ~a(d)),
                lambda d: a(d).masked_fill(b(d), True),
                lambda d: a(d).int() + b(d).int() >= 1,
                lambda d: (a(d).float() - b(d).float()).abs() < 0.5,
                lambda d: a(d).expand(2, 1, d.S, d.S).tril(1),
                lambda d: a(d).transpose(2, 3),
                lambda d: a(d).expand(2, 1, d.S, d.S).reshape(2, d.S, d.S)[:, None],
            ]
        )

    def banded(self) -> Maker:
        maker = self.positions.condition(self.random.randint(0, 1))
        return lambda d: maker(d.S)[None, None]

    def stored(self) -> Maker:
        return self.random.choice([lambda d: d.pairs, lambda d: d.bias > 0.1, lambda d: d.bias == -INF])

    def numbers(self) -> Callable[[Data], Tensor]:
        """A number for each token: [B, S]."""
        size = self.random.randint(2, 5)
        return self.random.choice(
            [
                lambda d: d.documents,
                lambda d: d.places,
                lambda d: (d.places == 0).cumsum(1),
                lambda d: (d.documents[:, 1:] != d.documents[:, :-1]).int().cumsum(1).roll(1, 0).repeat(1, 2)[:, : d.S],
                lambda d: torch.arange(d.S).expand(2, d.S) // size,
                lambda d: torch.arange(d.S).expand(2, d.S) % size,
                lambda d: (torch.arange(d.S) - d.lengths).clamp(min=-2),
                lambda d: d.weights,
                lambda d: d.weights.half(),
                lambda d: d.seen.long(),
                lambda d: d.documents.to(torch.uint8) - 1,
            ]
        )

    def token(self) -> Maker:
        """A truth for each key or each query."""
        number, size = self.numbers(), self.random.randint(0, 2)
        truth = self.random.choice([lambda d: d.seen, lambda d: number(d) > size, lambda d: number(d) != size])
        if self.random.random() < 0.7:
            return lambda d: truth(d)[:, None, None, :]
        return lambda d: truth(d)[:, None, :, None]

    def pair(self) -> Maker:
        """Numbers of queries and keys compared."""
        a = self.numbers()
        b = a if self.random.random() < 0.6 else self.numbers()
        relation = self.random.choice([torch.eq, torch.eq, torch.ne, torch.le, torch.ge, torch.lt])
        near = self.random.randint(1, 3)
        return self.random.choice(
            [
                lambda d: relation(a(d)[:, None, :, None], b(d)[:, None, None, :]),
                lambda d: relation(a(d)[:, None, :, None], b(d)[:, None, None, :]),
                lambda d: (a(d)[:, None, :, None].float() - b(d)[:, None, None, :]).abs() < near,
            ]
        )

    def bias(self) -> Maker:
        """Numbers to add, for each head perhaps."""
        number, low = self.numbers(), self.random.choice([-INF, -1e9, torch.finfo(torch.float32).min])
        hidden = self.condition(1)
        return self.random.choice(
            [
                lambda d: d.slopes[:, None, None] * (d.j - d.i),
                lambda d: d.slopes[:, None, None] * -(d.j - d.i).abs().float().sqrt(),
                lambda d: d.table[(d.i - d.j).clamp(0, 7)].permute(2, 0, 1)[None],
                lambda d: d.bias,
                lambda d: torch.where(hidden(d), 0.0, low),
                lambda d: torch.zeros(2, 1, d.S, d.S).masked_fill(hidden(d), low),
                lambda d: (1 - hidden(d).float()) * max(low, -1e38),
                lambda d: number(d)[:, None, None, :].float() * 0.25,
                lambda d: number(d)[:, None, :, None] * d.weights[:, None, None, :] * 0.5,
            ]
        )

    def mask(self) -> Maker:
        """What an attention takes: truths, or a sum of biases."""
        if self.random.random() < 0.6:
            return self.condition(self.random.randint(0, 2))
        a, b = self.bias(), self.bias()
        return self.random.choice([a, lambda d: a(d) + b(d)])


def check_random_masks(seed: int, count: int) -> int:
    """How many of them are accepted; each of those is what the graph computes."""
    generator = Generator(seed)
    found = check({f"seed {seed}, mask {number}": generator.mask() for number in range(count)}, lengths=(6, 7, 40))
    return sum(not reading.startswith("refused") for reading in found.values())


def test_random_masks() -> None:
    assert check_random_masks(1, 40) > 25


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 112))
def test_many_random_masks(seed: int) -> None:
    assert check_random_masks(seed, 60) > 40
