"""Dataclasses that no pytree knows, as arguments and outputs."""

from dataclasses import dataclass, field

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import sp
from sp.records import closed, opened
from sp.testing import run_ranks
from sp.testing.compare import relative_error


@dataclass(frozen=True)
class Batch:
    ids: Tensor
    scale: float = 1.0


@dataclass(slots=True)
class Part:
    sums: Tensor
    words: tuple[str, ...] = ("a",)


@dataclass
class Output:
    loss: Tensor
    hidden: Tensor
    parts: list[Part] = field(default_factory=list)
    made: int = 0

    def __post_init__(self) -> None:
        self.made += 1


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.e = nn.Embedding(11, 8, dtype=torch.float64)

    def forward(self, batch: Batch) -> Output:
        x = self.e(batch.ids)[:, None]
        y = batch.scale * nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)[:, 0]
        return Output(y.square().mean(), y, [Part(y.sum(1)), Part(y.amax(1), ("b", "c"))])


def tensors(output: Output) -> list[Tensor]:
    return [output.loss, output.hidden, *(part.sums for part in output.parts)]


def test_a_model_that_takes_and_returns_dataclasses() -> None:
    whole, models = Model(), [Model() for _ in range(3)]
    batches = [Batch(torch.arange(22).view(2, 11) % 11), Batch(torch.arange(15).view(3, 5) % 11, 2.0)]
    right = [whole(batch) for batch in batches]
    sum(each.loss for each in right).backward()

    def work(group: dist.ProcessGroup) -> list[Output]:
        parallel = sp.parallelize(models[group.rank()], mesh=group, compile=False)
        found = [parallel(batch) for batch in batches]
        sum(each.loss for each in found).backward()
        return found

    for outputs in run_ranks(3, work):
        for found, its in zip(outputs, right, strict=True):
            assert type(found) is Output
            assert found.made == its.made == 1
            assert [part.words for part in found.parts] == [("a",), ("b", "c")]
            pairs = zip(tensors(found), tensors(its), strict=True)
            assert all(relative_error(a, b) < 1e-12 for a, b in pairs)
    assert all(relative_error(model.e.weight.grad, whole.e.weight.grad) < 1e-12 for model in models)


@pytest.mark.parametrize("tree", [Batch(torch.ones(2)), [Output(*torch.ones(2), [Part(torch.ones(1))])], Part, 3])
def test_there_and_back(tree: object) -> None:
    assert repr(closed(opened(tree))) == repr(tree)


def test_what_a_dataclass_has_besides_its_fields_would_be_lost() -> None:
    output = Output(*torch.ones(2))
    output.extra = 1  # type: ignore[attr-defined]
    assert opened(output) is output
