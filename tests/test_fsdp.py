"""FSDP2 under a parallelized model, in real processes: loss and every gradient of single device."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import sp
from sp.models import Llama, LlamaConfig
from sp.testing import ProcessWorld, run_processes
from sp.testing.compare import relative_error


class Pooled(nn.Module):
    """Parameters that meet tokens (e, q), what is the same on every rank (head), both (gain), and none (free)."""

    def __init__(self) -> None:
        super().__init__()
        self.e, self.positions = nn.Embedding(61, 16), nn.Parameter(torch.randn(64, 16))
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.head, self.gain, self.free = nn.Linear(16, 5), nn.Parameter(torch.randn(16)), nn.Parameter(torch.randn(3))

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.e(ids) + self.positions[: ids.shape[1]]
        for block in self.blocks:
            q = block(x).unflatten(-1, (2, 8)).transpose(1, 2)
            x = x + F.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).flatten(2) * self.gain.sin()
        return F.cross_entropy(self.head(x.mean(1) * self.gain), labels[:, 0] % 5) + self.free.square().sum()


def llama() -> nn.Module:
    return Llama(LlamaConfig(vocab_size=61, layers=3, heads=4, kv_heads=2, width=32))


MODELS: dict[str, Callable[[], nn.Module]] = {"llama": llama, "pooled": Pooled}


def make(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]().double()


def batch(rows: int, length: int = 17) -> Tensor:
    return torch.randint(0, 61, (rows, length), generator=torch.Generator().manual_seed(3))


def loss_of(output: object) -> Tensor:
    return output if isinstance(output, Tensor) else output.loss  # type: ignore[attr-defined]


def sum_only(model: nn.Module, replicas: int) -> None:
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(float(replicas))


@dataclass(frozen=True)
class Case:
    """How the parameters of a model are sharded over ranks (dp, sp)."""

    shard: str
    model: str = "llama"
    dp: int = 2
    sp: int = 2
    compiled: bool = False
    checkpoint: bool = False


def wire(case: Case, model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    compiled = case.compiled
    match case.shard:
        case "one call":
            return sp.fully_shard(model, mesh, compile=compiled, checkpoint=case.checkpoint)
        case "wrapped":  # the model has checkpoints of its own
            for at, block in enumerate(model.blocks):  # type: ignore[arg-type]
                model.blocks[at] = checkpoint_wrapper(block)  # type: ignore[operator]
            return sp.fully_shard(model, mesh, compile=compiled)
        case "over dp":  # sp sums by itself, FSDP takes the mean over dp
            for block in model.blocks:  # type: ignore[union-attr]
                fully_shard(block, mesh=mesh["dp"])
            fully_shard(model, mesh=mesh["dp"])
            sum_only(model, case.dp)
            return sp.parallelize(model, mesh=mesh["sp"], compile=compiled, checkpoint=case.checkpoint)
        case "after":
            parallel = sp.parallelize(model, mesh=mesh["sp"], compile=compiled, sync_gradients=False)
            for module in (*parallel.blocks, parallel):
                fully_shard(module, mesh=mesh._flatten("flat"))
            sum_only(parallel, case.dp)
            return parallel
        case _:
            where = mesh if case.shard == "hybrid" else mesh._flatten("flat")
            policy = CPUOffloadPolicy(pin_memory=False) if case.shard == "offloaded" else OffloadPolicy()
            for module in sharded_parts(case.shard, model):
                fully_shard(module, mesh=where, offload_policy=policy)
            sum_only(model, case.dp)
            return sp.parallelize(model, mesh=mesh["sp"], compile=compiled, sync_gradients=False)


def sharded_parts(shard: str, model: nn.Module) -> list[nn.Module]:
    match shard:
        case "hybrid" | "offloaded":  # hybrid: copies along dp, shards along sp
            return [*model.blocks, model]  # type: ignore[misc]
        case "every part":
            parts = [part for part in model.children() if not isinstance(part, nn.ModuleList)]
            return [*model.blocks, *(part for part in parts if list(part.parameters())), model]  # type: ignore[misc]
        case "root alone":
            return [model]
        case other:
            raise ValueError(other)


def train(case: Case) -> tuple[list[float], list[Tensor], list[Tensor]]:
    """Losses of two steps, the first step's gradients and the parameters after both."""
    mesh = init_device_mesh("cpu", (case.dp, case.sp), mesh_dim_names=("dp", "sp"))
    model = make(case.model)
    parallel = wire(case, model, mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mine = batch(2 * case.dp).chunk(case.dp)[mesh["dp"].get_local_rank()]
    losses, first = [], list[Tensor]()
    for _ in range(2):
        optimizer.zero_grad()
        loss = loss_of(parallel(mine, labels=mine))
        loss.backward()
        losses.append(loss.item())
        first = first or [whole(parameter.grad).clone() for parameter in model.parameters()]
        optimizer.step()
    return losses, first, [whole(parameter) for parameter in model.parameters()]


def whole(value: Tensor | None) -> Tensor:
    assert isinstance(value, DTensor)
    return value.full_tensor().detach()


def single(case: Case) -> tuple[list[list[float]], list[Tensor], list[Tensor]]:
    model, losses, first = make(case.model), list[list[float]](), list[Tensor]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        found = [loss_of(model(rows, labels=rows)) for rows in batch(2 * case.dp).chunk(case.dp)]
        torch.stack(found).mean().backward()
        losses.append([each.item() for each in found])
        first = first or [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        optimizer.step()
    return losses, first, [parameter.detach() for parameter in model.parameters()]


QUICK = [
    *(Case("one call"), Case("one call", "pooled"), Case("over dp"), Case("root alone", "pooled"), Case("after")),
    *(Case("one call", checkpoint=True), Case("wrapped")),
]
SLOW = [
    Case("one call", compiled=True),
    *(Case("one call", compiled=True, checkpoint=True), Case("over dp", checkpoint=True), Case("offloaded")),
    *(Case(shard, model) for shard in ("over dp", "hybrid", "root alone", "after") for model in MODELS),
    Case("every part"),
    Case("one call", dp=1, sp=3),
]
CASES = [*QUICK, *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW if case not in QUICK)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_loss_gradients_and_steps_are_those_of_one_device(case: Case, world4: ProcessWorld) -> None:
    losses, grads, parameters = single(case)
    if case.dp * case.sp == 4:
        ranks = world4.run(train, case, timeout_s=300)
    else:
        ranks = run_processes(case.dp * case.sp, train, case, timeout_s=300)
    for rank, (found, found_grads, found_parameters) in enumerate(ranks):
        expected = [step[rank // case.sp] for step in losses]
        assert torch.allclose(torch.tensor(found), torch.tensor(expected), rtol=1e-12)
        assert all(relative_error(a, b) < 1e-12 for a, b in zip(found_grads, grads, strict=True))
        assert all(relative_error(a, b) < 1e-12 for a, b in zip(found_parameters, parameters, strict=True))


def counted(checkpoint: bool) -> Counter[str]:
    """How often each op ran in a second step."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "sp"))
    parallel, ids = sp.fully_shard(make("llama"), mesh, compile=False, checkpoint=checkpoint), batch(1)
    loss_of(parallel(ids, labels=ids)).backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        loss_of(parallel(ids, labels=ids)).backward()
    return Counter(event.name for event in profile.events())


KERNEL = "aten::_scaled_dot_product_flash_attention_for_cpu"


@pytest.mark.slow
def test_recomputation_gathers_no_parameter_and_sends_no_key_twice(world4: ProcessWorld) -> None:
    usual, again = (world4.run(counted, checkpoint, timeout_s=300)[0] for checkpoint in (False, True))
    for name in ("c10d::_allgather_base_", "c10d::_reduce_scatter_base_", "c10d::send", "c10d::recv_", KERNEL):
        assert again[name] == usual[name] > 0, name
    assert again["aten::mm"] > usual["aten::mm"]


class Crossed(nn.Module):
    """A module that runs between the parts of another."""

    def __init__(self) -> None:
        super().__init__()
        self.e, self.a, self.b = nn.Embedding(61, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, ids: Tensor) -> Tensor:
        return self.a(self.b(self.a(self.e(ids)).sin()).sin())


def refused(kind: str) -> str:
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("sp",))
    if kind == "axis":
        return message(lambda: sp.fully_shard(llama(), mesh, axis="dp"))
    model = Crossed() if kind == "crossed" else llama()
    parts = [model.get_submodule(path) for path in (("a", "b") if kind == "crossed" else ("blocks.0.mlp", "blocks.0"))]
    if kind == "tensor parallel":
        parallelize_module(model, mesh, {"head": ColwiseParallel()})
    else:
        for part in parts:
            fully_shard(part, mesh=mesh)
    return message(lambda: sp.parallelize(model, mesh=mesh, compile=False)(batch(1)))


def message(run: Callable[[], object]) -> str:
    with pytest.raises(sp.StrategyError) as caught:
        run()
    return str(caught.value)


REFUSALS = {
    "axis": "the mesh has the axes ['sp']\n  needed: one called 'dp'",
    "crossed": "'a' cannot run by itself: 'b' runs between its parts",
    "nested": "fully_shard was called on 'blocks.0' and on 'blocks.0.mlp' inside of it",
    "tensor parallel": "the parameter 'head.weight' is a DTensor, and no fully_shard put it there",
}


def test_what_does_not_compose_is_refused() -> None:
    for kind, said in zip(REFUSALS, run_processes(1, all_refused)[0], strict=True):
        assert REFUSALS[kind] in said


def all_refused() -> list[str]:
    return [refused(kind) for kind in REFUSALS]


def mixed(parallel: bool) -> tuple[float, list[Tensor]]:
    """A step in bfloat16 with parameters in float32: under sp on two ranks, or FSDP alone on each."""
    mesh = init_device_mesh("cpu", (1, 2) if parallel else (2, 1), mesh_dim_names=("dp", "sp"))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = make("llama").float()
    run = model
    for module in (*model.blocks, model):  # type: ignore[misc]
        fully_shard(module, mesh=mesh._flatten("flat"), mp_policy=policy)
    sum_only(model, 1 if parallel else 2)
    if parallel:
        run = sp.parallelize(model, mesh=mesh["sp"], compile=False, sync_gradients=False)
    ids = batch(2)
    loss = loss_of(run(ids, labels=ids))
    loss.backward()
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    return loss.item(), [whole(parameter.grad) for parameter in model.parameters()]


def test_a_policy_of_mixed_precision_is_fsdp_s_own(world2: ProcessWorld) -> None:
    """Both are off the float64 gradients by as much: what bfloat16 rounds."""
    model, ids = make("llama"), batch(2)
    loss = loss_of(model(ids, labels=ids))
    exact = torch.autograd.grad(loss, list(model.parameters()))
    (found_loss, found), (usual_loss, usual) = (world2.run(mixed, parallel)[0] for parallel in (True, False))
    assert abs(found_loss - loss.item()) < 2 * abs(usual_loss - loss.item()) + 0.01
    for mine, theirs, right in zip(found, usual, exact, strict=True):
        assert mine.dtype == torch.float32
        assert relative_error(mine.double(), right) < 2 * relative_error(theirs.double(), right) + 1e-3


def all_unwise() -> list[str]:
    return [unwise(kind) for kind in UNWISE]


def unwise(kind: str) -> str:
    """What FSDP and sp would sum twice, or divide by the ranks of a sequence; and what is found of it."""
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "sp"))
    model = make("llama")
    for module in (*model.blocks, model):  # type: ignore[misc]
        fully_shard(module, mesh=mesh._flatten("flat"))
    if kind != "divided":
        sum_only(model, 1)
    sync, validate = kind == "twice", kind == "validated"
    parallel = sp.parallelize(model, mesh=mesh["sp"], compile=False, sync_gradients=sync, validate=validate)
    return message(lambda: parallel(batch(1)))


UNWISE = {
    "divided": "fully_shard of the model takes the mean over 2 ranks, 2 of which share a sequence",
    "twice": "fully_shard of the model sums over 2 ranks that share a sequence, and so does sp",
    "validated": "fully_shard was called on the model: no copy of it runs on one rank",
}


def test_factors_that_fit_no_one_are_refused(world2: ProcessWorld) -> None:
    for rank in world2.run(all_unwise):
        for said, needed in zip(rank, UNWISE.values(), strict=True):
            assert needed in said


def late() -> tuple[float, list[Tensor]]:
    """Sharded when the model has run before."""
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "sp"))
    model, ids = make("llama"), batch(2)
    parallel = sp.parallelize(model, mesh=mesh["sp"], compile=False, sync_gradients=False)
    parallel(ids, labels=ids)
    for module in (*model.blocks, model):  # type: ignore[misc]
        fully_shard(module, mesh=mesh._flatten("flat"))
    sum_only(model, 1)
    loss = parallel(ids, labels=ids).loss
    loss.backward()
    return loss.item(), [whole(parameter.grad) for parameter in model.parameters()]


def test_fully_shard_of_a_model_that_has_run(world2: ProcessWorld) -> None:
    model, ids = make("llama"), batch(2)
    loss = loss_of(model(ids, labels=ids))
    exact = torch.autograd.grad(loss, list(model.parameters()))
    for found_loss, found in world2.run(late):
        assert abs(found_loss - loss.item()) < 1e-12
        assert all(relative_error(mine, right) < 1e-12 for mine, right in zip(found, exact, strict=True))


def accumulated() -> list[Tensor]:
    """FSDP over dp alone, and sums along the sequence at the end of `no_sync`."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "sp"))
    model = make("llama")
    for module in (*model.blocks, model):  # type: ignore[misc]
        fully_shard(module, mesh=mesh["dp"])
    sum_only(model, 2)
    parallel, mine = sp.parallelize(model, mesh=mesh["sp"], compile=False), batch(4)
    mine = mine.chunk(2)[mesh["dp"].get_local_rank()]
    with parallel.no_sync():
        for row in mine:
            parallel(row[None], labels=row[None]).loss.backward()
    return [whole(parameter.grad) for parameter in model.parameters()]


def test_no_sync_beside_fsdp_over_another_axis(world4: ProcessWorld) -> None:
    model = make("llama")
    for row in batch(4):
        (loss_of(model(row[None], labels=row[None])) / 2).backward()
    for found in world4.run(accumulated):
        pairs = zip(found, model.parameters(), strict=True)
        assert all(relative_error(mine, right.grad) < 1e-12 for mine, right in pairs if right.grad is not None)
