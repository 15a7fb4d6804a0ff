"""Indices of tables: all ranks look at all of them, and raise alike, before any of them computes."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sp
from sp.testing.ranks import run_ranks

pytestmark = pytest.mark.usefixtures("one_capture")

IDS = torch.arange(12).view(1, 12) % 7


class Tagger(nn.Module):
    """Ids shifted, positions from a mask (as OPT counts them) or a buffer, and a loss that ignores what it is told."""

    def __init__(self, ignored: int = -100, trained: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.positions, self.head = nn.Embedding(7, 4), nn.Embedding(12, 4), nn.Linear(4, 7)
        self.register_buffer("places", torch.arange(30)[None])
        self.ignored, self.trained = ignored, trained

    def forward(self, ids: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
        where = self.places[:, : ids.shape[1]] if mask is None else mask.cumsum(1) - 1
        if self.trained:
            where = where + self.head.bias.detach().mean().long()
        logits = self.head(self.tokens(ids) + self.positions(where))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=self.ignored)


def messages(call: Any, world: int = 3, model: nn.Module | None = None, **options: Any) -> list[str]:
    made = (model or Tagger()).double()

    def rank(group: Any) -> str:
        parallel = sp.parallelize(copy.deepcopy(made), mesh=group, compile=False, **options)
        with pytest.raises(sp.InputError) as caught:
            call(parallel)
        error = str(caught.value)
        torch.testing.assert_close(parallel(IDS, IDS), made(IDS, IDS))
        with pytest.raises(sp.InputError, match=r"reads row"):  # now that there is a capture
            call(parallel)
        return error

    return run_ranks(world, rank)


def with_one(ids: Tensor, place: int, value: int) -> Tensor:
    return ids.index_fill(1, torch.tensor([place]), value)


def test_one_token_that_one_rank_holds() -> None:
    for message in messages(lambda model: model(with_one(IDS, 4, 7), IDS)):
        assert "aten.embedding(model_tokens_weight, ids)  in tokens reads row 7 of 7" in message
        assert "test_tables.py" in message
        assert "needed: indices from 0 to 6" in message
        assert "those of the model's vocabulary" in message


def test_labels_but_not_those_that_are_ignored() -> None:
    model = Tagger(ignored=-1)
    for message in messages(lambda each: each(IDS, with_one(with_one(IDS, 3, -1), 5, -100)), model=model):
        assert "reads row -100 of 7" in message
        assert "needed: indices from 0 to 6, or -1" in message


def test_positions_that_are_computed_from_inputs_and_buffers() -> None:
    long = torch.zeros(1, 13, dtype=torch.int64)
    for message in messages(lambda model: model(long, long)):
        assert "in positions reads row 12 of 12" in message
    for message in messages(lambda model: model(long, long, torch.ones_like(long)), world=1):
        assert "in positions reads row 12 of 12" in message


def test_what_depends_on_parameters_is_left_to_the_op() -> None:
    model = Tagger(trained=True)
    parallel = sp.parallelize(model, compile=False)
    parallel(IDS, IDS)
    assert len(parallel.executables[0].tables.reads) == 2  # ids and labels
    long = torch.zeros(1, 13, dtype=torch.int64)
    with pytest.raises(IndexError):
        parallel(long, long)


def test_shards_are_looked_at_where_they_are_passed_as_they_are() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(7, 4)

        def forward(self, ids: Tensor) -> Tensor:
            return self.tokens(ids)

    model = Tokens()

    def rank(group: Any) -> str:
        parallel = sp.parallelize(model, mesh=group, compile=False, inputs="local", outputs="local")
        with pytest.raises(sp.SpError) as caught:
            parallel(IDS[:, :4] + 7 * (group.rank() == 1))
        return f"{type(caught.value).__name__}: {caught.value}"

    zero, one = run_ranks(2, rank)
    assert zero.startswith("RankMismatchError: rank 1 could not take part in this call: embedding: ")
    assert one.startswith("InputError: embedding: ")
