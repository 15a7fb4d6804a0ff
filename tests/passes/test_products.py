"""Products of two tensors, read as letters."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx

from sp.passes.builder import Builder
from sp.passes.products import read_product, turned
from tests.passes.programs import Attend, normalized

Way = Callable[[Tensor], Tensor]


def last(way: Way) -> tuple[fx.Node, Builder]:
    program = normalized(Attend(way), torch.zeros(2, 4, 9, 8))
    (node,) = program.graph.output_node().args[0]  # pyright: ignore[reportGeneralTypeIssues]
    assert isinstance(node, fx.Node)
    return node, Builder(program.graph.output_node(), program)


READ: dict[str, tuple[str, Way]] = {
    "matmul": (".2 .1 m k, .2 .1 k n -> .2 .1 m n", lambda x: x @ x.mT),
    "of fewer dims": (".2 .1 m k, k n -> .2 .1 m n", lambda x: torch.matmul(x, torch.ones(8, 3))),
    "bmm": (".1 m k, .1 k n -> .1 m n", lambda x: torch.bmm(x[0], x[0].mT)),
    "mm": ("m k, k n -> m n", lambda x: torch.mm(x[0, 0], x[0, 0].t())),
    "einsum": ("b h q d, b h k d -> b h q k", lambda x: torch.einsum("bhqd,bhkd->bhqk", x, x)),
    "einsum of spaces": ("b h q d, b h k d -> b q h k", lambda x: torch.einsum("b h q d, b h k d -> b q h k", x, x)),
    "einsum of dots": (".2 .1 q d, .2 .1 k d -> .2 .1 q k", lambda x: torch.einsum("...qd,...kd->...qk", x, x)),
}


@pytest.mark.parametrize("name", READ)
def test_letters(name: str) -> None:
    text, way = READ[name]
    node, _ = last(way)
    product = read_product(node)
    assert product is not None
    left, right, result = (" ".join(each) for each in (product.left_letters, product.right_letters, product.result))
    assert f"{left}, {right} -> {result}" == text


UNREAD: dict[str, Way] = {
    "vector": lambda x: x @ torch.ones(8),
    "sum": lambda x: torch.einsum("bhqd->bhq", x),
    "three": lambda x: torch.einsum("bhqd,bhkd,d->bhqk", x, x, torch.ones(8)),
    "two letters": lambda x: torch.einsum("bhqd,bhkd->bqk", x, x),
    "diagonal": lambda x: torch.einsum("bhqq,bhqd->bhd", x @ x.mT, x),
    "no product": lambda x: x + x,
}


@pytest.mark.parametrize("name", UNREAD)
def test_no_product_of_two_over_one_letter(name: str) -> None:
    node, _ = last(UNREAD[name])
    assert read_product(node) is None


def test_of_a_transposed_key_the_key_is_found() -> None:
    node, build = last(lambda x: x.transpose(1, 2) @ x.permute(0, 2, 3, 1))
    product = read_product(node)
    assert product is not None
    key = turned(build, product.right, product.right_letters, (".2", ".1", "n", "k"))
    assert str(key.target) == "aten.transpose.int"  # of x itself: two permutations are one
    assert key.args[0] is product.right.args[0]


def test_a_missing_dim_gets_size_1() -> None:
    node, build = last(lambda x: torch.einsum("bhqd,kd->bhqk", x, torch.ones(3, 8)))
    product = read_product(node)
    assert product is not None
    key = turned(build, product.right, product.right_letters, ("b", "h", "k", "d"))
    assert tuple(key.meta["val"].shape) == (1, 1, 3, 8)
    assert product.only("right") == ("k",)
    assert product.summed == "d"
