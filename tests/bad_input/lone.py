"""What is wrong on rank 1 alone, or differs between ranks: every rank of three has to know, within seconds."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from tests.bad_input.harness import IDS, LABELS, VOCAB, Case, proper, tokens

PART = "RankMismatchError: rank 1 could not take part in this call"
DISAGREE = "RankMismatchError: the ranks disagree about "
CALL, SHAPES, CONTENTS = f"{DISAGREE}how the model is called", f"{DISAGREE}the shapes", f"{DISAGREE}the contents"


class Trips:
    """What cannot even be taken apart: an error that is nobody's own, and that the others have to hear of."""


def trips(_: Trips) -> Any:
    raise KeyError("flatten")


pytree.register_pytree_node(Trips, trips, lambda *_: Trips(), flatten_with_keys_fn=trips)


def lone(name: str, call: Any, says: str, others: str = PART) -> Case:
    return Case(f"on rank 1 alone: {name}", call, says, others)


def differs(name: str, call: Any, says: str) -> Case:
    return lone(name, call, says, says)


def frozen(model: Any) -> Any:
    with put(model.head.weight, "requires_grad", False):
        return proper(model)


@contextlib.contextmanager
def put(thing: Any, name: str, value: Any) -> Any:
    before = getattr(thing, name)
    setattr(thing, name, value)
    try:
        yield
    finally:
        setattr(thing, name, before)


def written(model: Any) -> Any:
    """Loaded, or stepped, on one rank alone; then put back, as the others have it."""
    with torch.no_grad():
        before = model.head.weight.clone()
        model.head.weight.mul_(2)
    try:
        return proper(model)
    finally:
        with torch.no_grad():
            model.head.weight.copy_(before)


def replaced(model: Any) -> Any:
    with put(model.head, "weight", nn.Parameter(model.head.weight.detach() * 2)):
        return proper(model)


def buffer_written(model: Any) -> Any:
    before = model.weights.clone()
    model.weights.mul_(2)
    try:
        return proper(model)
    finally:
        model.weights.copy_(before)


def in_eval(model: Any) -> Any:
    try:
        return proper(model.eval())
    finally:
        model.train()


def with_another_layer(model: Any) -> Any:
    with put(model.plain, "head", nn.Linear(8, VOCAB, bias=False).double()):
        return proper(model)


def hooked(model: Any) -> Any:
    handle = model.plain.head.register_forward_hook(lambda *_: None)
    try:
        return proper(model)
    finally:
        handle.remove()


def without_sync(model: Any) -> Any:
    with model.no_sync():
        return proper(model)


def under(context: Any) -> Any:
    def call(model: Any) -> Any:
        with context():
            return proper(model)

    return call


CASES = [
    lone("None", lambda model: model(None), "InputError: the call passes no tensor"),
    lone("a list", lambda model: model(IDS.tolist()), "InputError: the call passes no tensor"),
    lone("an object", lambda model: model(IDS, object()), "InputError: argument 'labels' holds a object"),
    lone("nothing", lambda model: model(), "InputError: the call passes no tensor"),
    lone("one dim", lambda model: model(IDS[0]), "InputError: no input has a sequence dim"),
    lone("one token", lambda model: model(IDS[:, :1]), "InputError: 1 tokens cannot be spread over 3 ranks"),
    lone("a sparse tensor", lambda model: model(IDS.to_sparse()), "InputError: argument 'ids' is a sparse_coo tensor"),
    lone("on meta", lambda model: model(IDS.to("meta"), LABELS), "InputError: an input is on the meta device"),
    lone("a token beyond the vocabulary", lambda model: model(IDS + VOCAB, LABELS), "InputError: "),
    lone("a label beyond the vocabulary", lambda model: model(IDS, LABELS + VOCAB), "InputError: "),
    lone("what trips", lambda model: model(IDS, LABELS, Trips()), "KeyError: 'flatten'"),
    differs("a misspelt keyword", lambda model: model(IDS, lables=LABELS), CALL),
    differs("no labels", lambda model: model(IDS), CALL),
    differs("an argument more", lambda model: model(IDS, LABELS, None), CALL),
    differs("another number", lambda model: model(IDS, LABELS, None, 2.0), CALL),
    differs("NaN for a number", lambda model: model(IDS, LABELS, None, float("nan")), CALL),
    differs("int32", lambda model: model(IDS.int(), LABELS), CALL),
    differs("floats", lambda model: model(IDS.float(), LABELS), CALL),
    differs("three dims", lambda model: model(tokens(6, 12).view(2, 12, 3), LABELS), CALL),
    differs("a mask", lambda model: model(IDS, LABELS, torch.ones(2, 12, dtype=torch.bool)), CALL),
    differs("train or eval", in_eval, CALL),
    differs("autocast", under(lambda: torch.autocast("cpu", torch.bfloat16)), CALL),
    differs("another length", lambda model: model(tokens(2, 13), tokens(2, 13)), SHAPES),
    differs("another batch", lambda model: model(tokens(3, 12), tokens(3, 12)), SHAPES),
    differs("labels of another length", lambda model: model(IDS, tokens(2, 13)), CALL),
    differs("other ids", lambda model: model(tokens(seed=5), LABELS), CONTENTS),
    differs("other labels", lambda model: model(IDS, tokens(seed=5)), CONTENTS),
    differs("one other token", lambda model: model(IDS.index_fill(1, torch.tensor([7]), 3), LABELS), CONTENTS),
    differs("two tokens in another order", lambda model: model(IDS[:, [1, 0, *range(2, 12)]], LABELS), CONTENTS),
    differs("rows in another order", lambda model: model(IDS.flip(0), LABELS.flip(0)), CONTENTS),
    differs("no_grad", under(torch.no_grad), f"{DISAGREE}which gradients there will be"),
    differs("inference_mode", under(torch.inference_mode), f"{DISAGREE}which gradients there will be"),
    differs("no_sync", without_sync, f"{DISAGREE}which gradients there will be"),
    differs("a frozen parameter", frozen, f"{DISAGREE}which gradients there will be"),
    differs("a parameter written to", written, f"{DISAGREE}what parameters and buffers hold"),
    differs("a parameter replaced", replaced, f"{DISAGREE}what parameters and buffers hold"),
    differs("a buffer written to", buffer_written, f"{DISAGREE}what parameters and buffers hold"),
    differs("a module replaced", with_another_layer, f"{DISAGREE}what has changed in the model"),
    differs("a hook in the model", hooked, f"{DISAGREE}what has changed in the model"),
]
