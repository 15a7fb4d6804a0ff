"""Activation checkpoints, the model's own and sp's: exact, nothing repeated that communicates, less memory."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper, checkpoint_wrapper
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import sp
from sp.models import Llama, LlamaConfig
from sp.passes.checkpoint import Region, with_regions
from sp.passes.pieces import block_paths, cut
from sp.pieces import assemble
from sp.runtime.ops.order import COMMUNICATING
from sp.testing import run_ranks
from sp.testing.compare import relative_error
from sp.testing.memory import most_alive_bytes
from sp.testing.ranks import ProcessWorld

LAYERS = 2


class Checkpointed(nn.Module):
    """A checkpoint of a function that is no module."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(lambda y: self.inner(y.sin()), x, use_reentrant=False)  # type: ignore[return-value]


class Dropping(Checkpointed):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(self.inner(x), 0.3, self.training)


def llama(around_mlp: type[Checkpointed] | None = None, layers: int = LAYERS) -> Llama:
    torch.manual_seed(0)
    model = Llama(LlamaConfig(vocab_size=61, layers=layers, heads=4, kv_heads=2, width=32))
    for block in model.blocks if around_mlp else ():
        block.mlp = around_mlp(block.mlp)
    return model.double()


def wrapped() -> Llama:
    model = llama()
    for at, block in enumerate(model.blocks):
        model.blocks[at] = checkpoint_wrapper(block)
    return model


def every_second() -> nn.Module:
    """transformers' own switch, for one of two layers."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": LAYERS, "vocab_size": 61}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    model = transformers.LlamaForCausalLM(config).double().train()
    model.activation_checkpointing_enable(every_n_layers=2)
    return model


def batch(length: int = 14) -> Tensor:
    return torch.randint(0, 61, (2, length), generator=torch.Generator().manual_seed(length))


class Count(TorchDispatchMode):
    """How often each op ran."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[str(func).removesuffix(".default")] += 1
        return func(*args, **(kwargs or {}))

    @property
    def communication(self) -> dict[str, int]:
        return {name: self.calls[f"sp.{name}"] for name in COMMUNICATING if self.calls[f"sp.{name}"]}


Step = tuple[float, list[Tensor], Count]


def step(run: nn.Module, parameters: list[nn.Parameter], ids: Tensor) -> Step:
    for parameter in parameters:
        parameter.grad = None
    with Count() as count:
        loss = run(ids, labels=ids).loss
        loss.backward()
    return loss.item(), [parameter.grad for parameter in parameters if parameter.grad is not None], count


def same(found: Step, right: Step, bound: float = 1e-12) -> bool:
    return abs(found[0] - right[0]) < bound and all(
        relative_error(a, b) < bound for a, b in zip(found[1], right[1], strict=True)
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], bool, int]] = {
    "blocks": (llama, True, LAYERS),
    "checkpoint_wrapper": (wrapped, False, LAYERS),
    "a part of each block": (lambda: llama(Checkpointed), False, LAYERS),
    "every second layer of transformers": (every_second, False, 1),
}


def regions_of(parallel: sp.ParallelModule) -> int:
    return sum(isinstance(module, Region) for module in parallel.executables[-1].run.modules())


@pytest.mark.parametrize("name", MODELS)
def test_exact_and_nothing_that_communicates_runs_twice(name: str) -> None:
    make, all_blocks, regions = MODELS[name]
    ids, models, plain, other = batch(), [make() for _ in range(3)], make(), make()
    right = step(plain, list(plain.parameters()), ids)
    kept = step(sp.parallelize(without_checkpoints(other), compile=False), list(other.parameters()), ids)[2]

    def rank(group: dist.ProcessGroup) -> None:
        model = models[group.rank()]
        parallel = sp.parallelize(model, mesh=group, compile=False, checkpoint=all_blocks)
        found = step(parallel, list(model.parameters()), ids)
        assert same(found, right)
        assert regions_of(parallel) == regions
        assert found[2].communication == kept.communication
        assert found[2].communication["attention"] == LAYERS
        assert found[2].calls["aten.mm"] > kept.calls["aten.mm"]  # which are computed again

    run_ranks(3, rank)


def without_checkpoints(model: nn.Module) -> nn.Module:
    for path, module in list(model.named_modules()):
        if hasattr(module, "gradient_checkpointing"):
            module.gradient_checkpointing = False
        if isinstance(module, CheckpointWrapper):
            model.set_submodule(path, module._checkpoint_wrapped_module)
        if isinstance(module, Checkpointed):
            module.forward = lambda x, inner=module.inner: inner(x.sin())
    return model


def test_recomputation_drops_out_the_same() -> None:
    ids, models = batch(), [llama(Dropping) for _ in range(4)]

    def rank(group: dist.ProcessGroup) -> None:
        found: list[Step] = []
        for index, every_block in enumerate((False, True)):
            model = models[2 * group.rank() + index]
            seeded = torch.Generator().manual_seed(5)
            parallel = sp.parallelize(
                model, mesh=group, compile=False, checkpoint=every_block, generator=seeded, sync_gradients=False
            )
            found.append(step(parallel, list(model.parameters()), ids))
        assert same(found[1], found[0], 1e-15)
        assert found[1][2].calls["sp.noise"] > found[0][2].calls["sp.noise"]

    run_ranks(2, rank)


def test_less_is_alive() -> None:
    """The peak of a step: of each block its input, and what attention keeps."""
    ids = batch(512)

    def peak(every_block: bool) -> int:
        parallel = sp.parallelize(llama(layers=6), compile=False, checkpoint=every_block, outputs={"logits": "none"})

        def train() -> None:
            parallel(ids, labels=ids).loss.backward()

        train()
        return most_alive_bytes(train)

    assert peak(True) < 0.4 * peak(False)


def test_without_gradients_nothing_is_kept() -> None:
    parallel, ids = sp.parallelize(llama(), compile=False, checkpoint=True), batch()
    with torch.no_grad():
        loss = parallel(ids, labels=ids).loss
    assert not loss.requires_grad
    assert loss.item() == pytest.approx(llama()(ids, labels=ids).loss.item(), rel=1e-12)


def names_of(loss: Callable[[], Tensor]) -> Counter[str]:
    """How often each op runs in the second of two steps; the first one compiles."""
    loss().backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        loss().backward()
    return Counter(event.name for event in profile.events())


def compiled(mode: Any, every_block: bool) -> tuple[float, Counter[str]]:
    """The worst error of a gradient, and how often each op ran."""
    model, right, ids = llama(), llama(), batch(21)
    parallel = sp.parallelize(model, compile=mode, checkpoint=every_block)
    names = names_of(lambda: parallel(ids, labels=ids).loss)
    right(ids, labels=ids).loss.mul(2).backward()  # of two steps
    pairs = zip(model.parameters(), right.parameters(), strict=True)
    return max(relative_error(a.grad, b.grad) for a, b in pairs), names  # type: ignore[arg-type]


PARTITIONED = {"backend": "aot_eager_decomp_partition"}  # as Inductor has it, without what takes long


@pytest.mark.slow
def test_torchs_partitioner_recomputes_but_repeats_no_attention() -> None:
    (error, names), (_, usual) = compiled(PARTITIONED, True), compiled(PARTITIONED, False)
    assert error < 1e-12
    check_calls(names, usual)


@pytest.mark.slow
def test_compiled_pieces_recompute_what_is_checkpointed_in_them() -> None:
    """As compile="blocks" has it; one of two blocks of equal code is a checkpoint."""
    models, calls = [llama(), llama()], list[Counter[str]]()
    models[1].blocks[1] = checkpoint_wrapper(models[1].blocks[1])
    for model, codes in zip(models, (1, 2), strict=True):
        parallel, ids = sp.parallelize(model, compile=False, example_args=(batch(),)), batch()
        bound = parallel.executables[0].bound
        parts = cut(bound, block_paths(bound.graph))
        assert len({id(piece.code) for piece in parts.pieces if piece.path}) == codes
        run = assemble(parts, bound, model, lambda code: torch.compile(with_regions(code), dynamic=True, **PARTITIONED))
        calls.append(names_of(lambda run=run, ids=ids: run(ids)[0].square().sum()))
    check_calls(calls[1], calls[0])
    grads = [[parameter.grad for parameter in model.parameters()] for model in models]
    assert all(relative_error(a, b) < 1e-12 for a, b in zip(*grads, strict=True))


def check_calls(names: Counter[str], usual: Counter[str]) -> None:
    assert {name: names[f"sp::{name}"] for name in COMMUNICATING} == {
        name: usual[f"sp::{name}"] for name in COMMUNICATING
    }
    assert names["sp::attention"] == LAYERS
    assert names["aten::mm"] + names["aten::addmm"] > usual["aten::mm"] + usual["aten::addmm"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", [True, "blocks"])
def test_compiled_by_inductor(mode: Any, world2: ProcessWorld) -> None:
    usual = world2.run(compiled, mode, False, timeout_s=400)
    for (error, names), (_, before) in zip(world2.run(compiled, mode, True, timeout_s=400), usual, strict=True):
        assert error < 1e-12
        check_calls(names, before)


def test_checkpoints_that_are_switched_on_later_are_seen_by_the_next_call() -> None:
    plain, model = llama(layers=1), llama(layers=1)
    ids = torch.randint(0, 61, (2, 9), generator=torch.Generator().manual_seed(0))
    parallel = sp.parallelize(model, compile=False)
    for wrap in (False, True):
        for at, block in enumerate(model.blocks if wrap else ()):
            model.blocks[at] = checkpoint_wrapper(block)
        parallel.zero_grad()
        parallel(ids, labels=ids).loss.backward()
        made = with_regions(parallel.executables[-1].bound)
        assert any(isinstance(each, Region) for each in made.modules()) == wrap
    plain(ids, labels=ids).loss.backward()
    for found, right in zip(parallel.parameters(), plain.parameters(), strict=True):
        assert relative_error(found.grad, right.grad) < 1e-12
