"""Models of unusual make: quantized, parametrized, wrapped, lazy, without memory, scripted in parts, tied."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.utils.parametrizations as parametrizations
from torch import Tensor, nn

from tests.bad_input.harness import IDS, LABELS, VOCAB, WIDTH, Case, decoder, proper


def of(name: str, make: Callable[[], nn.Module], says: str = "exact", call: Callable[[Any], Any] = proper) -> Case:
    return Case(name, call, says, make=make)


class Passes(nn.Module):
    """forward(*args, **kwargs), as wrappers have it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)


class Reheaded(nn.Module):
    """A head of its own over a model inside, tied to what that embeds by."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Passes(decoder())
        self.inner.inner.head = nn.Identity()
        self.head = nn.Linear(WIDTH, VOCAB, bias=False).double()
        self.head.weight = self.inner.inner.tokens.weight

    def forward(self, ids: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        logits = self.head(self.inner(ids)[0])
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()), logits


@torch.jit.script
def twice(x: Tensor) -> Tensor:
    return x.tanh() * 2.0


class Scripted(nn.Module):
    """A layer that calls what is scripted."""

    def forward(self, x: Tensor) -> Tensor:
        return twice(x)


def with_layer(layer: nn.Module) -> nn.Module:
    model = decoder()
    model.layers[0] = layer
    return model


def changed(change: Callable[[Any], object]) -> nn.Module:
    model = decoder()
    change(model)
    return model


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def quantized() -> nn.Module:
    with quietly():
        return torch.ao.quantization.quantize_dynamic(decoder().float(), {nn.Linear}, dtype=torch.qint8)


def twice_tied() -> nn.Module:
    model = decoder()
    model.head.weight = model.tokens.weight
    return Passes(Passes(model))


def old_weight_norm() -> nn.Module:
    with quietly():
        return changed(lambda m: nn.utils.weight_norm(m.q))


def met(layer: nn.Module) -> nn.Module:
    """A lazy layer that has seen its input."""
    torch.manual_seed(0)
    layer(torch.ones(1, WIDTH))
    return layer.double()


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(WIDTH, WIDTH).double()


S, META = "StrategyError: ", "InputError: '{}' of the model is on the meta device"
CASES = [
    of("quantized weights", quantized, f"{S}'q' of the model is a quantized Linear"),
    of("weight_norm", lambda: changed(lambda m: parametrizations.weight_norm(m.q))),
    of("weight_norm of the embedding", lambda: changed(lambda m: parametrizations.weight_norm(m.tokens))),
    of("weight_norm by hooks, as it was", old_weight_norm),
    of("orthogonal", lambda: changed(lambda m: parametrizations.orthogonal(m.q))),
    of("spectral_norm, in eval", lambda: changed(lambda m: parametrizations.spectral_norm(m.q)).eval()),
    of(
        "spectral_norm, which writes to its buffers",
        lambda: changed(lambda m: parametrizations.spectral_norm(m.q)),
        "UnsupportedModelError: 2 nodes cannot be spread over ranks exactly",
    ),
    of("forward(*args, **kwargs)", lambda: Passes(decoder())),
    of("forward(*args, **kwargs) by keywords", lambda: Passes(decoder()), call=lambda m: m(ids=IDS, labels=LABELS)),
    of("a lazy layer", lambda: with_layer(nn.LazyLinear(WIDTH)), f"{S}the parameter 'layers.0.weight' has no shape"),
    of("a lazy layer that has its shape", lambda: with_layer(met(nn.LazyLinear(WIDTH)))),
    of("meta parameters", lambda: decoder().to("meta"), META.format("tokens.weight")),
    of("one parameter on meta", lambda: changed(lambda m: m.head.to("meta")), META.format("head.weight")),
    of(
        "a scripted layer",
        lambda: with_layer(torch.jit.script(linear())),
        f"{S}'layers.0' of the model is a RecursiveScriptModule, scripted or traced",
    ),
    of(
        "a traced layer",
        lambda: with_layer(torch.jit.trace(linear(), torch.ones(1, WIDTH).double())),
        f"{S}'layers.0' of the model is a RecursiveScriptModule, scripted or traced",  # as its copies are
    ),
    of("a scripted function", lambda: with_layer(Scripted())),
    of(
        "DataParallel inside",
        lambda: Passes(nn.DataParallel(decoder())),
        f"{S}'inner' of the model is a DataParallel, which runs that part of it",
    ),
    of("tied weights", twice_tied),
    of("tied weights across wrappers", Reheaded),
]


def in_ddp(group: dist.ProcessGroup) -> nn.Module:
    """Of this rank."""
    return nn.parallel.DistributedDataParallel(decoder(), process_group=group)
