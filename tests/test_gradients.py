"""Gradients that are summed later, or by others: no_sync, DDP, ZeRO-1."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import sp
from sp.gradients import sum_gradients
from sp.models import Llama, LlamaConfig
from sp.runtime.world import find_world
from sp.testing import ProcessWorld, run_ranks
from sp.testing.compare import relative_error

pytestmark = pytest.mark.usefixtures("one_capture")


def make(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return Llama(LlamaConfig(vocab_size=61, layers=2, heads=4, kv_heads=2, width=32)).to(dtype)


def batches(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 61, (2, 11 + number), generator=generator) for number in range(count)]


def single(count: int) -> list[Tensor]:
    model = make()
    for ids in batches(count):
        model(ids, labels=ids).loss.backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("before", [0, 1])
def test_no_sync_sums_once_what_several_backwards_found(before: int) -> None:
    """`before`: backwards that were summed as usual, of which the gradients are still there."""
    models = [make() for _ in range(3)]

    def work(group: dist.ProcessGroup) -> list[Tensor]:
        model = models[group.rank()]
        parallel = sp.parallelize(model, mesh=group, compile=False)
        first, rest = batches(4)[:before], batches(4)[before:]
        for ids in first:
            parallel(ids, labels=ids).loss.backward()
        with parallel.no_sync():
            for ids in rest:
                parallel(ids, labels=ids).loss.backward()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    for found in run_ranks(3, work):
        assert all(relative_error(a, b) < 1e-12 for a, b in zip(found, single(4), strict=True))


def penalty(model: nn.Module, call: nn.Module, ids: Tensor) -> Tensor:
    return call(ids, labels=ids).loss + sum(parameter.square().sum() for parameter in model.parameters())


def tied(model: nn.Module, call: nn.Module, ids: Tensor) -> Tensor:
    return (call(ids).logits @ model.head.weight @ model.tokens.weight.T).logsumexp(-1).mean()


def rest_alone(model: nn.Module, call: nn.Module, ids: Tensor) -> Tensor:
    """A backward that the parallelized model has no part in."""
    return model.tokens(ids).square().mean()


@pytest.mark.parametrize("outside", [penalty, tied, rest_alone])
def test_what_reaches_a_parameter_from_outside_counts_once(outside: Callable[..., Tensor]) -> None:
    """In `no_sync` as without it."""
    whole, models, (ids,) = make(), [make() for _ in range(3)], batches(1)
    for _ in range(2):
        outside(whole, whole, ids).backward()

    def work(group: dist.ProcessGroup) -> None:
        model = models[group.rank()]
        parallel = sp.parallelize(model, mesh=group, compile=False)
        outside(model, parallel, ids).backward()
        with parallel.no_sync():
            outside(model, parallel, ids).backward()

    run_ranks(3, work)
    right = {name: parameter.grad for name, parameter in whole.named_parameters() if parameter.grad is not None}
    for model in models:
        found = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
        assert found.keys() == right.keys()
        assert all(relative_error(found[name], right[name]) < 1e-12 for name in right)


def test_no_sync_leaves_the_sums_to_those_who_make_them_anyway() -> None:
    models = [make() for _ in range(2)]

    def work(group: dist.ProcessGroup) -> tuple[list[Tensor], list[Tensor]]:
        model, ids = models[group.rank()], batches(1)[0]
        parallel = sp.parallelize(model, mesh=group, compile=False, sync_gradients=False)
        with parallel.no_sync():
            parallel(ids, labels=ids).loss.backward()
        parts = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        sum_gradients(model.parameters(), find_world(group.group_name))
        return parts, [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    ranks = run_ranks(2, work)
    for _, found in ranks:
        assert all(relative_error(a, b) < 1e-12 for a, b in zip(found, single(1), strict=True))
    assert all(relative_error(a, b) > 0.1 for a, b in zip(ranks[0][0], ranks[1][0], strict=True))


def test_no_sync_ends_where_it_began_when_the_inside_fails() -> None:
    parallel, ids = sp.parallelize(make(), compile=False), batches(1)[0]
    parallel(ids, labels=ids).loss.backward()
    before = [parameter.grad for parameter in parallel.parameters()]
    with pytest.raises(sp.InputError), parallel.no_sync():
        parallel("no ids")
    assert parallel.options.sync_gradients
    assert all(parameter.grad is grad for parameter, grad in zip(parallel.parameters(), before, strict=True))


@pytest.mark.parametrize("inside", [True, False])
def test_backward_in_no_sync_of_a_forward_outside_and_the_other_way_about(inside: bool) -> None:
    """Gradients would be summed twice, or never."""
    parallel, ids = sp.parallelize(make(), compile=False), batches(1)[0]
    with parallel.no_sync():
        first = parallel(ids, labels=ids).loss
    second = parallel(ids, labels=ids).loss
    if inside:
        with (
            pytest.raises(sp.SpError, match="backward runs inside of no_sync, its forward ran outside"),
            parallel.no_sync(),
        ):
            second.backward()
    else:
        with pytest.raises(sp.SpError, match="backward runs outside of no_sync, its forward ran inside"):
            first.backward()


def test_sixteen_bits_are_summed_in_thirty_two() -> None:
    """1 and many parts of 1/256: each is lost when it is added to 1 in bfloat16."""
    parameters = [nn.Parameter(torch.zeros(3, dtype=torch.bfloat16)) for _ in range(5)]
    for rank, parameter in enumerate(parameters):
        parameter.grad = torch.full_like(parameter, 1.0 if rank == 0 else 2**-9)
    run_ranks(5, lambda group: sum_gradients([parameters[group.rank()]], find_world(group.group_name)))
    assert all(parameter.grad is not None and (parameter.grad > 1).all() for parameter in parameters)


def ddp(sync: bool) -> tuple[list[float], list[Tensor]]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "sp"))
    model = make()
    parallel = sp.parallelize(model, mesh=mesh["sp"], compile=False, sync_gradients=sync)
    data = DistributedDataParallel(parallel, process_group=mesh.get_group("dp"))
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.AdamW, process_group=mesh.get_group("dp"), lr=0.01
    )
    ids, losses = batches(2)[1].chunk(2)[mesh["dp"].get_local_rank()], []
    for _ in range(3):
        optimizer.zero_grad()
        loss = data(ids, labels=ids).loss
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    return losses, [parameter.detach() for parameter in model.parameters()]


def test_ddp_and_zero_over_another_axis(world4: ProcessWorld) -> None:
    """Each replica of the model sums over its sequence, DDP takes the mean over the replicas."""
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        found = [model(rows, labels=rows).loss for rows in batches(2)[1].chunk(2)]
        torch.stack(found).mean().backward()
        losses.append([each.item() for each in found])
        optimizer.step()
    for rank, (found, parameters) in enumerate(world4.run(ddp, True, timeout_s=300)):
        assert torch.allclose(torch.tensor(found), torch.tensor([step[rank // 2] for step in losses]), rtol=1e-12)
        # AdamW divides by the root of squares: where a gradient is tiny, its rounding is not.
        assert all(relative_error(a, b) < 1e-8 for a, b in zip(parameters, model.parameters(), strict=True))


class Loose(nn.Module):
    """A gain that trains, and is no parameter of the model."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.e, gain = nn.Embedding(7, 4), torch.ones(4, requires_grad=True)
        self.gains = [nn.Parameter(torch.ones(4)) if kind == "listed" else gain]
        if kind == "buffer":
            self.register_buffer("gain", gain)
        if kind == "attribute":
            self.gain = gain

    def forward(self, ids: Tensor) -> Tensor:
        return (self.e(ids) * getattr(self, "gain", self.gains[0])).sin().sum()


@pytest.mark.parametrize("kind", ["buffer", "attribute", "listed"])
def test_what_trains_and_is_no_parameter_is_refused(kind: str) -> None:
    """Each rank would keep the gradient of its own tokens."""
    with pytest.raises(sp.UnsupportedModelError) as caught:
        sp.parallelize(Loose(kind), compile=False)(torch.arange(6)[None])
    (refusal,) = caught.value.refusals
    assert "no parameter of the model, whose gradients alone are summed" in refusal.why
    assert refusal.source.endswith("in forward")


def test_a_second_derivative_of_an_attention_is_refused() -> None:
    model, ids = make(), batches(1)[0]
    loss = sp.parallelize(model, compile=False)(ids, labels=ids).loss
    gradients = torch.autograd.grad(loss, [next(model.parameters())], create_graph=True)
    with pytest.raises(sp.SpError, match="the gradient of an attention is differentiated once more"):
        gradients[0].square().sum().backward()
