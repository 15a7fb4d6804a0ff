"""Regions become plain lines: detached values, written casts, and the same results to the bit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sp.errors import UnsupportedModelError
from sp.passes import preparation
from sp.passes.autocast import Autocast
from sp.passes.fxtools import inner_nodes
from sp.passes.modes import forget_modes, modes_of
from sp.passes.no_grad import Detach
from sp.passes.regions import Inline
from tests.passes.programs import Small, listing, ops, program_of

IDS = torch.randint(0, 11, (2, 9))
PASSES = (Inline(), Autocast(), Detach())
BF16 = torch.bfloat16


def quiet(m: Small, ids: Tensor) -> Any:
    x = m.e(ids)
    with torch.no_grad():
        h = x * 2
        first, second = (h + 1).chunk(2, -1)
        table = torch.ones(4).cos() * 3
    return x[..., :2] * second + first, x * table


def test_only_what_carries_a_gradient_is_detached() -> None:
    assert (
        listing(program_of(quiet, IDS, passes=preparation()))
        == """
embedding = aten.embedding(model_e_weight, inputs_0)
slice_1 = aten.slice(embedding, 2, 0, 2)
mul = aten.mul(embedding, 2)
add = aten.add(mul, 1)
chunk = aten.chunk(add, 2, -1)
getitem = getitem(chunk, 1)
detach = aten.detach(getitem)
mul_1 = aten.mul(slice_1, detach)
getitem_1 = getitem(chunk, 0)
detach_1 = aten.detach(getitem_1)
add_1 = aten.add(mul_1, detach_1)
ones = aten.ones([4], device=cpu, pin_memory=False)
cos = aten.cos(ones)
mul_2 = aten.mul(cos, 3)
mul_3 = aten.mul(embedding, mul_2)
""".strip()
    )


def kinds_of_casts(m: Small, ids: Tensor) -> Any:
    """Down, up, to the widest, by argument, none; nested, and under no_grad."""
    x = m.e(ids)
    with torch.autocast("cpu", BF16):
        y = m.l(x)
        with torch.no_grad():
            w = m.l(x)
        with torch.autocast("cpu", enabled=False):
            z = m.l(y.float())
        joined = torch.cat([x, y], -1), torch.stack([y, x])
        kept = F.layer_norm(y, (4,)), F.softmax(y, -1), F.rms_norm(y, (4,)), y + x, y.cumsum(-1)
        product = x @ y.transpose(1, 2), F.scaled_dot_product_attention(x[:, None], y[:, None], y[:, None])
        norm = torch.linalg.norm(y - x), F.mse_loss(y, x)
        casts = x.float() + y.float(), x.to(BF16).float(), x.type_as(y), y.type_as(x), x.to(x.dtype) * 1.1
    return y + 0, w, z, *joined, *kept, *product, *norm, *casts, F.cross_entropy(y.flatten(0, 1), ids.flatten() % 4)


def half_wanted(m: Small, ids: Tensor) -> Tensor:
    x = m.l(m.e(ids))
    with torch.autocast("cpu", enabled=False):
        return m.l(x.float()) * x.shape[1]


def losing_track(m: Small, ids: Tensor) -> Tensor:
    """torch.export loses the inner one of two modes."""
    x = m.e(ids)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        with torch.enable_grad():
            y = m.l(x)
        z = y * 2
    return y + z


@pytest.mark.parametrize("forward", [quiet, kinds_of_casts, half_wanted, losing_track])
@pytest.mark.parametrize("outer", [False, True])
def test_the_same_to_the_bit(forward: Callable[..., Any], outer: bool) -> None:
    model = Small(forward)
    with torch.autocast("cpu", BF16, enabled=outer):
        program = program_of(model, IDS, passes=PASSES)
        right = model(IDS)
    found = program.graph_module(IDS)
    for a, b in zip(found, right if isinstance(right, tuple) else (right,), strict=True):
        assert (a.dtype, a.requires_grad) == (b.dtype, b.requires_grad)
        assert torch.equal(a, b)


def test_parameters_are_cast_once() -> None:
    with torch.autocast("cpu", BF16):
        program = program_of(lambda m, ids: m.l(m.l(m.e(ids))), IDS, passes=PASSES)
    assert ops(program).count("aten.to") == 3  # weight, bias, the embedding
    assert program.history[-2].text == "3 casts of autocast written out"


def test_a_cast_under_no_grad_lets_gradients_through_elsewhere() -> None:
    def forward(m: Small, ids: Tensor) -> Any:
        with torch.autocast("cpu", BF16):
            with torch.no_grad():
                h = m.l(m.e(ids))
            return m.l(m.e(ids)) + h

    model = Small(forward)
    (out,) = program_of(model, IDS, passes=PASSES).graph_module(IDS)
    assert torch.autograd.grad(out.sum(), model.l.weight)[0].norm() > 0


def test_a_region_without_its_notes_is_refused() -> None:
    program = program_of(quiet, IDS)
    for node in program.graph.nodes:
        for inner in inner_nodes(node):
            forget_modes(inner)
    with pytest.raises(UnsupportedModelError, match=r"torch\.export lost track of a grad mode") as caught:
        Inline().run(program)
    assert "mul: aten.mul" in str(caught.value)
    assert "open autocast outside of no_grad" in str(caught.value)


def test_modes_are_forgotten_afterwards() -> None:
    program = program_of(quiet, IDS, passes=preparation())
    assert not any(modes_of(node) for node in program.graph.nodes)
    with pytest.raises(AssertionError, match="inline left"):
        Inline().check(program_of(quiet, IDS))
    with pytest.raises(AssertionError, match="detach left"):
        Detach().check(program_of(quiet, IDS, passes=[Inline()]))


def test_history() -> None:
    texts = [note.text for note in program_of(quiet, IDS, passes=PASSES).history[1:]]
    assert texts == [
        "1 region of no_grad or autocast inlined",
        "0 casts of autocast written out",
        "2 values made under no_grad detached",
    ]
