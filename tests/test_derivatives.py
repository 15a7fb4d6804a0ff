"""Every way to differentiate: backward is right by finite differences, what else there is works exactly or is refused
by name, on all ranks.

`gradcheck` on ranks: leaves are whole on each rank and so are outputs.  Then all ranks move the same element at the
same time, and run backward for the same output, in step.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

import sp
from sp.errors import SpError
from sp.mask import CAUSAL
from sp.models import Llama, LlamaConfig
from sp.runtime.ops.attention import attention
from sp.runtime.ops.placement import shard, unshard
from sp.testing import run_ranks
from sp.testing.compare import relative_error

pytestmark = pytest.mark.usefixtures("one_capture")

IDS = torch.tensor([[1, 5, 2, 7, 3, 3, 0], [4, 4, 6, 1, 0, 2, 5]])
Given = dict[str, Tensor]


def llamas(count: int) -> list[Llama]:
    models: list[Llama] = []
    for _ in range(count):
        torch.manual_seed(0)
        models.append(Llama(LlamaConfig(vocab_size=8, layers=1, heads=2, kv_heads=1, width=8)).double())
    return models


def on_ranks(world: int, run: Callable[[nn.Module, nn.Module], Any]) -> list[Any]:
    """`run(parallelized, model)` on each rank; its SpError as text."""
    models = llamas(world)

    def rank(group: dist.ProcessGroup) -> Any:
        model = models[group.rank()]
        try:
            return run(sp.parallelize(model, mesh=group, compile=False), model)
        except SpError as error:
            return str(error)

    return run_ranks(world, rank)


@pytest.mark.parametrize("kernel", ["flash", "dense"])
@pytest.mark.parametrize(("layout", "transport"), [("striped", "ring"), ("contiguous", "alltoall")])
def test_gradcheck_of_the_op_over_ranks(layout: str, transport: str, kernel: str) -> None:
    length = 3
    qkv = [torch.randn(1, heads, length, 2, dtype=torch.float64) for heads in (2, 1, 1)]

    def rank(group: dist.ProcessGroup) -> bool:
        place = (2, 2, 0, length, length, layout, group.group_name)

        def whole(*leaves: Tensor) -> Tensor:
            parts = [shard(x, 2, 1, *place[2:]) for x in leaves]
            facts = ([], str(CAUSAL), "", 0.5, length, length, layout, transport, kernel, group.group_name)
            return unshard(attention(*parts, *facts)[0], 2, 1, *place[2:])

        return torch.autograd.gradcheck(whole, [x.clone().requires_grad_() for x in qkv])

    assert all(run_ranks(2, rank, timeout_s=240))


class OneAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12, bias=False, dtype=torch.float64)

    def forward(self, x_BSD: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, 2)).transpose(1, 2) for part in self.qkv(x_BSD).chunk(3, -1))
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("strategy", ["striped", "ulysses"])
def test_gradcheck_of_a_parallelized_attention(strategy: str) -> None:
    x, models = torch.randn(1, 3, 4, dtype=torch.float64), [OneAttention() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())

    def rank(group: dist.ProcessGroup) -> bool:
        parallel = sp.parallelize(models[group.rank()], strategy, mesh=group, compile=False)
        leaves = [leaf.detach().clone().requires_grad_() for leaf in (x, models[0].qkv.weight)]
        return torch.autograd.gradcheck(
            lambda given, weight: functional_call(parallel, {"qkv.weight": weight}, (given,)), leaves
        )

    assert all(run_ranks(2, rank, timeout_s=240))


def penalized(run: nn.Module, model: nn.Module) -> list[Tensor]:
    """The gradients of a penalty on the gradient of the head, which lies behind the last attention."""
    (gradient,) = torch.autograd.grad(run(IDS, labels=IDS).loss, [model.head.weight], create_graph=True)
    return list(torch.autograd.grad(gradient.square().sum(), list(model.parameters())))


def test_a_second_derivative_behind_the_last_attention_is_exact() -> None:
    (model,) = llamas(1)
    with sdpa_kernel(SDPBackend.MATH):
        right = penalized(model, model)
    for found in on_ranks(2, penalized):
        assert max(map(relative_error, found, right)) < 1e-10


def penalized_throughout(run: nn.Module, model: nn.Module) -> None:
    gradients = torch.autograd.grad(run(IDS, labels=IDS).loss, list(model.parameters()), create_graph=True)
    torch.stack([gradient.square().sum() for gradient in gradients]).sum().backward()


def hessian_of_values(run: nn.Module, model: nn.Module) -> None:
    name = "blocks.0.attention.v.weight"
    torch.autograd.functional.hessian(
        lambda weight: functional_call(run, {name: weight}, (IDS,), {"labels": IDS}).loss,
        model.get_parameter(name).detach(),
    )


@pytest.mark.parametrize("run", [penalized_throughout, hessian_of_values])
def test_a_second_derivative_of_an_attention_is_refused_on_every_rank(run: Callable[..., Any]) -> None:
    for error in on_ranks(3, run):
        assert "the gradient of an attention is differentiated once more\n  needed: first derivatives" in str(error)
        assert "remedy: leave out create_graph=True" in error


def loss_of(run: nn.Module) -> Callable[[Given], Tensor]:
    return lambda given: functional_call(run, given, (IDS,), {"labels": IDS}).loss


TRANSFORMS: dict[str, Callable[[Callable[[Given], Tensor], Given], Any]] = {
    "grad": lambda loss, given: torch.func.grad(loss)(given),
    "vjp": torch.func.vjp,
    "jvp": lambda loss, given: torch.func.jvp(loss, (given,), (given,)),
    "jacrev": lambda loss, given: torch.func.jacrev(loss)(given),
    "jacfwd": lambda loss, given: torch.func.jacfwd(loss)(given),
    "hessian": lambda loss, given: torch.func.hessian(loss)(given),
    "vmap": lambda loss, given: torch.func.vmap(loss)({name: x[None] for name, x in given.items()}),
}


# Levels of forward mode belong to the process: threads would enter and leave them at the same time.
FORWARD = {"jvp", "jacfwd", "hessian"}


@pytest.mark.parametrize("world", [1, 2])
def test_transforms_of_torch_func_are_refused_on_every_rank(world: int) -> None:
    transforms = [transform for name, transform in TRANSFORMS.items() if world == 1 or name not in FORWARD]

    def run(parallel: nn.Module, model: nn.Module) -> list[str]:
        given, said = {name: x.detach() for name, x in model.named_parameters()}, list[str]()
        for transform in transforms:
            with pytest.raises(SpError, match=r"inside of a torch\.func transform(.|\n)*remedy") as caught:
                transform(loss_of(parallel), given)
            said.append(str(caught.value))
        return said

    assert all(len(said) == len(transforms) for said in on_ranks(world, run))


@pytest.mark.parametrize("no_grad", [True, False])
@pytest.mark.parametrize("what", ["parameters", "inputs"])
def test_forward_mode_is_refused(what: str, no_grad: bool) -> None:
    """Its tangents would be lost without a word.  In a world of one: its levels belong to the process, no thread."""
    model, x = OneAttention(), torch.randn(1, 3, 4, dtype=torch.float64)
    parallel = sp.parallelize(model, compile=False)
    with forward_ad.dual_level(), torch.set_grad_enabled(not no_grad):
        assert parallel(x).shape == x.shape  # no tangent: nothing is lost
        weight = model.qkv.weight.detach()
        dual = forward_ad.make_dual(weight, weight) if what == "parameters" else weight
        given = forward_ad.make_dual(x, x) if what == "inputs" else x
        with pytest.raises(SpError, match=r"differentiated in forward mode(.|\n)*needed: reverse mode(.|\n)*remedy"):
            functional_call(parallel, {"qkv.weight": dual}, (given,))


def batched(run: nn.Module, model: nn.Module) -> None:
    logits = run(IDS).logits
    gradients = torch.stack([torch.ones_like(logits)] * 2)
    torch.autograd.grad(logits, [model.head.weight], gradients, is_grads_batched=True)


def vectorized(run: nn.Module, model: nn.Module) -> None:
    torch.autograd.functional.jacobian(
        lambda head: functional_call(run, {"head.weight": head}, (IDS,)).logits,
        model.head.weight.detach(),
        vectorize=True,
    )


@pytest.mark.parametrize("run", [batched, vectorized])
def test_backward_for_a_batch_of_gradients_is_refused_on_every_rank(run: Callable[..., Any]) -> None:
    for error in on_ranks(2, run):
        assert "backward of a parallelized model is run for a batch of gradients at once\n  needed: one" in str(error)
        assert "remedy: call backward for each" in error


def test_deterministic_algorithms() -> None:
    """torch's switch, which refuses what may differ from run to run, refuses nothing of ours."""

    def run(parallel: nn.Module, model: nn.Module) -> Tensor:
        model.zero_grad()
        parallel(IDS, labels=IDS).loss.backward()
        return torch.cat([x.grad.flatten() for x in model.parameters() if x.grad is not None])

    torch.use_deterministic_algorithms(True)
    try:
        first, *others = on_ranks(3, run) + on_ranks(3, run)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(first, other) for other in others)
