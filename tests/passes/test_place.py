"""Where the sequence is found to live in small programs, and what is refused."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sp.errors import UnsupportedModelError
from sp.passes.place import Place
from sp.program import Program, Sharded
from tests.passes.programs import BEFORE_PLACE, IDS_BS, Small, placed, program_of

X_BSD = torch.rand(2, 9, 4)

# A forward of `Small` (e: embedding, l: linear, p: table of positions) and the placements of all its values.
PLACED: dict[str, tuple[Callable[..., Any], str]] = {
    "activation domain": (
        lambda m, ids: m.l(m.e(ids)).relu(),
        """
        inputs_0: replicated
        embedding: sharded(dim 1)
        linear: sharded(dim 1)
        relu: sharded(dim 1)
        """,
    ),
    "index domain": (
        lambda m, ids: m.e((ids.flip(1).cumsum(1) + torch.arange(ids.shape[1])) % 11),
        """
        inputs_0: replicated
        flip: replicated
        cumsum: replicated
        arange: replicated
        add: replicated
        remainder: replicated
        embedding: sharded(dim 1)
        """,
    ),
    "position table": (
        lambda m, ids: m.e(ids) + m.p[: ids.shape[1]],
        """
        inputs_0: replicated
        embedding: sharded(dim 1)
        slice_1: replicated
        add: sharded(dim 1)
        """,
    ),
    "label shift and loss": (
        lambda m, ids: F.cross_entropy(m.e(ids).flatten(0, 1), F.pad(ids % 4, (0, 1), value=-100)[:, 1:].flatten()),
        """
        inputs_0: replicated
        embedding: sharded(dim 1)
        flatten: sharded(dim 0, outer=B)
        remainder: replicated
        pad: replicated
        slice_1: replicated
        flatten_1: replicated
        ne_scalar: replicated
        sum_default: replicated
        cross_entropy_loss_default: partial(sum)
        div_tensor: replicated
        """,
    ),
    "what is reduced is whole again": (
        lambda m, ids: m.e(ids) * (m.e(ids).sum(1) @ m.l.weight).softmax(-1)[:, None],
        """
        inputs_0: replicated
        embedding: sharded(dim 1)
        embedding_1: sharded(dim 1)
        sum_1: partial(sum)
        matmul: replicated
        softmax: replicated
        unsqueeze: replicated
        mul: sharded(dim 1)
        """,
    ),
    "a number read from a reduced value": (
        lambda m, ids: m.e(ids) * m.e(ids).sum().item(),
        """
        inputs_0: replicated
        embedding: sharded(dim 1)
        embedding_1: sharded(dim 1)
        sum_1: partial(sum)
        mul: sharded(dim 1)
        """,
    ),
    "sizes are global": (
        lambda m, ids: m.e(ids) / m.e(ids).shape[1] + torch.tensor(ids.shape[1]) + m.e(ids).numel(),
        """
        inputs_0: replicated
        embedding: sharded(dim 1)
        div: sharded(dim 1)
        scalar_tensor: replicated
        add: sharded(dim 1)
        add_1: sharded(dim 1)
        """,
    ),
    "several results": (
        lambda m, ids: torch.cat(m.e(ids).chunk(2, -1)[::-1], -1),
        """
        inputs_0: replicated
        embedding: sharded(dim 1)
        chunk: sharded(dim 1)
        getitem: sharded(dim 1)
        getitem_1: sharded(dim 1)
        cat: sharded(dim 1)
        """,
    ),
    "creation from a shard reads its dtype alone": (
        lambda m, ids: m.e(ids) + m.e(ids).new_ones(ids.shape[1], 1) * m.e(ids).new_full((4,), 2.0),
        """
        inputs_0: replicated
        embedding: sharded(dim 1)
        embedding_1: sharded(dim 1)
        new_ones: replicated
        embedding_2: sharded(dim 1)
        new_full: replicated
        mul: replicated
        add: sharded(dim 1)
        """,
    ),
    "the sequence of a parameter": (
        lambda m, ids: (m.p[: ids.shape[1]] * m.l.bias).sum(0),
        """
        inputs_0: replicated
        slice_1: replicated
        mul: sharded(dim 0)
        sum_1: partial(sum)
        """,
    ),
    "selected by contents": (
        lambda m, ids: m.e(ids[ids > 3]).sum(),
        """
        inputs_0: replicated
        gt: replicated
        index: replicated
        embedding: replicated
        sum_1: replicated
        """,
    ),
    "spans that meet": (
        lambda m, ids: m.e(ids)[:, 1:] * m.l(m.e(ids))[:, 1:],
        """
        inputs_0: replicated
        embedding: sharded(dim 1)
        slice_1: sharded(dim 1, [1:S])
        embedding_1: sharded(dim 1)
        linear: sharded(dim 1)
        slice_2: sharded(dim 1, [1:S])
        mul: sharded(dim 1, [1:S])
        """,
    ),
}


def unindented(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


@pytest.mark.parametrize("name", PLACED)
def test_placements(name: str) -> None:
    forward, expected = PLACED[name]
    assert placed(forward) == unindented(expected)


def noise_without_gradients(m: Small, ids: Tensor) -> Tensor:
    with torch.no_grad():
        noise = torch.randn(4) * 2
    return m.e(ids) + noise


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "no rule": (
        lambda m, ids: m.e(ids).renorm(2, 0, 1.0),
        "sp has no placement rule for aten.renorm (embedding is sharded(dim 1))",
    ),
    "an op that none can have": (lambda m, ids: m.e(ids).take(ids), "it takes elements in row-major order"),
    "sorted": (lambda m, ids: m.e(ids).sort(1)[0], "it needs dim 1 of embedding whole"),
    "batch norm": (
        lambda m, ids: F.batch_norm(m.e(ids).mT, None, None, training=True),
        "the sequence in dim 2 of mT would give each rank other ones",
    ),
    "convolution": (lambda m, ids: F.conv1d(m.e(ids).mT, torch.ones(4, 4, 3)), "it needs dim 2 of mT whole"),
    "indexed by contents": (lambda m, ids: m.e(ids)[ids > 3], "its mask picks a number of elements"),
    "indexed by position": (
        lambda m, ids: m.e(ids)[:, torch.arange(ids.shape[1])],
        "it needs dim 1 of embedding whole",
    ),
    "maximum over the sequence": (lambda m, ids: m.e(ids).amax(1), "it needs dim 1 of embedding whole"),
    "variance": (lambda m, ids: m.e(ids).var(1), "it needs dim 1 of embedding whole"),
    "scores × keys": (lambda m, ids: m.e(ids) @ m.e(ids).mT, "it builds a sequence × sequence value of shape"),
    "outer product of positions": (
        lambda m, ids: torch.arange(ids.shape[1])[:, None] * torch.arange(ids.shape[1]) + m.e(ids).sum(),
        "it builds a sequence × sequence value",
    ),
    "first position": (lambda m, ids: m.e(ids)[:, 0], "it selects one position of the sequence"),
    "softmax over the sequence": (
        lambda m, ids: m.e(ids).softmax(1),
        "it needs dim 1 of embedding whole, and the sequence lives there",
    ),
    "running sum": (lambda m, ids: m.e(ids).cumsum(1), "it needs dim 1 of embedding whole"),
    "normalized over the sequence": (
        lambda m, ids: F.layer_norm(m.e(ids).mT, ids.shape[1:]),
        "it needs dim 2 of mT whole, and the sequence lives there",
    ),
    "transposed by view": (
        lambda m, ids: (m.e(ids) * 2).view(ids.shape[1], 2, 4),
        "which splits or mixes the sequence (dim 1)",
    ),
    "contraction over the sequence and a bias": (
        lambda m, ids: F.linear(m.e(ids).mT, torch.ones(3, ids.shape[1]), torch.ones(3)),
        "whole, and the sequence lives there",
    ),
    "table of activations": (
        lambda m, ids: F.embedding(ids % 3, m.l(m.e(ids))[0]),
        "whole, and the sequence lives there",
    ),
    "gradient by frequency": (
        lambda m, ids: F.embedding(ids, m.e.weight, scale_grad_by_freq=True),
        "scaled by how often",
    ),
    "dropout": (lambda m, ids: F.dropout(m.e(ids), 0.1), "it draws random numbers, which would differ between ranks"),
    "dropout of a replicated value": (lambda m, ids: m.e(ids) + F.dropout(m.l.bias, 0.1), "it draws random numbers"),
    "noise": (lambda m, ids: m.e(ids) + torch.randn(4), "it draws random numbers"),
    "random and pointwise": (lambda m, ids: F.rrelu(m.e(ids), training=True), "it draws random numbers"),
    "noise in ids": (lambda m, ids: m.e(torch.randint_like(ids, 11)), "it draws random numbers"),
    "noise without gradients": (noise_without_gradients, "it draws random numbers"),
    "scores over the sequence": (
        lambda m, ids: F.cross_entropy(m.e(ids), ids[:, :4] % 4),
        "it compares classes along dim 1 of embedding, where the sequence lives",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    forward, reason = REFUSED[name]
    with pytest.raises(UnsupportedModelError) as caught:
        placed(forward)
    text = str(caught.value)
    assert reason in text
    assert "\n    at:     " in text
    assert "\n    remedy: " in text
    assert all(refusal.remedy for refusal in caught.value.refusals)


def shard_inputs(program: Program) -> Program:
    return replace(program, inputs=tuple(replace(port, local=True) for port in program.inputs))


def test_every_refusal_once() -> None:
    """All of them, as if the refused ones were right."""

    def forward(m: Small, ids: Tensor) -> Tensor:
        h = m.e(ids)
        return (h.flip(1).relu() + h.cumsum(1)).softmax(1) + h.sort(1)[0] * 2

    with pytest.raises(UnsupportedModelError) as caught:
        placed(forward)
    assert str(caught.value).startswith(
        "4 nodes cannot be spread over ranks exactly\n  1. flip: aten.flip(embedding, [1])"
    )
    assert [refusal.node.split(":")[0] for refusal in caught.value.refusals] == ["flip", "cumsum", "softmax", "sort"]


def test_local_inputs_are_sharded_at_once() -> None:
    program = Place().run(shard_inputs(program_of(lambda m, x: m.l(x) + x.mT.mT, X_BSD, passes=BEFORE_PLACE)))
    assert all(isinstance(placement, Sharded) for name, placement in program.placements.items() if name[0] != "m")


def test_check_is_able_to_fail() -> None:
    program = program_of(lambda m, ids: m.e(ids), passes=BEFORE_PLACE)
    with pytest.raises(AssertionError, match="place left"):
        Place().check(program)


def test_history_counts() -> None:
    program = program_of(lambda m, ids: m.l(m.e(ids)), IDS_BS, passes=(*BEFORE_PLACE, Place()))
    assert program.history[-1].text == "2 of 6 values sharded, 4 replicated or partial"
