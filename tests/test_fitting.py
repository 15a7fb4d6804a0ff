"""Caches and chains that do not fit a call: refused by name, on all ranks, where nothing else would tell."""

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import sp
from sp.errors import InputError, RankMismatchError, SpError
from sp.testing import run_ranks

TOKENS = 9


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(31, 8)

    def forward(self, input_ids: Tensor, cache: Any) -> tuple[Tensor, Any]:
        x = self.tokens(input_ids)[:, None]
        keys, values = cache.update(x, x, 0)
        return nn.functional.scaled_dot_product_attention(x, keys, values), cache


def test_a_cache_of_another_layout_world_or_call_is_refused_on_all_ranks() -> None:
    """Of nine tokens two ranks hold as many each, whatever the layout: counts alone do not tell."""
    transformers = pytest.importorskip("transformers")
    model, ids = Decoder(), torch.arange(TOKENS)[None]
    models = [copy.deepcopy(model) for _ in range(2)]

    def rank(group: dist.ProcessGroup) -> list[str]:
        plain = models[group.rank()]
        one, other, alone = (
            sp.parallelize(plain, "striped", mesh=group, compile=False),
            sp.parallelize(plain, "ring", mesh=group, compile=False),
            sp.parallelize(plain, compile=False),
        )
        first, second = (one(ids, cache=transformers.DynamicCache())[1] for _ in range(2))
        said = list[str]()
        for model, cache in ((other, first), (alone, first), (one, second if group.rank() else first)):
            with pytest.raises((InputError, RankMismatchError)) as caught:
                model(ids[:, :1], cache=cache)
            said.append(str(caught.value))
        assert one(ids[:, :1], cache=first)[1].length == TOKENS + 1, "what is refused leaves it as it is"
        return said

    here = "layout over the ranks [0, 1]"
    for layout, world, call in run_ranks(2, rank):
        assert f"a cache was dealt by the striped {here}" in layout
        assert f"needed: by the contiguous {here}, as this model deals it" in layout
        assert "needed: by a world of one rank, as this model deals it" in world
        assert "the ranks disagree about the contents of the inputs" in call


@pytest.mark.parametrize("first", ["whole", "local", "empty"])
def test_a_cache_grows_as_the_plain_models_does(first: str) -> None:
    """The same object goes in and comes out; a copy of before goes on as if nothing had been."""
    transformers = pytest.importorskip("transformers")
    parallel, ids = sp.parallelize(Decoder(), compile=False), torch.arange(TOKENS)[None]
    plain, cache = transformers.DynamicCache(), transformers.DynamicCache()
    with torch.no_grad():
        if first != "empty":
            parallel.plain(ids, cache=plain)
            (parallel.plain if first == "whole" else parallel)(ids, cache=cache)
        kept, before = copy.deepcopy(cache), copy.deepcopy(plain)
        for begin in (0, 2, 4):
            found, returned = parallel(ids[:, begin : begin + 2], cache=cache)
            torch.testing.assert_close(found, parallel.plain(ids[:, begin : begin + 2], cache=plain)[0])
            assert returned is cache
            assert cache.get_seq_length() == plain.get_seq_length()
        torch.testing.assert_close(parallel(ids[:, 3:5], cache=kept)[0], parallel.plain(ids[:, 3:5], cache=before)[0])


class Silent(Decoder):
    """Returns no cache."""

    def forward(self, input_ids: Tensor, cache: Any) -> Tensor:
        return super().forward(input_ids, cache)[0]


def own_cache(transformers: Any) -> Any:
    class Mine(transformers.DynamicCache):
        pass

    return Mine()


@pytest.mark.parametrize("kind", [Silent, Decoder])
def test_a_cache_that_lacks_the_tokens_of_a_call_is_refused(kind: type[Decoder]) -> None:
    """The plain model would find them in it: where no cache comes out, or one of a class that cannot be changed."""
    transformers = pytest.importorskip("transformers")
    parallel, ids = sp.parallelize(kind(), compile=False), torch.arange(TOKENS)[None]
    cache = transformers.DynamicCache() if kind is Silent else own_cache(transformers)
    with torch.no_grad():
        parallel.plain(ids, cache=cache)
        kept = copy.deepcopy(cache)
        parallel(ids[:, :2], cache=cache)
        for stale in (cache, copy.deepcopy(cache)):
            with pytest.raises(
                InputError,
                match=r"passes a cache that an earlier call has gone on from: it lacks the tokens of that call",
            ):
                parallel(ids[:, 2:4], cache=stale)
        parallel(ids[:, :2], cache=kept)


class Dropping(nn.Module):
    """Leaves out layers, as models do at random; checkpoints all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.dropped = ()

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            if number not in self.dropped:
                x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False).tanh()
        return x.square().mean()


def test_a_pass_that_leaves_out_an_end_of_a_chain_is_refused() -> None:
    model, x = Dropping().double(), torch.randn(2, 7, 4, dtype=torch.float64)
    right = [torch.autograd.grad(model(x), model.layers[0].weight)[0]]
    model.dropped = (1,)
    right.append(torch.autograd.grad(model(x), model.layers[0].weight)[0])

    def rank(group: dist.ProcessGroup) -> list[str]:
        mine, said = copy.deepcopy(model), list[str]()
        mine.layers = sp.parallelize_chain(mine.layers, mesh=group, compile=False)
        for dropped in ((), (1,), (0,), (), (2,), (), ()):
            mine.dropped = dropped
            try:
                (found,) = torch.autograd.grad(mine(x), mine.layers[0].weight)
                if 2 not in dropped:
                    torch.testing.assert_close(found, right[bool(dropped)])
            except InputError as error:
                said.append(f"{dropped} {error}")
        with pytest.raises(SpError):
            mine.layers[0](x[:, :1])
        mine.dropped = ()
        torch.testing.assert_close(torch.autograd.grad(mine(x), mine.layers[0].weight)[0], right[0])
        return said

    for first, after in run_ranks(2, rank):
        assert first.startswith("(0,) layer 1 of a chain of 3 is called, and no layer 0 before it\n")
        assert after.startswith("() a pass through a chain of 3 layers has ended behind layer 1\n")
        assert "remedy: skip neither" in first
        assert "remedy: skip neither" in after
