"""Modes inside of a model and around its call: no_grad, autocast, inference mode, copies, torch.func, adapters."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import sp
from sp.errors import SpError, UnsupportedModelError
from sp.testing.compare import errors_between, relative_error, run_once
from sp.testing.ranks import run_ranks

pytestmark = pytest.mark.usefixtures("one_capture")

IDS = torch.randint(0, 31, (2, 11), generator=torch.Generator().manual_seed(0))
BF16 = torch.bfloat16


class Block(nn.Module):
    """Embedding, one attention, a head and a loss; what happens to the hidden states is given."""

    def __init__(self, between: Callable[..., Tensor] | None = None, width: int = 16, shift: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.e = nn.Embedding(31, width)
        self.norm = nn.RMSNorm(width)
        self.qkv, self.out, self.head = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Linear(width, 31)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, width), persistent=False)
        self.between, self.shift = between, shift

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> Any:
        x = self.e(ids if self.shift is None else self.shift(ids)) * self.scale
        if self.between is not None:
            x = self.between(self, x)
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        logits = self.head(x)
        if labels is None:
            return logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten()), logits


def parallel_error(model: nn.Module, world: int = 2, call: Callable[..., Any] | None = None, **options: Any) -> float:
    """The worst relative error of outputs and gradients against the model itself; each rank calls `call(model)`."""
    call = call or (lambda one: run_once(one, (IDS,), {}))
    right = call(copy.deepcopy(model))

    def rank(group: Any) -> float:
        parallel = sp.parallelize(copy.deepcopy(model), mesh=group, **{"compile": False, **options})
        errors = errors_between(call(parallel), right)
        return max(errors.outputs, errors.gradients)

    return max(run_ranks(world, rank))


# In-place changes, from labels to logits.


def bart_shift(ids: Tensor) -> Tensor:
    shifted = ids.new_zeros(ids.shape)
    shifted[:, 1:] = ids[:, :-1].clone()
    shifted[:, 0] = 2
    shifted.masked_fill_(shifted == 7, 1)
    return shifted


def t5_shift(ids: Tensor) -> Tensor:
    shifted = ids.new_zeros(ids.shape)
    shifted[..., 1:] = ids[..., :-1].clone()
    shifted[..., 0] = 3
    return shifted.masked_fill_(shifted == 5, 0)


def in_place(m: Block, x: Tensor) -> Tensor:
    x += 1
    h = m.norm(x).mul_(2).clone()
    h[..., :3] = x[..., 3:6]
    h[..., 5] = 0
    h[:, 0] = 0.5
    return F.relu_(h) + x


@pytest.mark.parametrize("shift", [bart_shift, t5_shift])
def test_label_shift(shift: Callable[[Tensor], Tensor]) -> None:
    assert parallel_error(Block(shift=shift).double(), 3) < 1e-11


def test_activations_changed_in_place() -> None:
    assert parallel_error(Block(in_place).double(), 3) < 1e-11


@pytest.mark.slow
def test_changed_in_place_and_compiled() -> None:
    assert parallel_error(Block(in_place, shift=bart_shift).double(), compile={"backend": "aot_eager"}) < 1e-11


# Regions of grad modes inside of the model.


def no_grad(m: Block, x: Tensor) -> Tensor:
    with torch.no_grad():
        h = m.out(x)
        with torch.enable_grad():
            g = m.norm(x) * h
        mean, spread = (h * 2).chunk(2, -1)
    return x + g + torch.cat([spread * x[..., :8], mean], -1)


@torch.no_grad()
def decorated(m: Block, x: Tensor) -> Tensor:
    return m.out(x)


def set_flag(m: Block, x: Tensor) -> Tensor:
    with torch.set_grad_enabled(False):
        h = m.out(x)
    torch.set_grad_enabled(False)
    h = h + m.norm(x)
    torch.set_grad_enabled(True)
    return x * h


def inside_autocast(m: Block, x: Tensor) -> Tensor:
    """torch.export loses this no_grad."""
    with torch.autocast("cpu", enabled=False):
        with torch.no_grad():
            h = m.out(x)
        return x + h * m.norm(x)


def kept_without_gradient(m: Block, x: Tensor) -> Tensor:
    return x.detach() + m.norm(x)


GRAD_MODES = [no_grad, decorated, set_flag, inside_autocast, kept_without_gradient]


@pytest.mark.parametrize("between", GRAD_MODES)
def test_grad_modes_inside(between: Callable[..., Tensor]) -> None:
    assert parallel_error(Block(between).double(), 3) < 1e-11


def test_grad_modes_compiled() -> None:
    assert parallel_error(Block(no_grad).double(), compile={"backend": "aot_eager"}) < 1e-11


def inference(m: Block, x: Tensor) -> Tensor:
    with torch.inference_mode():
        return x + m.out(x)


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


REFUSED: list[tuple[Callable[..., Tensor], str]] = [
    (inference, "torch.inference_mode"),
    (lambda m, x: Rounded.apply(x), "Rounded.apply"),
    (lambda m, x: checkpoint(m.out, x, use_reentrant=True), "CheckpointFunction.apply"),
]


@pytest.mark.parametrize(("between", "message"), REFUSED)
def test_what_export_drops_is_refused(between: Callable[..., Tensor], message: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        sp.inspect(Block(between), (IDS,))
    assert message in str(caught.value)
    assert "test_modes.py" in str(caught.value)
    assert "remedy" in str(caught.value)


def test_checkpoint_without_reentry() -> None:
    model = Block(lambda m, x: checkpoint(m.out, x, use_reentrant=False)).double()
    assert parallel_error(model) < 1e-11


# Autocast, inside and around.


def off(m: Block, x: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        return x.float() + m.norm(m.out(x.float()))


def on(m: Block, x: Tensor) -> Tensor:
    with torch.autocast("cpu", BF16):
        h = m.out(x)
        with torch.no_grad():
            g = m.out(x)
        with torch.autocast("cpu", enabled=False):
            h = h.float() * m.norm(m.out(x))
        return x + h + m.out(torch.cat([h[..., :8], g[..., 8:]], -1))


def under_autocast(model: nn.Module) -> Any:
    with torch.autocast("cpu", BF16):
        return run_once(model, (IDS,), {})


@pytest.mark.parametrize("between", [None, off, on])
@pytest.mark.parametrize("call", [None, under_autocast])
def test_autocast(between: Any, call: Any) -> None:
    """In 16 bits, as close as two orders of summation are; a cast too many or too few is ten times farther."""
    model = Block(between)
    assert parallel_error(model, 1, call) < 1e-6
    assert parallel_error(model, 2, call) < 1e-2


def test_autocast_is_captured_by_mode() -> None:
    model = Block(off)
    parallel = sp.parallelize(model, compile=False)
    plain = parallel(IDS)
    with torch.autocast("cpu", BF16):
        assert torch.equal(parallel(IDS), model(IDS))
        assert torch.is_autocast_enabled("cpu")
    assert torch.equal(parallel(IDS), plain)
    assert len(parallel.executables) == 2


@pytest.mark.slow
def test_autocast_compiled() -> None:
    assert parallel_error(Block(off), 2, under_autocast, compile={"backend": "aot_eager"}) < 1e-2


# Modes around the call.


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("first", [True, False])
def test_called_without_gradients(mode: Any, first: bool) -> None:
    """Captured under the mode or before it: one capture serves both."""
    model = Block(no_grad).double()
    expected = model(IDS).detach()

    def rank(group: Any) -> bool:
        local = copy.deepcopy(model)
        parallel = sp.parallelize(local, mesh=group, compile=False)
        if not first:
            parallel(IDS)
        with mode():
            out = parallel(IDS)
        assert relative_error(out.clone(), expected) < 1e-12
        assert not out.requires_grad
        errors = errors_between(run_once(parallel, (IDS,), {}), run_once(local, (IDS,), {}))
        assert len(parallel.executables) == 1
        return errors.within(1e-11)

    assert all(run_ranks(2, rank))


def test_parameters_frozen_before_and_after_capture() -> None:
    def call(model: nn.Module) -> Any:
        for name in ("e.weight", "qkv.bias"):
            model.get_parameter(name).requires_grad_(False)
        first = run_once(model, (IDS,), {})
        assert "e.weight" not in first.gradients
        for name in ("e.weight", "qkv.bias"):
            model.get_parameter(name).requires_grad_(True)
        model.get_parameter("head.weight").requires_grad_(False)
        return run_once(model, (IDS,), {})

    assert parallel_error(Block().double(), 2, call) < 1e-11


class Adapter(nn.Module):
    """LoRA: a frozen base and two small matrices."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(4, base.in_features))
        self.b = nn.Parameter(torch.randn(base.out_features, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(x, self.a), self.b)


def test_adapters_and_tied_weights() -> None:
    model = Block().requires_grad_(False)
    model.qkv = Adapter(model.qkv)
    model.head.weight = model.e.weight
    model.head.weight.requires_grad_(True)
    assert parallel_error(model.double(), 3) < 1e-11


def test_training_and_evaluation() -> None:
    model = Block(lambda m, x: F.dropout(x, 0.5, m.training, inplace=True)).double().eval()
    assert parallel_error(model) < 1e-11
    assert "sp.noise" in sp.inspect(model.train(), (IDS,)).graph_table()


def test_copies_before_and_after_a_call() -> None:
    def call(model: nn.Module) -> Any:
        model = copy.deepcopy(model)
        run_once(model, (IDS,), {})
        return run_once(copy.deepcopy(model), (IDS,), {})

    assert parallel_error(Block().double(), 2, call) < 1e-11


# torch.func


def other_parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() * 1.5 for name, p in model.named_parameters()}


def test_functional_call() -> None:
    """Other parameters for one call, and their gradients; then the model's own again."""
    model = Block().double()
    given = {name: p.requires_grad_() for name, p in other_parameters(model).items()}
    expected = torch.func.functional_call(model, given, (IDS,))
    right = torch.autograd.grad(expected.square().mean(), list(given.values()))

    def rank(group: Any) -> float:
        parallel = sp.parallelize(copy.deepcopy(model), mesh=group, compile=False)
        mine = {name: p.requires_grad_() for name, p in other_parameters(model).items()}
        out = torch.func.functional_call(parallel, mine, (IDS,))
        found = torch.autograd.grad(out.square().mean(), list(mine.values()))
        own = relative_error(parallel(IDS), model(IDS))
        return max(own, relative_error(out, expected), *map(relative_error, found, right))

    assert max(run_ranks(2, rank)) < 1e-10


@pytest.mark.parametrize("transform", ["grad", "vmap"])
def test_func_transforms(transform: str) -> None:
    """Exact, or a clear error; never silently wrong."""
    model = Block().double()

    def loss(one: nn.Module, given: dict[str, Tensor], ids: Tensor) -> Tensor:
        return torch.func.functional_call(one, given, (ids,)).square().mean()

    parallel = sp.parallelize(copy.deepcopy(model), compile=False)
    calls: dict[str, Callable[[], Any]] = {
        "grad": lambda: torch.func.grad(lambda given: loss(parallel, given, IDS))(other_parameters(model)),
        "vmap": lambda: torch.func.vmap(lambda ids: loss(parallel, other_parameters(model), ids))(IDS[None]),
    }
    with pytest.raises(SpError, match=r"inside of a torch\.func transform(.|\n)*remedy"):
        calls[transform]()


# Reports


def test_a_report_travels() -> None:
    report = sp.inspect(Block(no_grad), (IDS,), world_size=4)
    twin = pickle.loads(pickle.dumps(report))
    assert str(twin) == str(report)
    assert twin.as_dict() == report.as_dict()
