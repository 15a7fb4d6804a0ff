"""Repeated blocks: what folds, what must not, and that folding hides nothing."""

import re
from collections.abc import Iterable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sp
from sp.models import Llama, LlamaConfig
from sp.show import Report, print_program

IDS = torch.zeros(2, 16, dtype=torch.long)


class Attention(nn.Module):
    def __init__(self, window: int | None) -> None:
        super().__init__()
        self.qkv, self.window = nn.Linear(8, 24), window

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(2, (2, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if self.window is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        i = torch.arange(x.shape[1])
        mask = (i[:, None] >= i) & (i[:, None] - i < self.window)
        return F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)


class Block(nn.Module):
    def __init__(self, window: int | None = None, width: int = 16, scale: float = 1.0) -> None:
        super().__init__()
        self.attention = Attention(window)
        self.up, self.out, self.scale = nn.Linear(8, width), nn.Linear(width, 8), scale

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x) * self.scale
        return x + self.out(F.relu(self.up(x)))


class Model(nn.Module):
    """Blocks in a row; subclasses change how they hang together."""

    def __init__(self, blocks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.tokens, self.blocks = nn.Embedding(9, 8), nn.ModuleList(blocks)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return x


class Called(Model):
    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for _ in range(4):
            x = self.blocks[0](x)
        return x


class Collecting(Model):
    def forward(self, ids: Tensor) -> tuple[Tensor, ...]:
        states = [self.tokens(ids)]
        for block in self.blocks:
            states.append(block(states[-1]))
        return tuple(states)


class SkippingBack(Model):
    def forward(self, ids: Tensor) -> Tensor:
        states = [self.tokens(ids)]
        for block in self.blocks:
            states.append(block(states[-1] + states[-2] if len(states) > 1 else states[-1]))
        return states[-1]


class FromTheStart(Model):
    def forward(self, ids: Tensor) -> Tensor:
        start = x = self.tokens(ids)
        for block in self.blocks:
            x = block(x, start)
        return x


class BlockWithStart(Block):
    def forward(self, x: Tensor, start: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x + start)


class Interleaved(Model):
    """What lies between two blocks belongs to neither: contracting the blocks would close a circle."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = F.relu(block(x))
        return x


def shared_weights() -> Model:
    model = Model(Block() for _ in range(4))
    for block in model.blocks:
        block.up.weight = model.blocks[0].up.weight
    return model


FOLDED = {
    "equal": (lambda: Model(Block() for _ in range(4)), ["blocks.{0…3} × 4"]),
    "two widths": (
        lambda: Model(Block(width=16 if i < 3 else 24) for i in range(5)),
        ["blocks.{0, 1, 2} × 3", "blocks.{3, 4} × 2"],
    ),
    "odd one out": (
        lambda: Model(Block(scale=0.5 if i == 2 else 1.0) for i in range(5)),
        ["blocks.{0, 1} × 2", "blocks.{3, 4} × 2"],
    ),
    "all different": (lambda: Model(Block(width=8 + i) for i in range(4)), []),
    "alternating": (
        lambda: Model(Block(window=4 if i % 3 else None) for i in range(9)),
        ["blocks.{0, 3, 6} + blocks.{1, 4, 7} + blocks.{2, 5, 8} × 3"],
    ),
    "one block called again": (lambda: Called([Block()]), ["blocks.0 × 4"]),
    "nested": (
        lambda: Model(nn.Sequential(Block(), Block()) for _ in range(3)),
        ["blocks.{0, 1, 2} × 3", "blocks.0.{0, 1} × 2"],
    ),
    "nested, unequal": (
        lambda: Model(nn.Sequential(Block(width=8 + i), Block(width=8 + i)) for i in range(2)),
        ["blocks.0.{0, 1} × 2", "blocks.1.{0, 1} × 2"],
    ),
    "shared weights": (shared_weights, ["blocks.{0…3} × 4"]),
    "all read the start": (lambda: FromTheStart(BlockWithStart() for _ in range(3)), ["blocks.{0, 1, 2} × 3"]),
    "inner values go out": (lambda: Collecting(Block() for _ in range(4)), []),
    "reading two back": (lambda: SkippingBack(Block() for _ in range(4)), []),
    "others between": (lambda: Interleaved(Block() for _ in range(4)), []),
}


# In the rewritten graph the gradients of a block are summed in one message, of which its parts read different places.
REWRITTEN = {
    "nested": ["blocks.{0, 1, 2} × 3"],
    "nested, unequal": [],
    "shared weights": ["blocks.{0, 1, 2} × 3"],
}


@pytest.fixture(scope="module", params=FOLDED)
def case(request: pytest.FixtureRequest) -> tuple[Report, list[str], list[str]]:
    make, expected = FOLDED[request.param]
    report = sp.inspect(make(), (IDS,), strategy="zigzag", world_size=4)
    return report, expected, REWRITTEN.get(request.param, expected)


def folds(text: str) -> list[str]:
    return re.findall(r"╭ (.+? × \d+)", text)


def test_folds_what_is_equal_and_nothing_else(case: tuple[Report, list[str], list[str]]) -> None:
    report, expected, rewritten = case
    assert folds(print_program(report.captured)) == expected
    assert folds(report.graph_table()) == rewritten


def test_every_value_is_printed_once_or_folded(case: tuple[Report, list[str], list[str]]) -> None:
    """Lines outside of folds stand for one value each, inside for as many as the folds around them say."""
    report, *_ = case
    for program in (report.captured, report.program):
        standing, counts = 0, [1]
        for line in print_program(program).splitlines()[2:]:
            if match := re.search(r"╭ .+? × (\d+)", line):
                units = int(match[1])
                counts.append(counts[-1] * units)
            elif "╰" in line:
                counts.pop()
            elif not line.startswith("return"):
                standing += counts[-1]
        inline = [node for node in program.graph.nodes if node.op == "get_attr" or "sym_size" in node.name]
        assert standing == len(program.graph.nodes) - len(inline) - 1  # the output


def test_fold_says_what_it_carries() -> None:
    text = sp.inspect(Model(Block() for _ in range(4)), (IDS,)).graph_table()
    opened, closed = re.search(r"carrying (\w+) → (\w+)", text), re.search(r"(\w+) is (\w+)$", text, re.MULTILINE)
    assert opened, text
    assert closed, text
    assert opened[1] == "embedding"
    assert opened[2] == closed[1]
    assert re.search(rf"^unshard .* = sp\.unshard\({closed[2]}, ", text, re.MULTILINE)


@pytest.fixture(scope="module")
def deep_llama() -> Report:
    model = Llama(LlamaConfig(layers=32, heads=2, kv_heads=1, width=8, gqa="repeat_kv"))
    return sp.inspect(model, (IDS,), {"labels": IDS}, world_size=4)


@pytest.mark.slow
def test_deep_model_fits_on_a_page(deep_llama: Report) -> None:
    assert len(deep_llama.program.graph.nodes) > 1500
    for text in (print_program(deep_llama.captured), deep_llama.graph_table()):
        assert folds(text) == ["blocks.{0…31} × 32"]
        assert len(text.splitlines()) < 100


def test_deep_model_has_one_attention_row(deep_llama: Report) -> None:
    (attention,) = deep_llama.as_dict()["attentions"]
    assert (attention["where"], attention["count"]) == ("blocks.{0…31}.attention", 32)
    assert "blocks.{0…31}.attention × 32" in str(deep_llama)


def test_attentions_of_unlike_blocks_have_rows_of_their_own() -> None:
    make, _ = FOLDED["alternating"]
    rows = sp.inspect(make(), (IDS,), world_size=2).as_dict()["attentions"]
    assert [(row["where"], row["mask"], row["count"]) for row in rows] == [
        ("blocks.{0, 3, 6}.attention", "causal", 3),
        ("blocks.{1, 2, 4, 5, 7, 8}.attention", "window(3, 0)", 6),
    ]


def test_attentions_fold_though_their_blocks_hang_together_otherwise() -> None:
    """A row says what an attention is and costs; who else reads it is the graph's affair."""
    report = sp.inspect(Collecting(Block() for _ in range(4)), (IDS,), world_size=2)
    assert [row["count"] for row in report.as_dict()["attentions"]] == [4]
