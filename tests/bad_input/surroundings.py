"""What is around a call: modes, contexts, transforms, hooks, threads, backwards of all kinds.  World of two."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.bad_input.harness import IDS, LABELS, Case, decoder, proper

TRANSFORM = "SpError: a parallelized model is called inside of a torch.func transform"


def around(name: str, context: Callable[[], Any], says: str, within: float = 1e-10) -> Case:
    def call(model: Any) -> Any:
        with context():
            return proper(model)

    return Case(f"under {name}", call, says, within=within)


def case(name: str, call: Callable[[Any], Any], says: str, **more: Any) -> Case:
    return Case(name, call, says, **more)


class Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Dispatches(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def default_dtype(kind: torch.dtype) -> Any:
    torch.set_default_dtype(kind)  # of the process: threads that put back what they found would find each other's
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def deterministic() -> Any:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def backward_on_cpu() -> Any:
    return torch.autograd.graph.save_on_cpu()


def halves() -> Any:
    return torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: x.clone())


def loss_of(model: Any) -> Tensor:
    return proper(model)[0]


def twice(model: Any) -> Any:
    loss = loss_of(model)
    loss.backward()
    model.zero_grad()
    return loss.backward()


def kept(model: Any) -> Any:
    loss = loss_of(model)
    loss.backward(retain_graph=True)
    model.zero_grad()
    loss.backward()


def accumulated(model: Any) -> Any:
    loss_of(model).backward()
    loss_of(model).backward()


def summed_first(model: Any) -> Any:
    (loss_of(model) + 2 * loss_of(model)).backward()


def second_derivative(model: Any) -> Any:
    grads = torch.autograd.grad(loss_of(model), list(model.parameters()), create_graph=True)
    return sum(grad.square().sum() for grad in grads)


def by_grad(model: Any) -> Any:
    return [grad.clone() for grad in torch.autograd.grad(loss_of(model), list(model.parameters()))]


def by_grad_of_one(model: Any) -> Any:
    return torch.autograd.grad(loss_of(model), model.head.weight)


def never(model: Any) -> Any:
    proper(model)
    return loss_of(model)


def late(model: Any) -> Any:
    """Forward, forward, backward of the first."""
    first = loss_of(model)
    model(IDS[:1])
    return first


def of_logits_and_loss(model: Any) -> Any:
    loss, logits = proper(model)
    torch.autograd.backward([loss, logits], [torch.tensor(2.0).double(), torch.ones_like(logits)])


def frozen_after_forward(model: Any) -> Any:
    loss = loss_of(model)
    model.head.weight.requires_grad_(False)
    try:
        loss.backward()
    finally:
        model.head.weight.requires_grad_(True)


def changed_after_forward(model: Any) -> Any:
    loss = loss_of(model)
    with torch.no_grad():
        before = model.head.weight.clone()
        model.head.weight.add_(1)
    try:
        loss.backward()
    finally:
        with torch.no_grad():
            model.head.weight.copy_(before)


def hooked(register: Callable[[Any], Any], call: Callable[[Any], Any] = proper) -> Callable[[Any], Any]:
    def run(model: Any) -> Any:
        handle = register(model)
        try:
            first = loss_of(model) if call is proper else call(model)
            if call is proper:
                first.backward()
        finally:
            handle.remove()

    return run


def in_a_thread(model: Any) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(proper(model)))
    thread.start()
    thread.join()
    return found[0]


def two_threads(model: Any) -> Any:
    """Both must end, and what they find is right or an SpError."""
    found: list[Any] = []
    begin = threading.Barrier(2)

    def run() -> None:
        begin.wait()
        try:
            with torch.no_grad():
                found.append(proper(model)[1])
        except Exception as error:  # noqa: BLE001 - looked at
            found.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    with torch.no_grad():
        right = proper(decoder())[1]
    for each in found:
        if isinstance(each, Tensor):
            torch.testing.assert_close(each, right)
        elif not type(each).__module__.startswith("sp."):
            raise each
    return torch.zeros(1)


def copied(model: Any) -> Any:
    return proper(copy.deepcopy(model))


def pickled(model: Any) -> Any:
    return proper(pickle.loads(pickle.dumps(model)))


def saved(model: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return proper(torch.load(buffer, weights_only=False))


def checkpointed(reentrant: bool) -> Callable[[Any], Any]:
    def call(model: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(lambda: loss_of(model) * 1.0, use_reentrant=reentrant)

    return call


def functional(model: Any) -> Any:
    given = {name: value.detach() * 1.5 for name, value in model.named_parameters()}
    return torch.func.functional_call(model, given, (IDS, LABELS))


def vmapped(model: Any) -> Any:
    return torch.func.vmap(lambda ids: model(ids[None])[0])(IDS)


def func_grad(model: Any) -> Any:
    given = {name: value.detach() for name, value in model.named_parameters()}
    return torch.func.grad(lambda each: torch.func.functional_call(model, each, (IDS, LABELS))[0])(given)["head.weight"]


def cast(model: Any) -> Any:
    """To 32 bits and back."""
    try:
        return [each.double() for each in proper(model.float())]
    finally:
        model.double()


def of_generator_mode(model: Any) -> Any:
    model.train(False)
    try:
        return proper(model)
    finally:
        model.train(True)


def renamed(model: Any) -> Any:
    model.zero_grad(set_to_none=False)
    return proper(model)


def shorter_inputs(module: Any, args: Any) -> Any:
    return args[0][:, :5], args[1][:, :5]


CASES = [
    around("no_grad", torch.no_grad, "exact"),
    around("inference_mode", torch.inference_mode, "exact"),
    around("enable_grad", torch.enable_grad, "exact"),
    around("autocast to bfloat16", lambda: torch.autocast("cpu", torch.bfloat16), "exact", 3e-2),
    around("autocast to float16", lambda: torch.autocast("cpu", torch.float16), "exact", 3e-2),
    around("autocast that is off", lambda: torch.autocast("cpu", enabled=False), "exact"),
    around("a default device of meta", lambda: torch.device("meta"), "exact"),
    around("a default device of cpu", lambda: torch.device("cpu"), "exact"),
    around("a default dtype of float16", lambda: default_dtype(torch.float16), "exact"),
    around("a default dtype of float64", lambda: default_dtype(torch.float64), "exact"),
    around("deterministic algorithms", deterministic, "exact"),
    around("anomaly detection", torch.autograd.detect_anomaly, "exact"),
    around("saved tensors on the CPU", backward_on_cpu, "exact"),
    around("hooks of saved tensors", halves, "exact"),
    around("a mode of torch functions", Functions, "exact"),
    around("a mode of dispatches", Dispatches, "exact"),
    around("a forked generator", torch.random.fork_rng, "exact"),
    around(
        "multiplications that may not be tracked", lambda: torch.autograd.set_multithreading_enabled(False), "exact"
    ),
    case("backward twice", twice, "plain"),
    case("backward twice of a kept graph", kept, "exact"),
    case("gradients of two calls", accumulated, "exact"),
    case("one backward of two calls", summed_first, "exact"),
    case(
        "derivatives of gradients",
        second_derivative,
        "SpError: the gradient of an attention is differentiated once more",
    ),
    case("autograd.grad", by_grad, "exact"),
    case("autograd.grad of one parameter", by_grad_of_one, "exact"),
    case("a call without its backward", never, "exact"),
    case("backward of the call before", late, "exact"),
    case("backward of two outputs", of_logits_and_loss, "exact"),
    case("a parameter frozen between forward and backward", frozen_after_forward, "exact"),
    case("gradients set to zero instead of None", renamed, "exact"),
    case("eval", of_generator_mode, "exact"),
    case("a hook on a parameter", hooked(lambda m: m.head.weight.register_hook(lambda grad: grad * 3)), "exact"),
    case(
        "a forward pre-hook that cuts the inputs",
        hooked(lambda m: m.register_forward_pre_hook(shorter_inputs)),
        "exact",
    ),
    case(
        "a forward hook that changes the output",
        hooked(lambda m: m.register_forward_hook(lambda mod, args, out: (out[0] * 3, out[1]))),
        "exact",
    ),
    case("a full backward hook", hooked(lambda m: m.register_full_backward_hook(lambda *_: None)), "exact"),
    case(
        "a full backward pre-hook",
        hooked(
            lambda m: m.register_full_backward_pre_hook(
                lambda mod, grads: tuple(None if g is None else g * 2 for g in grads)
            )
        ),
        "exact",
    ),
    case(
        "a forward hook inside that changes what it sees",
        hooked(lambda m: m.head.register_forward_hook(lambda mod, args, out: out * 2)),
        "exact",
    ),
    case(
        "a forward pre-hook inside",
        hooked(lambda m: m.head.register_forward_pre_hook(lambda mod, args: (args[0] * 2,))),
        "exact",
    ),
    case(
        "a backward hook inside",
        hooked(
            lambda m: m.head.register_full_backward_hook(
                lambda mod, gin, gout: tuple(None if g is None else g * 2 for g in gin)
            )
        ),
        "UnsupportedModelError: 'head' of the model has a backward hook",
    ),
    case("a hook that raises", hooked(lambda m: m.register_forward_pre_hook(lambda *_: 1 / 0)), "plain"),
    case("another thread", in_a_thread, "exact"),
    case("two threads at once", two_threads, "exact"),
    case("a deep copy", copied, "exact"),
    case("a pickled copy", pickled, "exact"),
    case("a saved copy", saved, "exact"),
    case("a checkpoint around", checkpointed(False), "exact"),
    case("a reentrant checkpoint around", checkpointed(True), "exact"),
    case("functional_call", functional, "exact"),
    case("func.vmap", vmapped, TRANSFORM),
    case("func.grad", func_grad, TRANSFORM),
]
