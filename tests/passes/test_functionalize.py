"""What is changed in place becomes new values: the same outputs and gradients; or it is refused by name."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sp.errors import UnsupportedModelError
from sp.passes import preparation
from sp.passes.functionalize import Functionalize
from sp.passes.fxtools import op_name, source_line
from sp.passes.place import Place
from tests.passes.programs import Small, listing, program_of

IDS = torch.randint(0, 11, (2, 9))
LONGER = torch.randint(0, 11, (3, 12))


def label_shift(m: Small, ids: Tensor) -> Tensor:
    shifted = ids.new_zeros(ids.shape)
    shifted[:, 1:] = ids[:, :-1].clone()
    shifted[:, 0] = 2
    shifted.masked_fill_(shifted == 7, 0)
    return m.e(shifted)


def arithmetic(m: Small, ids: Tensor) -> Tensor:
    h = m.l(m.e(ids))
    h += 1
    h.mul_(m.e(ids)).sub_(3).div_(2)
    h -= h.sum(-1, keepdim=True)
    return F.relu_(h) + h


def through_views(m: Small, ids: Tensor) -> Any:
    x = m.l(m.e(ids))
    turned = x.transpose(1, 2)
    part = turned[:, :2]
    flat = x.reshape(x.shape[0], -1)
    part.mul_(3)
    part[:, 0].add_(1.5)
    pairs = x.unflatten(-1, (2, 2))
    pairs[..., 1].zero_()
    pairs[..., 0, :] += 1
    x[:, :, -1] = flat[:, : ids.shape[1]].clone()
    x.narrow(2, 1, 2).permute(2, 0, 1).neg_()
    x.squeeze().unsqueeze(0).add_(1)
    return x, turned, part, flat, pairs


def parts_of_a_split(m: Small, ids: Tensor) -> Any:
    """Plain torch allows it without gradients only."""
    x = torch.zeros_like(m.e(ids)).detach()
    first, second = x.chunk(2, -1)
    second.copy_(torch.ones_like(first))
    x += 1
    last = x.unbind(2)[-1]
    last.fill_(5)
    one, rest = x.split([1, 3], 2)
    one.mul_(4)
    return m.e(ids) + x, first + 0, second + 0, rest + 0


def broadcast_to_each_other(m: Small, ids: Tensor) -> Any:
    """Several results of several memories, which have changed so many times each: 2 and 1, then 2 and 2, 3 and 2."""
    a, b, c = m.l(m.e(ids)), m.l(m.e(ids))[..., :1] * 2, m.e(ids) * 1
    a += 1
    a *= 2
    b += 1
    first, second = torch.broadcast_tensors(a, b)
    b -= 3
    third, fourth = torch.broadcast_tensors(c, b)
    before = first + 3 * second + third
    a += 1
    c += 1
    fourth = fourth + 0.5 * torch.stack(torch.broadcast_tensors(c, a)).sum(0)
    third += 2
    return before, first - second, third * fourth, c, F.mse_loss(c, a)


def the_same_memory_under_other_names(m: Small, ids: Tensor) -> Any:
    """A dropout that does nothing, an idle cast and `contiguous` return their operand."""
    x = m.l(m.e(ids))
    dropped = F.dropout(x, 0.3, training=False)
    dropped += 1
    cast = x.to(x.dtype).contiguous()
    cast *= 2
    return x, dropped, cast


def made_and_filled(m: Small, ids: Tensor) -> Tensor:
    x = m.e(ids)
    new = torch.empty_like(x)
    new.copy_(x[:, :1])
    new[..., ::2] = x[..., ::2]
    full = torch.empty(x.shape, dtype=torch.float64)
    full.fill_(3).zero_()
    full += x
    return new * full


def kinds_of_numbers(m: Small, ids: Tensor) -> Any:
    """The changed value keeps its dtype, whatever is written into it."""
    whole, flag, half = ids.clone(), ids > 3, ids.float()
    whole += 1
    whole[:, 0] = 2.7
    half.add_(m.p[0, 0].double().detach())
    flag[:, 1:] = whole[:, 1:]
    flag.logical_or_(whole > 9)
    flag[:, -1].fill_(True)
    return whole, flag, half


def by_index(m: Small, ids: Tensor) -> Tensor:
    x = m.e(ids) * 1
    x[ids == 3] = 0.5
    x.index_add_(2, torch.tensor([0, 1]), x[:, :, :2].clone())
    x.scatter_(2, ids[..., None] % 4, 0.25)
    x.index_copy_(2, torch.tensor([3]), x[..., :1].clone())
    x.masked_scatter_(x > 2, torch.zeros_like(x))
    return x


def without_gradients(m: Small, ids: Tensor) -> Any:
    x = m.l(m.e(ids))
    with torch.no_grad():
        made = torch.zeros_like(x)
        made[:, :, 0] = x[:, :, 1]
        made += 1
    made[:, :, 1:] = x[:, :, 1:]
    free = x.detach().clone()
    free.mul_(2)
    return made, free + x


def twice_the_mask(m: Small, ids: Tensor) -> Tensor:
    mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
    mask[:, 0] = True
    mask[2:5, 1:3] = False
    return m.e(ids) * mask.sum(-1, keepdim=True)


EXACT: list[Callable[..., Any]] = [
    *(label_shift, arithmetic, through_views, parts_of_a_split, the_same_memory_under_other_names),
    *(broadcast_to_each_other, made_and_filled, kinds_of_numbers, by_index, without_gradients, twice_the_mask),
]


def run(model: Callable[..., Any], parameters: list[Tensor], ids: Tensor) -> tuple[list[Tensor], list[Tensor | None]]:
    made = model(ids)
    outputs = list(made) if isinstance(made, (tuple, list)) else [made]
    torch.manual_seed(0)
    loss = sum((out * torch.rand(out.shape)).sum() for out in outputs if out.requires_grad)
    grads = torch.autograd.grad(loss, parameters, allow_unused=True) if isinstance(loss, Tensor) else []
    return outputs, list(grads)


@pytest.mark.parametrize("forward", EXACT)
def test_same_values_and_gradients(forward: Callable[..., Any]) -> None:
    model = Small(forward).double()
    program = program_of(model, IDS, passes=preparation())
    parameters = list(model.parameters())
    for ids in (IDS, LONGER):
        before = ids.clone()
        found, right = run(program.graph_module, parameters, ids), run(model, parameters, ids)
        assert torch.equal(ids, before)
        for a, b in zip(found[0], right[0], strict=True):
            assert (a.dtype, a.requires_grad) == (b.dtype, b.requires_grad)
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found[1], right[1], rtol=1e-12, atol=1e-12)


def test_label_shift_as_printed() -> None:
    text = listing(program_of(label_shift, IDS, passes=preparation())).splitlines()
    assert [line.split(" = ")[1].split("(")[0] for line in text[3:]] == [
        *("aten.lift_fresh_copy", "aten.sym_size", "aten.new_zeros", "aten.slice", "aten.slice", "aten.clone"),
        *("aten.cat", "aten.where", "aten.eq", "aten.masked_fill", "aten.embedding"),
    ]


def test_new_lines_say_where_they_come_from() -> None:
    program = program_of(label_shift, IDS, passes=[Functionalize()])
    made = [node for node in program.graph.nodes if op_name(node) in ("aten.cat", "aten.where")]
    assert len(made) == 2
    assert all("programs.py" in source_line(node) for node in made)
    assert program.history[-1].text == "3 changes in place made new values"


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        with torch.no_grad():
            self.weight.clamp_(max=1.0)
        return x * self.calls * self.weight


def changes_input(m: Small, x: Tensor) -> Tensor:
    view = x.contiguous()[:, 1:]
    view.mul_(2)
    return m.l(x)


def hidden_from_autograd(m: Small, x: Tensor) -> Tensor:
    h = m.l(x)
    with torch.no_grad():
        h[:, 0] = 0
    return h * h


def through_detach(m: Small, x: Tensor) -> Tensor:
    h = m.l(x)
    h.detach().mul_(2)
    return h


def overlapping(m: Small, x: Tensor) -> Tensor:
    h = m.l(x)
    h.unfold(2, 2, 2).mul_(2)
    return h


def read_through_an_unknown_view(m: Small, x: Tensor) -> Tensor:
    h = m.l(x)
    left, right = h.tensor_split(2, -1)
    h += 1
    return left * right


def into_out(m: Small, x: Tensor) -> Tensor:
    h = torch.zeros_like(x)
    torch.add(x, 1, out=h)
    return m.l(h)


def turned_in_place(m: Small, x: Tensor) -> Tensor:
    h = torch.zeros_like(x)
    h.transpose_(0, 1)
    return m.l(h)


REFUSED: list[tuple[Any, list[str]]] = [
    (Counting(), ["changes the buffer 'calls' in place", "changes the parameter 'weight' in place"]),
    (changes_input, ["it changes the caller's tensor 'inputs_0' in place", "clone it first"]),
    (hidden_from_autograd, ["behind autograd's back", "change a clone of it"]),
    (through_detach, ["behind autograd's back"]),
    (overlapping, ["through a view made by aten.unfold"]),
    (read_through_an_unknown_view, ["it reads getitem", "in place, through a view made by aten.tensor_split"]),
    (into_out, ["it writes into an argument"]),
    (turned_in_place, ["in place"]),
]


@pytest.mark.parametrize(("model", "messages"), REFUSED)
def test_refused(model: Any, messages: list[str]) -> None:
    program = program_of(model, torch.rand(2, 9, 4), passes=preparation())
    text = "\n".join(map(str, program.refused.values()))
    for message in messages:
        assert message in text
    with pytest.raises(UnsupportedModelError):
        Place().run(program)


def test_nothing_to_do() -> None:
    program = program_of(lambda m, ids: m.e(ids), IDS, passes=[Functionalize()])
    assert program.history[-1].text == "no change in place"


def test_check_is_able_to_fail() -> None:
    with pytest.raises(AssertionError, match="functionalize left"):
        Functionalize().check(program_of(arithmetic, IDS))
