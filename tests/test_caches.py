"""Keys and values between calls: each rank's own, gathered where asked; one graph for all lengths; little travels."""

import copy
import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import sp
from sp.caches import Kept, global_length, opened
from sp.errors import InputError, RankMismatchError, SpError, StrategyError, UnsupportedModelError
from sp.runtime import partials
from sp.testing.ranks import run_ranks
from tests.decoders import cache_name, decoder, prompt

pytestmark = pytest.mark.usefixtures("one_capture")

PROMPT, STEPS = 9, (1, 1, 3, 1)


def on_ranks(world: int, strategy: str, work: Callable[[Any], Any], family: str = "Llama", **options: Any) -> list[Any]:
    """`work` with the parallelized model of each rank."""
    models = [decoder(family) for _ in range(world)]

    def rank(group: dist.ProcessGroup) -> Any:
        return work(sp.parallelize(models[group.rank()], strategy, mesh=group, compile=False, **options))

    return run_ranks(world, rank)


def ask(model: Any, ids: Tensor, cache: Any = None, **more: Any) -> tuple[Any, Any]:
    """The output, and the cache in it."""
    name = cache_name(getattr(model, "model", model) if isinstance(model, sp.ParallelModule) else model)
    with torch.no_grad():
        output = model(input_ids=ids, use_cache=True, **({name: cache} if cache is not None else {}), **more)
    return output, output[name]


def went_on(model: Any, ids: Tensor, **more: Any) -> Tensor:
    """All logits: of a prompt, and of a few tokens at a time after it."""
    output, cache = ask(model, ids[:, :PROMPT], **more)
    logits, begin = [output.logits], PROMPT
    for count in STEPS:
        output, cache = ask(model, ids[:, begin : begin + count], cache)
        logits.append(output.logits)
        begin += count
    return torch.cat(logits, 1)


@pytest.mark.parametrize(
    ("world", "strategy"),
    [
        *((1, "striped"), (2, "ring"), (3, "zigzag")),
        pytest.param(2, "striped", marks=pytest.mark.slow),
        *(pytest.param(3, name, marks=pytest.mark.slow) for name in ("allgather", "ulysses")),
    ],
)
def test_prompt_and_steps(world: int, strategy: str) -> None:
    """Exact, whether one or three tokens are new; three graphs, whatever the length."""
    ids = prompt(PROMPT + sum(STEPS))
    right = went_on(decoder("Llama"), ids)

    def work(parallel: Any) -> tuple[Tensor, int]:
        return went_on(parallel, ids), len(parallel.executables)

    for logits, graphs in on_ranks(world, strategy, work):
        torch.testing.assert_close(logits, right, rtol=1e-11, atol=1e-11)
        assert graphs == 3


@pytest.mark.slow
def test_a_mask_of_old_and_new_tokens() -> None:
    ids, mask = prompt(PROMPT + 2), torch.ones(2, PROMPT + 2, dtype=torch.long)
    mask[0, :4] = 0

    def steps(model: Any) -> Tensor:
        output, cache = ask(model, ids[:, :PROMPT], attention_mask=mask[:, :PROMPT])
        output, _ = ask(model, ids[:, PROMPT:], cache, attention_mask=mask)
        return output.logits

    right = steps(decoder("Mistral"))
    for logits in on_ranks(2, "striped", steps, "Mistral"):
        torch.testing.assert_close(logits, right, rtol=1e-11, atol=1e-11)


@pytest.mark.slow
def test_local_and_gathered() -> None:
    """A cache is local unless it is asked for by name; whole ones go on as well, on ranks and on one device."""
    ids, plain = prompt(PROMPT + 1), decoder("Llama")
    right, whole = ask(plain, ids[:, :PROMPT])
    last, _ = ask(plain, ids[:, PROMPT:], copy.deepcopy(whole))

    def local(parallel: Any) -> None:
        _, cache = ask(parallel, ids[:, :PROMPT])
        assert (cache.length, cache.get_seq_length(), cache.get_mask_sizes(2, 0)) == (PROMPT, PROMPT, (PROMPT + 2, 0))
        for mine, layer in zip(cache.layers, whole.layers, strict=True):
            torch.testing.assert_close(mine.keys, parallel.layout.shard(layer.keys, 2))
            torch.testing.assert_close(mine.values, parallel.layout.shard(layer.values, 2))

    def gathered(parallel: Any) -> Tensor:
        _, cache = ask(parallel, ids[:, :PROMPT])
        torch.testing.assert_close(cache.layers[1].values, whole.layers[1].values)
        output, _ = ask(parallel, ids[:, PROMPT:], copy.deepcopy(cache))
        torch.testing.assert_close(output.logits, last.logits)
        return ask(parallel.plain, ids[:, PROMPT:], cache)[0].logits

    on_ranks(3, "zigzag", local)
    for logits in on_ranks(2, "striped", gathered, outputs={cache_name(plain): "global"}):
        torch.testing.assert_close(logits, last.logits)
    assert right.logits.shape[1] == PROMPT


@pytest.mark.parametrize(("strategy", "most"), [("striped", 0), ("ring", 2), ("zigzag", 2)])
def test_what_travels_in_a_step(strategy: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each layer the partial outputs; of the cache nothing when striped, else a token or two to a neighbour."""
    gathered, moved = list[int](), list[int]()
    move = importlib.import_module("sp.runtime.ops.move")  # the package has the op under this name
    gather, post = partials.all_gather, move.post_exchange

    def counted_gather(world: Any, x: Tensor, shapes: Any, what: str) -> list[Tensor]:
        gathered.append(x.numel() * x.element_size())
        return gather(world, x, shapes, what)

    def counted_post(world: Any, send: Tensor, *rest: Any, **named: Any) -> Any:
        moved.append(send.numel())
        return post(world, send, *rest, **named)

    monkeypatch.setattr(partials, "all_gather", counted_gather)
    monkeypatch.setattr(move, "post_exchange", counted_post)
    ids = prompt(PROMPT + 1)

    def work(parallel: Any) -> None:
        _, cache = ask(parallel, ids[:, :PROMPT])
        gathered.clear(), moved.clear()
        ask(parallel, ids[:, PROMPT:], cache)

    on_ranks(2, strategy, work)
    batch, heads, width, layers = 2, 4, 4, 2
    assert set(gathered) == {batch * heads * (width + 1) * 8}, "float64: out and lse of one query"
    token = batch * 2 * width * 8
    assert max(moved, default=0) <= most * token
    assert layers * 2 >= len(gathered) // 2


def test_the_report_names_what_travels() -> None:
    ids = prompt(PROMPT + 1)

    def work(parallel: Any) -> str:
        _, cache = ask(parallel, ids[:, :PROMPT])
        ask(parallel, ids[:, PROMPT:], cache)
        return str(parallel.report())

    report = on_ranks(2, "striped", work)[0]
    assert "_keys_0 (local, dim 2)" in report
    assert "global_length" not in report


def test_caches_are_refused_that_do_not_fit() -> None:
    ids = prompt(PROMPT + 1)

    def work(parallel: Any) -> list[str]:
        _, cache = ask(parallel, ids[:, :PROMPT])
        texts: list[str] = []
        for spoil in (_longer, _another_length):
            spoiled = spoil(copy.deepcopy(cache))
            with pytest.raises((InputError, RankMismatchError)) as caught:
                ask(parallel, ids[:, PROMPT:], spoiled)
            texts.append(str(caught.value))
        with pytest.raises(SpError, match="passed to the model itself"):
            ask(parallel.plain, ids[:, PROMPT:], copy.deepcopy(cache))
        with pytest.raises(SpError, match="tokens cannot be taken off a cache"):
            cache.crop(-1)
        return texts

    for longer, another in on_ranks(2, "striped", work):
        assert "a cache of 11 tokens holds" in longer
        assert "the layers of a cache hold" in another


def _longer(cache: Any) -> Any:
    cache.length += 2
    return cache


def _another_length(cache: Any) -> Any:
    cache.layers[1].keys = cache.layers[1].keys[:, :, 1:]
    return cache


def test_an_output_of_another_name() -> None:
    parallel = sp.parallelize(decoder("Llama"), compile=False, outputs={"past": "global"})
    with pytest.raises(StrategyError, match=r"no output 'past'(.|\n)*names among: logits, (cache|past_key_values)"):
        ask(parallel, prompt(PROMPT))


def test_two_caches_of_different_lengths() -> None:
    whole = [ask(decoder("Llama"), prompt(length))[1] for length in (3, 5)]
    assert global_length([whole[0], whole[0]]) == 3
    with pytest.raises(InputError, match=r"caches of \[3, 5\] tokens"):
        global_length(whole)


def test_layers_of_which_some_are_empty() -> None:
    transformers = pytest.importorskip("transformers")
    cache = transformers.DynamicCache()
    x = torch.zeros(1, 2, 3, 4)
    cache.update(x, x, 1)
    with pytest.raises(InputError, match="some layers of a cache are empty"):
        opened(cache)
    assert opened(transformers.DynamicCache()) == Kept()


class Limited(torch.nn.Module):
    """Does something else from a certain length of the cache on."""

    def __init__(self) -> None:
        super().__init__()
        self.e = torch.nn.Embedding(31, 8)

    def forward(self, input_ids: Tensor, cache: Any = None) -> Tensor:
        x = self.e(input_ids).unsqueeze(1)
        keys, values = cache.update(x, x, 0)
        out = torch.nn.functional.scaled_dot_product_attention(x, keys, values)
        return out * 2 if keys.shape[2] > 100 else out


def limited(length: int) -> Any:
    transformers = pytest.importorskip("transformers")
    cache = transformers.DynamicCache()
    cache.update(*[torch.randn(2, 1, length, 8)] * 2, 0)
    return cache


def test_a_graph_holds_for_the_lengths_that_its_model_treats_alike() -> None:
    parallel = sp.parallelize(Limited(), compile=False)
    for length in (6, 99, 100, 140):
        cache = limited(length)
        right = parallel.plain(prompt(1), copy.deepcopy(cache))
        torch.testing.assert_close(parallel(prompt(1), cache=cache), right)
    ranges = [(one.program.sequence.shortest, one.program.sequence.longest) for one in parallel.executables]
    assert ranges == [(2, 99), (100, None)]


class Even(Limited):
    def forward(self, input_ids: Tensor, cache: Any = None) -> Tensor:
        out = super().forward(input_ids, cache)
        return out * 3 if cache.get_seq_length() % 2 else out


def test_one_graph_must_hold_for_all_lengths() -> None:
    with pytest.raises(UnsupportedModelError, match=r"caches of every length(.|\n)*not proven: (.|\n)*remedy:"):
        sp.parallelize(Even(), compile=False)(prompt(1), cache=limited(6))


@pytest.mark.parametrize(
    ("family", "world", "strategy"),
    [("Mistral", 3, "zigzag"), pytest.param("Llama", 2, "striped", marks=pytest.mark.slow)],
)
def test_one_cache_object_from_call_to_call(family: str, world: int, strategy: str) -> None:
    """As transformers documents it: made by the caller, for this model's layers, and passed again and again."""
    transformers = pytest.importorskip("transformers")
    ids, plain = prompt(PROMPT + sum(STEPS)), decoder(family)

    def loop(model: Any, config: Any) -> list[Tensor]:
        cache, logits, begin = transformers.DynamicCache(config=config), list[Tensor](), 0
        for count in (PROMPT, *STEPS):
            output, returned = ask(model, ids[:, begin : begin + count], cache)
            assert returned is cache
            begin += count
            assert cache.get_seq_length() == begin
            logits.append(output.logits)
        return logits

    right = loop(plain, plain.config)
    for found in on_ranks(world, strategy, lambda parallel: loop(parallel, plain.config), family):
        for one, other in zip(found, right, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
