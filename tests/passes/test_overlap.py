"""Overlap: one message for the gradients of a block, posted before the backward of the block before begins."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sp.models import Llama, LlamaConfig
from sp.passes import pipeline
from sp.passes.bind import bind
from sp.passes.fxtools import op_name
from sp.passes.overlap import Overlap
from sp.passes.verify import Verify
from sp.program import Program
from sp.runtime.world import seat_name
from sp.testing.ranks import run_ranks
from tests.passes.exact import check
from tests.passes.programs import IDS_BS, Small, listing, program_of
from tests.runtime.fake_group import fake_group

pytestmark = pytest.mark.usefixtures("one_capture")

*BEFORE, _, _ = pipeline()
LAYERS = 3


def llama() -> Llama:
    torch.manual_seed(0)
    return Llama(LlamaConfig(vocab_size=61, layers=LAYERS, heads=4, kv_heads=2, width=32)).double()


def batch(length: int) -> Tensor:
    return torch.randint(0, 61, (2, length), generator=torch.Generator().manual_seed(length))


def messages(program: Program) -> list[list[str]]:
    """The parameters of each message."""
    nodes = [node for node in program.graph.nodes if op_name(node) == "sp.replicate_all"]
    return [[str(x.target).removeprefix("model.") for x in node.args[0]] for node in nodes]


def split(model: nn.Module | Callable[..., Any], *inputs: Tensor, limit: int = 25 << 20, **named: Tensor) -> Program:
    return program_of(model, *inputs, passes=[*BEFORE, Overlap(limit), Verify()], **named)


def test_one_message_for_each_block_and_two_for_the_ends() -> None:
    program = split(llama(), batch(9), labels=batch(9))
    first, *blocks, last = messages(program)
    assert (first, last) == (["tokens.weight"], ["norm.weight", "head.weight"])
    for number, block in enumerate(blocks):
        assert len(block) == 9
        assert all(path.startswith(f"blocks.{number}.") for path in block)
    note = next(note for note in program.history if note.stage == "overlap")
    count = sum(parameter.numel() for parameter in llama().parameters())
    assert note.text == f"{9 * LAYERS + 3} sums of gradients in {LAYERS + 2} messages, {8 * count:,} bytes in all"


def test_a_tied_weight_is_one_sum() -> None:
    model = llama()
    model.head.weight = model.tokens.weight
    first, *_, last = messages(split(model, batch(9), labels=batch(9)))
    assert (first, last) == (["head.weight"], ["norm.weight"])  # torch.export calls it by one of its names


def test_a_message_has_a_size() -> None:
    """Of the 9 parameters of a block no two large ones go together; none is cut."""
    parts = messages(split(llama(), batch(9), labels=batch(9), limit=32 * 32 * 8))
    sizes = {name: value.numel() * 8 for name, value in llama().named_parameters()}
    assert all(len(part) == 1 or sum(sizes[name] for name in part) <= 32 * 32 * 8 for part in parts)
    assert sorted(name for part in parts for name in part) == sorted(sizes)


class Mixed(nn.Module):
    """Parameters of two dtypes in one block."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4).bfloat16()])
        self.blocks[0].extra = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks[1]((self.blocks[0](x) * self.blocks[0].extra).bfloat16())


def test_a_message_has_one_dtype() -> None:
    assert messages(split(Mixed(), torch.randn(2, 9, 4))) == [
        ["blocks.0.weight", "blocks.0.bias"],
        ["blocks.0.extra"],
        ["blocks.1.weight", "blocks.1.bias"],
    ]


def test_printed(golden: Callable[[str, str], None]) -> None:
    def forward(m: Small, ids: Tensor) -> Tensor:
        return m.l(m.l(m.e(ids))) @ m.e.weight.T * m.l.bias.sum()

    golden("passes/overlap", listing(split(forward, IDS_BS)))


def test_a_parameter_that_is_cast_is_summed_as_it_is() -> None:
    """The weight of the embedding is used as it is and, in the head, in 16 bits: both are one sum."""

    def forward(m: Small, ids: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.linear(m.l(m.e(ids)), m.e.weight)

    program = split(forward, IDS_BS)
    assert messages(program) == [["e.weight", "l.weight", "l.bias"]]
    assert "sp.replicate" not in {op_name(node) for node in program.graph.nodes}
    right, found = Small(forward), Small(forward)
    found.load_state_dict(right.state_dict())
    right(IDS_BS).float().square().sum().backward()

    def rank(group: dist.ProcessGroup) -> list[Tensor]:
        model = Small(forward)
        model.load_state_dict(right.state_dict())
        (output,) = bind(split(model, IDS_BS), seat_name(group.group_name))(IDS_BS)
        output.float().square().sum().backward()
        return [value.grad for value in (model.e.weight, model.l.weight, model.l.bias) if value.grad is not None]

    (gradients,) = run_ranks(1, rank)
    for its, value in zip(gradients, (right.e.weight, right.l.weight, right.l.bias), strict=True):
        torch.testing.assert_close(its, value.grad, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("limit", [1, 300, 25 << 20])
@pytest.mark.parametrize("length", [11, 6])
def test_every_gradient_is_exact(limit: int, length: int) -> None:
    def forward(m: Small, ids: Tensor) -> tuple[Tensor, ...]:
        hidden = m.l(m.e(ids) + m.p[: ids.shape[1]])
        return m.l(hidden) @ m.e.weight.T * m.l.bias.sum(), hidden.mean((0, 1))

    model = Small(forward).double()
    check(model, split(model, IDS_BS, limit=limit), [torch.randint(0, 11, (2, length))])


class Recorder(TorchDispatchMode):
    """The calls of the given `sp::` ops, in order."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names, self.events = names, list[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("sp::")
        if name in self.names:
            self.events.append(name)
        return func(*args, **(kwargs or {}))


def test_posted_before_the_attention_of_the_block_before_and_waited_for_after_all() -> None:
    ids = batch(8)
    program = split(llama(), ids, labels=ids)
    with fake_group(0, 2) as group:
        _, loss = bind(program, seat_name(group))(ids, ids)
        with Recorder(("start_sums", "finish_sums", "attention_backward", "reduce")) as recorder:
            loss.backward()
    blocks = ["attention_backward", "start_sums"] * LAYERS
    assert recorder.events == ["start_sums", *blocks, "start_sums", *["finish_sums"] * (LAYERS + 2)]


def test_check_is_able_to_fail() -> None:
    program = split(llama(), batch(9), labels=batch(9)).fork()
    promise, other = (node for node in program.graph.nodes if node.name in ("promise", "promise_1"))
    other.replace_all_uses_with(promise)
    with pytest.raises(AssertionError, match="a message has one reader"):
        Overlap().check(program)
