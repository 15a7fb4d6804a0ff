"""transformers' `generate` on a parallelized model: the tokens of the original, greedy and sampled, padded or not."""

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import sp
from sp.errors import InputError, RankMismatchError, SpError, StrategyError
from sp.testing.ranks import ProcessWorld, run_mesh, run_ranks
from tests.decoders import FAMILIES, decoder, left_padded, prompt

pytestmark = pytest.mark.usefixtures("one_capture")

NEW = 6


def generated(model: Any, world: int, strategy: str, **call: Any) -> list[tuple[Tensor, int]]:
    """What each rank gets, and how many graphs it has captured for that."""

    models = [copy.deepcopy(model) for _ in range(world)]  # while one is traced, its parameters are not there

    def rank(mesh: dist.ProcessGroup | sp.MeshGroups) -> tuple[Tensor, int]:
        group = mesh.whole if isinstance(mesh, sp.MeshGroups) else mesh
        parallel = sp.parallelize(models[group.rank()], strategy, mesh=mesh, compile=False)
        tokens = parallel.generate(max_new_tokens=NEW, **call)
        return tokens, len(parallel.executables)

    return run_mesh((2, world // 2), rank) if sp.STRATEGIES[strategy].axes else run_ranks(world, rank)


def check(model: Any, world: int, strategy: str, graphs: int = 2, **call: Any) -> None:
    right = model.generate(max_new_tokens=NEW, **call)
    for tokens, captured in generated(model, world, strategy, **call):
        assert torch.equal(tokens, right)
        assert captured == graphs, "one for the prompt and one for all steps"


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy(family: str) -> None:
    model, strategy = decoder(family), ("ring", "striped", "zigzag")[len(family) % 3]
    check(model, 2, strategy, input_ids=prompt(9), do_sample=False)


@pytest.mark.parametrize(
    "family", ["Llama", *(pytest.param(name, marks=pytest.mark.slow) for name in ("Mistral", "GPT2"))]
)
def test_left_padded(family: str) -> None:
    check(decoder(family), 2, "striped", **left_padded(prompt(9)), do_sample=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "strategy"), [(1, "striped"), (3, "ring"), pytest.param(3, "zigzag", marks=pytest.mark.slow)]
)
def test_other_worlds(world: int, strategy: str) -> None:
    check(decoder("Llama", torch.float32), world, strategy, **left_padded(prompt(8)), do_sample=False)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["usp", pytest.param("double_ring", marks=pytest.mark.slow)])
def test_two_axes(strategy: str) -> None:
    """2 x 2: each rank's part of the cache is as the nested layout deals it."""
    check(decoder("Llama"), 4, strategy, input_ids=prompt(9), do_sample=False)


def test_beams() -> None:
    check(decoder("Llama"), 2, "striped", input_ids=prompt(9), do_sample=False, num_beams=3)


def test_a_prompt_in_chunks() -> None:
    """The first is a sequence; each other one is a few new tokens beside the cache."""
    check(decoder("Llama"), 2, "zigzag", graphs=3, input_ids=prompt(9), do_sample=False, prefill_chunk_size=4)


def test_without_a_cache() -> None:
    check(decoder("Llama"), 2, "striped", graphs=1, input_ids=prompt(9), do_sample=False, use_cache=False)


class Counter(nn.Module):
    """A model with a `generate` of its own, as people write it."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(7, 4), nn.Linear(4, 7)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.tokens(ids) + self.tokens(ids).mean(1, keepdim=True))

    def generate(self, ids: Tensor, count: int, do_sample: bool = False) -> Tensor:
        assert not do_sample
        for _ in range(count):
            ids = torch.cat([ids, self(ids)[:, -1:].argmax(-1)], 1)
        return ids


def test_a_generate_of_the_models_own() -> None:
    torch.manual_seed(0)
    model, ids = Counter().double(), prompt(5) % 7
    right, models = model.generate(ids, 4), [model, copy.deepcopy(model)]

    def rank(group: dist.ProcessGroup) -> tuple[Tensor, int]:
        parallel = sp.parallelize(models[group.rank()], mesh=group, compile=False)
        return parallel.generate(ids, 4, do_sample=False), parallel.executables[0].calls

    for tokens, calls in run_ranks(2, rank):
        assert torch.equal(tokens, right)
        assert calls == 4, "each forward ran on the ranks"


@pytest.mark.parametrize(
    ("forms", "said"),
    [
        ({"inputs": "local"}, "inputs='local'"),
        ({"inputs": "contiguous"}, "inputs='contiguous'"),
        ({"outputs": "local"}, "outputs='local'"),
        ({"outputs": {"logits": "none", "past_key_values": "global"}}, "outputs={'logits': 'none'"),
    ],
)
def test_parts_of_sequences_are_refused(forms: Any, said: str) -> None:
    """Each rank would take the whole prompt for its part, or its own part of the logits for the whole."""
    parallel = sp.parallelize(Counter(), compile=False, **forms)
    with pytest.raises(StrategyError) as caught:
        parallel.generate(prompt(5) % 7, 4)
    assert f"whole results, and the model was parallelized with {said}" in str(caught.value)
    assert "remedy: parallelize the model once more without it" in str(caught.value)


def test_the_model_is_left_as_it_is() -> None:
    model = decoder("Llama")
    before = set(model.__dict__)
    parallel = sp.parallelize(model, compile=False)
    parallel.generate(prompt(9), max_new_tokens=2, do_sample=False)
    assert set(model.__dict__) == before
    assert model.forward.__func__ is type(model).forward


def test_a_model_without_generate() -> None:
    with pytest.raises(SpError, match=r"Linear has no method generate(.|\n)*remedy:"):
        sp.parallelize(nn.Linear(2, 2)).generate()


def test_a_cache_that_is_not_exact_is_refused() -> None:
    parallel = sp.parallelize(decoder("Llama"), compile=False)
    with pytest.raises(InputError, match=r"a StaticCache of StaticLayer(.|\n)*needed:.*DynamicCache(.|\n)*remedy:"):
        parallel.generate(prompt(9), max_new_tokens=2, do_sample=False, cache_implementation="static")


def test_a_prompt_shorter_than_the_world() -> None:
    with pytest.raises(InputError, match="a sequence of 2 tokens cannot be spread over 3 ranks"):
        generated(decoder("Llama"), 3, "striped", input_ids=prompt(2), do_sample=False)


def sampled(family: str, seeds: list[int], compiled: bool) -> tuple[Tensor, Tensor]:
    """On one of several processes: tokens of the parallelized model and of the original, from one seed."""
    model = decoder(family, torch.float32)
    parallel = sp.parallelize(model, compile=compiled)
    how = {"max_new_tokens": NEW, "do_sample": True, "temperature": 1.3, "top_k": 20, **left_padded(prompt(9))}
    torch.manual_seed(seeds[dist.get_rank()])
    found = parallel.generate(**how)
    torch.manual_seed(seeds[0])
    return found, model.generate(**how)


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_sampled_in_processes(world2: ProcessWorld, compiled: bool) -> None:
    for found, right in world2.run(sampled, "Qwen3", [3, 3], compiled, timeout_s=400):
        assert torch.equal(found, right)


def refused(family: str, seeds: list[int]) -> str:
    with pytest.raises(RankMismatchError) as caught:
        sampled(family, seeds, compiled=False)
    return str(caught.value)


def test_ranks_that_would_sample_different_tokens(world2: ProcessWorld) -> None:
    for text in world2.run(refused, "Llama", [3, 4]):
        assert "their random states differ" in text
        assert "remedy: torch.manual_seed with one seed on all ranks" in text
