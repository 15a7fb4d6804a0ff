"""flex_attention computes on ranks what its definition says, gradients included; what cannot be read is refused."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from sp.errors import SpError, UnsupportedModelError
from sp.passes import pipeline, preparation
from sp.passes.fxtools import op_name
from sp.program import Program
from tests.passes.exact import check
from tests.passes.flex_forms import DATA, FORMS, HEADS, WIDTH, Flexible, Way, causal, flexible, soft_cap, written
from tests.passes.programs import program_of


def arguments(name: str, length: int) -> list[Tensor]:
    x = torch.randn(2, length, HEADS * WIDTH, dtype=torch.float64)
    return [x, *([DATA[name](length)] if name in DATA else [])]


def captured(way: Way, *data: Tensor, kv_heads: int = HEADS, complete: bool = True) -> tuple[Flexible, Program]:
    torch.manual_seed(0)
    model = Flexible(way, kv_heads).double().requires_grad_(False)
    passes = pipeline() if complete else preparation()
    program = program_of(model, *(data or arguments("plain", 24)), passes=passes)
    model.requires_grad_(True)
    return model, program


@pytest.mark.parametrize("name", FORMS)
def test_exact(name: str) -> None:
    score, mask, kv_heads, expected = FORMS[name]
    model, program = captured(flexible(score, mask), *arguments(name, 24), kv_heads=kv_heads)
    (call,) = [node for node in program.graph.nodes if op_name(node) == "sp.attention"]
    assert " | ".join(filter(None, map(str, call.args[4:6]))).startswith(expected.removesuffix(" | "))
    assert program.attentions[0].kv_heads == kv_heads
    model.way = written(score, mask)
    x, *data = arguments(name, 17)
    check(model, program, [x.requires_grad_(), *data])


def test_any_length() -> None:
    """Blocks have 128 positions; the program knows nothing of them."""
    model, program = captured(flexible(soft_cap, causal))
    assert (program.sequence.shortest, program.sequence.longest) == (2, None)
    model.way = written(soft_cap, causal)
    check(model, program, arguments("plain", 200), world=2)


def attend(q: Tensor, k: Tensor, v: Tensor, block_mask: BlockMask) -> Tensor:
    return flex_attention(q, k, v, block_mask=block_mask)


def own_blocks(m: Flexible, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    counts = torch.ones(1, 1, 1, dtype=torch.int32)
    made = BlockMask.from_kv_blocks(counts, counts[..., None] * 0, BLOCK_SIZE=1 << 30, mask_mod=causal(m))
    made.seq_lengths = (q.shape[2], k.shape[2])
    return attend(q, k, v, made)


def another_function(m: Flexible, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    made = create_block_mask(causal(m), None, None, q.shape[2], k.shape[2], device="cpu")
    made.mask_mod = lambda b, h, i, j: i >= j + 1
    return attend(q, k, v, made)


def with_statistics(m: Flexible, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out, totals = flex_attention(q, k, v, return_lse=True)
    return out + totals[..., None]


REFUSED: dict[str, tuple[str, Way]] = {
    "blocks of its own": ("its block mask is not seen to be made from its own mask function", own_blocks),
    "another function": ("its block mask is not seen to be made from its own mask function", another_function),
    "log-sum-exp": ("its log-sum-exp or maxima are read", with_statistics),
    "a row of a tensor": (
        "indexes model_tables other than by one number for each dim",
        flexible(lambda m: lambda s, b, h, i, j: s + m.tables[h].sum(), None),
    ),
    "not element by element": (
        "its function calls aten.sum, which does not work element by element",
        flexible(lambda m: lambda s, b, h, i, j: s + m.slopes.sum(), None),
    ),
    "an index for each head": (
        "looks up model_table by an index that differs from head to head",
        flexible(lambda m: lambda s, b, h, i, j: s + m.table[(i - j + h).clamp(0, 7)], None),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    reason, way = REFUSED[name]
    _, program = captured(way, complete=False)
    (refusal,) = program.refused.values()
    assert reason in refusal.why
    assert refusal.remedy


def test_refused_by_place() -> None:
    with pytest.raises(SpError, match="its log-sum-exp or maxima are read"):
        captured(with_statistics)


def test_block_mask_from_outside() -> None:
    """Made for one length, it fixes the length."""
    outside = create_block_mask(lambda b, h, i, j: i >= j, None, None, 24, 24, device="cpu")
    with pytest.raises(SpError, match="fixes its sequence length at 24"):
        captured(lambda m, q, k, v: attend(q, k, v, outside))


def test_results_that_nobody_reads() -> None:
    way: Callable[..., Tensor] = lambda m, q, k, v: flex_attention(q, k, v, return_lse=True)[0]  # noqa: E731
    _, program = captured(way, complete=False)
    assert not program.refused


def reads_blocks(m: Flexible, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    made = create_block_mask(causal(m), None, None, q.shape[2], k.shape[2], device="cpu")
    return attend(q, k, v, made) * made.kv_num_blocks.sum()


def maps(m: Flexible, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.vmap(lambda x: x.exp() * 2)(q)


@pytest.mark.parametrize("way", [reads_blocks, maps])
def test_what_vmap_leaves(way: Way) -> None:
    """A block mask is traced for one position: whoever else reads it would read that."""
    with pytest.raises(UnsupportedModelError, match=r"torch.vmap \(or create_block_mask"):
        captured(way)
