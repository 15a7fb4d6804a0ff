"""What looks at the whole sequence: exact on a world of threads, the same on one device, or refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sp.errors import UnsupportedModelError
from sp.passes import pipeline
from sp.passes.bind import bind
from sp.passes.decompose import Decompose
from sp.passes.normalize import Normalize
from sp.passes.place import Place
from sp.runtime.world import seat_name
from sp.testing import run_ranks
from tests.passes.exact import STRATEGIES, check, check_forward, results, single
from tests.passes.programs import IDS_BS, Small, listing, ops, program_of


def hidden(m: Small, ids: Tensor) -> Tensor:
    return m.l(m.e(ids))


def tied(m: Small, ids: Tensor) -> Tensor:
    """Values that often tie."""
    return m.e(ids).round() * m.l.bias


def last_counted(ids: Tensor) -> Tensor:
    """For each row the last position with an even id, as classifiers look for the last token that is no padding."""
    return (torch.arange(ids.shape[1]) * (ids % 2 == 0)).argmax(-1)


def depthwise(m: Small, ids: Tensor, taps: int = 3) -> Tensor:
    """Mamba's: every channel its own filter, no token sees the future."""
    weight = m.p[: 4 * taps, 0].view(4, 1, taps)
    return F.conv1d(hidden(m, ids).mT, weight, m.l.bias, padding=taps - 1, groups=4)[..., : ids.shape[1]].mT


def convolved(m: Small, ids: Tensor, **options: Any) -> Tensor:
    weight = m.p[:12].reshape(4, 4, 3)
    return F.conv1d(m.e(ids).mT, weight, m.l.bias, **options)


CASES: dict[str, Callable[..., Any]] = {
    "first token": lambda m, ids: hidden(m, ids)[:, 0],
    "last token": lambda m, ids: m.l(hidden(m, ids)[:, -1]).tanh(),
    "third token, and all": lambda m, ids: hidden(m, ids)[:, 2, None] * m.e(ids),
    "last token of each row": lambda m, ids: hidden(m, ids)[torch.arange(ids.shape[0]), last_counted(ids)],
    "token before the last": lambda m, ids: hidden(m, ids)[torch.arange(ids.shape[0]), last_counted(ids) - 1],
    "gathered token": lambda m, ids: hidden(m, ids).gather(1, last_counted(ids)[:, None, None].expand(-1, -1, 4)),
    "first tokens": lambda m, ids: m.l(hidden(m, ids)[:, :2]) * hidden(m, ids)[:, -1:],
    "amax": lambda m, ids: hidden(m, ids).amax(1),
    "amin, ties": lambda m, ids: tied(m, ids).amin(1, keepdim=True),
    "amax of two dims": lambda m, ids: tied(m, ids).amax((1, 2)),
    "amax of all": lambda m, ids: tied(m, ids).amax(),
    "max of all": lambda m, ids: tied(m, ids).max(),
    "max": lambda m, ids: hidden(m, ids).max(1).values,
    "min, ties": lambda m, ids: tied(m, ids).min(1, keepdim=True),
    "argmax": lambda m, ids: (tied(m, ids).argmax(1), m.l.bias.sum()),
    "argmin": lambda m, ids: (hidden(m, ids).argmin(1, keepdim=True), m.l.bias.sum()),
    "argmax of merged dims": lambda m, ids: (hidden(m, ids).flatten(1).argmax(1), m.l.bias.sum()),
    "pooled by attention": lambda m, ids: (hidden(m, ids).mean(-1, keepdim=True).softmax(1) * m.e(ids)).sum(1),
    "softmax": lambda m, ids: (hidden(m, ids) * 300).softmax(1),
    "log softmax": lambda m, ids: hidden(m, ids).log_softmax(1) * m.e(ids),
    "logsumexp": lambda m, ids: hidden(m, ids).logsumexp(1),
    "logsumexp of two dims": lambda m, ids: (hidden(m, ids) * 300).logsumexp((1, 2), keepdim=True),
    "variance": lambda m, ids: hidden(m, ids).var(1),
    "variance and mean": lambda m, ids: torch.var_mean(hidden(m, ids), (1, 2), correction=0, keepdim=True),
    "any and all": lambda m, ids: (
        (hidden(m, ids) > 1).any(1),
        (hidden(m, ids) > -1).all(1),
        (hidden(m, ids) > 0).any(),
    ),
    "pieces": lambda m, ids: [p * (n + 1) for n, p in enumerate(hidden(m, ids).split([2, ids.shape[1] - 2], 1))][1],
    "roll": lambda m, ids: hidden(m, ids).roll(1, 1) * m.e(ids),
    "roll back": lambda m, ids: hidden(m, ids).roll(-2, 1) * m.e(ids),
    "causal depthwise convolution": lambda m, ids: depthwise(m, ids) * m.e(ids),
    "convolution": lambda m, ids: convolved(m, ids, padding=1).mT + m.e(ids),
    "convolution without padding": lambda m, ids: convolved(m, ids).sin(),
    "dilated, same": lambda m, ids: convolved(m, ids, padding="same", dilation=2),
    "linear attention": lambda m, ids: hidden(m, ids) @ (m.e(ids).mT @ hidden(m, ids)),
}


@pytest.mark.parametrize("name", CASES)
def test_exact(name: str) -> None:
    check_forward(CASES[name], STRATEGIES[list(CASES).index(name) % 3])


@pytest.mark.parametrize("name", ["last token of each row", "token before the last", "gathered token", "amax", "max"])
def test_exact_for_a_single_row(name: str) -> None:
    """A batch of 1 is a number in the graph: torch.arange(batch) counts no rows, it is 0."""
    torch.manual_seed(0)
    model = Small(CASES[name]).double()
    program = program_of(model, IDS_BS[:1], passes=pipeline())
    check(model, program, [torch.randint(0, 11, (1, 10))])


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("world", [2, 4, 7])
@pytest.mark.parametrize("name", CASES)
def test_exact_in_every_strategy(name: str, world: int, strategy: str) -> None:
    check_forward(CASES[name], strategy, (world, 9, 14), world) if world > 4 else check_forward(
        CASES[name], strategy, world=world
    )


@pytest.mark.parametrize("name", CASES)
def test_the_same_on_one_device(name: str) -> None:
    """The pass itself changes nothing that a model computes."""
    torch.manual_seed(0)
    model = Small(CASES[name]).double()
    program = program_of(model, IDS_BS, passes=(Normalize(), Decompose()))
    right = single(model, [IDS_BS])
    outputs = [x.requires_grad_(x.requires_grad) for x in _run(program, IDS_BS)]
    found = results(outputs, model, [IDS_BS])
    for mine, theirs in zip((*found[0], *found[1]), (*right[0], *right[1]), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-11)


def _run(program: Any, *inputs: Tensor) -> list[Tensor]:
    return list(program.graph_module(*inputs))


def test_not_a_number_is_everybodys_maximum() -> None:
    """One NaN, on one rank."""

    def forward(m: Small, ids: Tensor) -> Any:
        x = torch.where((ids == 3)[..., None], float("nan"), m.e(ids))
        return x.amax(1), x.max(1).values, x.softmax(1), x.argmax(1)

    torch.manual_seed(0)
    model = Small(forward).double()
    ids = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 8], [0, 1, 2, 2, 4, 5, 6, 7, 8]])
    program = program_of(model, ids, passes=pipeline())
    right = [output.detach() for output in model(ids)]
    for found in run_ranks(3, lambda group: list(bind(program, seat_name(group.group_name))(ids))):
        for mine, theirs in zip(found, right, strict=True):
            torch.testing.assert_close(mine, theirs, equal_nan=True)


def test_index_domain_stays_as_it_is() -> None:
    """Of ids alone every rank has all."""
    forward = lambda m, ids: (ids.max(1).values, ids[:, -1], ids.argmax(1), m.l.bias)  # noqa: E731
    assert "sp.peak" not in ops(program_of(forward, passes=(Decompose(),)))


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "argmax of everything": (lambda m, ids: hidden(m, ids).argmax(), "it counts the elements of all dims"),
    "several positions": (lambda m, ids: hidden(m, ids)[:, ids[0, :2] % 3], "not by one position for each row"),
    "rows in another order": (
        lambda m, ids: hidden(m, ids)[ids[:, 0] % 2, last_counted(ids)],
        "its rows are not proven to be 0, 1, 2",
    ),
    "gather of several": (
        lambda m, ids: hidden(m, ids).gather(1, ids[:, :2, None].expand(-1, -1, 4) % 3),
        "not one position for each row",
    ),
    "roll of two dims": (lambda m, ids: hidden(m, ids).roll((1, 1), (1, 2)), "rolls the sequence with other dims"),
    "strided": (lambda m, ids: convolved(m, ids, stride=2), "with stride [2] and 1 groups"),
    "filters as long as the sequence": (
        lambda m, ids: F.conv1d(m.e(ids).mT, m.p[: ids.shape[1]].mT[:, None], groups=4),
        "are as long as the sequence",
    ),
    "two groups": (lambda m, ids: F.conv1d(m.e(ids).mT, m.p[:6].reshape(4, 2, 3), groups=2), "and 2 groups"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    forward, reason = REFUSED[name]
    with pytest.raises(UnsupportedModelError) as caught:
        program_of(forward, IDS_BS, passes=(Normalize(), Decompose(), Place()))
    assert reason in str(caught.value)
    assert "remedy:" in str(caught.value)
    assert "programs.py:" in str(caught.value)


def test_a_roll_needs_a_longer_sequence() -> None:
    program = program_of(lambda m, ids: hidden(m, ids)[:, 1:].roll(-3, 1), IDS_BS, passes=(Decompose(),))
    assert program.sequence.shortest == 5  # S - 1 > 3


def test_printed(golden: Callable[[str, str], None]) -> None:
    def forward(m: Small, ids: Tensor) -> Any:
        return hidden(m, ids).max(1), hidden(m, ids)[:, -1], depthwise(m, ids, 2)

    golden("passes/decompose", listing(program_of(forward, IDS_BS, passes=(Normalize(), Decompose()))))


def test_local_inputs_are_activations() -> None:
    """Each rank has its own part of them: their maximum crosses ranks."""
    x = torch.rand(2, 9, 4)
    program = program_of(lambda m, x: x.amax(1), x, passes=(Normalize(), Decompose()))
    assert "sp.peak" not in ops(program)
