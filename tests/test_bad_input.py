"""Bad input: a clear error on every rank, soon, and never a hang."""

import contextlib
import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import sp
from sp.models import GPT, GPTConfig
from sp.testing.ranks import run_ranks


def gpt():
    torch.manual_seed(0)
    return GPT(GPTConfig(vocab_size=61, max_length=32, layers=1, heads=2, width=16))


def ids(length, seed=0):
    return torch.randint(0, 61, (2, length), generator=torch.Generator().manual_seed(seed))


def messages(world, call):
    """What each rank's error says; fails if a rank raises none."""
    model = gpt()  # seeds race between threads

    def rank(group):
        parallel = sp.parallelize(copy.deepcopy(model), mesh=group, compile=False)
        with pytest.raises(sp.SpError) as caught:
            call(parallel, group.rank())
        return type(caught.value).__name__, str(caught.value)

    return run_ranks(world, rank)


def test_unknown_strategy_lists_the_known_ones():
    with pytest.raises(sp.StrategyError, match=r"'stripped'(.|\n)*allgather, double_ring, .*, usp_zigzag, zigzag"):
        sp.parallelize(gpt(), "stripped")


@pytest.mark.parametrize(("option", "value"), [("inputs", "shard"), ("outputs", "everywhere"), ("kernel", "fast")])
def test_unknown_option(option, value):
    with pytest.raises(sp.StrategyError, match=value):
        sp.parallelize(gpt(), **{option: value})


def test_parallelized_twice():
    parallel = sp.parallelize(gpt())
    for call in (sp.parallelize, sp.inspect):
        with pytest.raises(sp.StrategyError, match="parallelized already"):
            call(parallel)


def test_mesh_of_another_type():
    with pytest.raises(sp.StrategyError, match="mesh is a int"):
        sp.parallelize(gpt(), mesh=2)


def two_dimensional_mesh():
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "sp"))
    with pytest.raises(sp.StrategyError) as caught:
        sp.parallelize(gpt(), mesh=mesh)
    inner = sp.parallelize(gpt(), mesh=mesh["sp"], compile=False)
    return str(caught.value), float(inner(ids(8), labels=ids(8)).loss)


def test_mesh_of_two_axes(world2):
    for message, loss in world2.run(two_dimensional_mesh):
        assert "2 axes: ('dp', 'sp')" in message
        assert "mesh['sp']" in message
        assert loss == pytest.approx(float(gpt()(ids(8), labels=ids(8)).loss), rel=1e-5)


def test_world_larger_than_the_sequence():
    for kind, message in messages(4, lambda model, rank: model(ids(3))):
        assert kind == "InputError"
        assert "3 tokens cannot be spread over 4 ranks" in message


def test_inputs_that_differ_between_ranks():
    for kind, message in messages(3, lambda model, rank: model(ids(8, seed=int(rank == 1)))):
        assert kind == "RankMismatchError"
        assert "the contents of the inputs" in message
        assert "rank 2: " in message


def test_lengths_that_differ_between_ranks_at_a_late_call():
    def call(model, rank):
        for _ in range(5):
            model(ids(8))
        model(ids(8 + rank))

    for kind, message in messages(2, call):
        assert kind == "RankMismatchError"
        assert "[2, 8]" in message
        assert "[2, 9]" in message


def test_modes_that_differ_between_ranks():
    for kind, message in messages(2, lambda model, rank: model.train(rank == 0)(ids(8))):
        assert kind == "RankMismatchError"
        assert "train or eval" in message


def one_frozen(model, rank):
    model.head.weight.requires_grad_(rank != 1)
    model(ids(8))


def one_without_gradients(model, rank):
    with torch.set_grad_enabled(rank != 1):
        model(ids(8))


def one_in_no_sync(model, rank):
    with model.no_sync() if rank == 1 else contextlib.nullcontext():
        model(ids(8))


@pytest.mark.parametrize("call", [one_frozen, one_without_gradients, one_in_no_sync])
def test_gradients_that_differ_between_ranks(call):
    """Backward would wait for a rank that has nothing to say, or add what does not belong together."""
    for kind, message in messages(2, call):
        assert kind == "RankMismatchError"
        assert "which gradients there will be" in message
        assert "rank 1: " in message


def test_a_model_that_has_changed_on_one_rank():
    def call(model, rank):
        model(ids(8))
        model.mark = rank  # ranks may tell themselves apart
        model.blocks[0].mark = rank
        model(ids(8))
        model.blocks[0].mark = 2 * rank
        model(ids(8))

    for kind, message in messages(2, call):
        assert kind == "RankMismatchError"
        assert "what has changed in the model since it was captured: rank 0: blocks.0.mark = 0; rank 1: " in message


def test_an_error_of_many_bytes_reaches_the_others():
    name = "ö" * 3000
    found = messages(2, lambda model, rank: model(ids(8), **({name: object()} if rank == 1 else {})))
    assert "rank 1 could not take part" in found[0][1]


def test_one_rank_with_a_bad_call_tells_the_others():
    found = messages(3, lambda model, rank: model(ids(8), **({"labels": object()} if rank == 1 else {})))
    assert found[1][0] == "InputError"
    assert "argument 'labels' holds a object" in found[1][1]
    for kind, message in (found[0], found[2]):
        assert kind == "RankMismatchError"
        assert "rank 1 could not take part" in message


def test_float_ids():
    for kind, message in messages(2, lambda model, rank: model(ids(8).float())):
        assert kind == "UnsupportedModelError"
        assert "Long, Int" in message


def test_longer_than_the_position_table():
    for kind, message in messages(2, lambda model, rank: model(ids(33))):
        assert kind == "UnsupportedModelError"
        assert "32" in message


class Fixed(nn.Module):
    """A model that works for one length only."""

    def forward(self, x):
        return (x.view(2, 8, 4) * torch.ones(8, 1)).sum()


def test_specialised_length():
    with pytest.raises(sp.UnsupportedModelError, match="fixes its sequence length"):
        sp.parallelize(Fixed(), compile=False)(torch.ones(2, 8, 4))


def destroyed_group():
    group = dist.new_group([0, 1])
    parallel = sp.parallelize(gpt(), mesh=group, compile=False)
    parallel(ids(8))
    dist.destroy_process_group(group)
    with pytest.raises(sp.StrategyError) as caught:
        parallel(ids(8))
    return str(caught.value)


def test_group_that_was_destroyed(world2):
    for message in world2.run(destroyed_group):
        assert "does not exist in this process" in message


def test_nothing_captured_yet():
    with pytest.raises(sp.SpError, match="nothing has been captured yet"):
        sp.parallelize(gpt()).report()


def test_model_and_parameters_are_unchanged_after_an_error():
    model = gpt()
    before = copy.deepcopy(model.state_dict())
    parallel = sp.parallelize(model, compile=False)
    with pytest.raises(sp.SpError):
        parallel(ids(8).float())
    after = parallel(ids(8)).logits
    assert torch.equal(after, model(ids(8)).logits)
    assert all(
        torch.equal(value, after) for value, after in zip(before.values(), model.state_dict().values(), strict=True)
    )


class Anything(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return (x * self.weight).abs().sum()


UNUSUAL = {
    "sparse_coo": lambda: torch.ones(2, 8, 4).to_sparse(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(5, 4)]),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(2, 8, 4), 0.1, 0, torch.qint8),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", UNUSUAL)
def test_tensors_that_are_no_arrays(kind):
    with pytest.raises(sp.InputError, match=f"argument 'x' is a {kind} tensor"):
        sp.parallelize(Anything(), compile=False)(UNUSUAL[kind]())


def test_a_tensor_without_contents():
    with pytest.raises(sp.InputError, match="an input is on the meta device"):
        sp.parallelize(Anything(), compile=False)(torch.ones(2, 8, 4, device="meta"))


def test_complex_inputs_are_compared_too():
    x = torch.randn(2, 8, 4, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))
    model = Anything()

    def rank(group):
        return float(sp.parallelize(copy.deepcopy(model), mesh=group, compile=False)(x).detach())

    assert run_ranks(2, rank) == pytest.approx([float(model(x).detach())] * 2)
