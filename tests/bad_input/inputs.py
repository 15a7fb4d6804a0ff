"""Arguments of a call: shapes, dtypes, devices, strides, contents, and what is no tensor at all.  World of three."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.bad_input.harness import IDS, LABELS, LONGEST, VOCAB, Case, tokens

BATCH, LENGTH = IDS.shape
MASK = torch.ones(BATCH, LENGTH, dtype=torch.bool)
MASK[0, -3:] = False
SQUARE = torch.ones(BATCH, 1, LENGTH, LENGTH, dtype=torch.bool).tril()


def ids(name: str, made: Callable[[], Any], says: str, within: float = 1e-10) -> Case:
    return Case(f"ids: {name}", lambda model: model(made()), says, within=within)


def labels(name: str, made: Callable[[], Any], says: str) -> Case:
    return Case(f"labels: {name}", lambda model: model(IDS, made()), says)


def mask(name: str, made: Callable[[], Any], says: str) -> Case:
    return Case(f"mask: {name}", lambda model: model(IDS, LABELS, made()), says)


def call(name: str, made: Callable[[Any], Any], says: str) -> Case:
    return Case(f"call: {name}", made, says)


def strided(rows: Tensor) -> Tensor:
    return torch.stack([rows, rows], -1)[..., 0]


def overlapping() -> Tensor:
    return torch.arange(LENGTH + 1).as_strided((BATCH, LENGTH), (1, 1))


class Subclass(Tensor):
    pass


@dataclass
class Holder:
    ids: Tensor


SHAPES = [
    ids("one dim", lambda: IDS[0], "InputError: no input has a sequence dim: ids [12]"),
    ids("no dim", lambda: torch.tensor(3), "InputError: no input has a sequence dim"),
    ids("three dims", lambda: IDS[None], "InputError: 2 tokens cannot be spread over 3 ranks"),
    ids("transposed", lambda: IDS.t(), "InputError: 2 tokens cannot be spread over 3 ranks"),
    ids("two tokens for three ranks", lambda: IDS[:, :2], "InputError: 2 tokens cannot be spread over 3 ranks"),
    ids("one token", lambda: IDS[:, :1], "InputError: 1 token"),
    ids("no tokens", lambda: IDS[:, :0], "InputError: 0 tokens cannot be spread over 3 ranks"),
    ids("no rows", lambda: IDS[:0], "?"),
    ids("no elements at all", lambda: torch.empty(0, dtype=torch.int64), "InputError: no input has a sequence dim"),
    ids("as many tokens as ranks", lambda: IDS[:, :3], "exact"),
    ids("a token more than ranks", lambda: IDS[:, :4], "exact"),
    ids("longer than the table of positions", lambda: tokens(2, LONGEST + 1), "?"),
    ids("as long as the table of positions", lambda: tokens(2, LONGEST), "exact"),
    ids("another batch", lambda: tokens(5, 7), "exact"),
    ids("one row", lambda: IDS[:1], "exact"),
    labels("too short", lambda: LABELS[:, :5], "?"),
    labels("too long", lambda: tokens(2, 13), "?"),
    labels("of one row", lambda: LABELS[:1], "?"),
    labels("transposed", lambda: LABELS.t(), "?"),
    labels("flat", lambda: LABELS.flatten(), "?"),
    labels("of three dims", lambda: LABELS[..., None], "?"),
    labels("none at all", lambda: LABELS[:, :0], "?"),
    mask("too short", lambda: MASK[:, :7], "?"),
    mask("of three rows", lambda: MASK[[0, 0, 1]], "?"),
    mask("of one row", lambda: MASK[:1], "exact"),
    mask("of one dim", lambda: MASK[0], "?"),
    mask("of three dims", lambda: SQUARE[:, 0], "?"),
    mask("of three heads", lambda: SQUARE.expand(-1, 3, -1, -1), "?"),
    mask("with too few keys", lambda: SQUARE[..., :7], "?"),
    mask("with too few queries", lambda: SQUARE[:, :, :7], "?"),
    mask("of five dims", lambda: SQUARE[None], "?"),
    mask("square", lambda: SQUARE, "exact"),
    mask("that hides everything", lambda: torch.zeros_like(MASK), "exact"),
]

DTYPES = [
    *(ids(str(kind).removeprefix("torch."), lambda kind=kind: IDS.to(kind), says) for kind, says in {
        torch.float32: "?", torch.float64: "?", torch.float16: "?", torch.bfloat16: "?", torch.int8: "?",
        torch.uint8: "?", torch.int16: "?", torch.int32: "exact", torch.bool: "?", torch.complex64: "?",
        torch.float8_e4m3fn: "?", torch.float8_e5m2: "?", torch.uint16: "?", torch.uint32: "?", torch.uint64: "?",
    }.items()),
    *(labels(str(kind).removeprefix("torch."), lambda kind=kind: LABELS.to(kind), says) for kind, says in {
        torch.float32: "?", torch.float64: "?", torch.int32: "?", torch.int8: "?", torch.bool: "?", torch.complex128: "?",
        torch.float8_e4m3fn: "?", torch.uint8: "?",
    }.items()),
    *(mask(str(kind).removeprefix("torch."), lambda kind=kind: MASK.to(kind), says) for kind, says in {
        torch.float64: "exact", torch.float32: "?", torch.float16: "?", torch.int64: "?", torch.uint8: "?",
        torch.complex128: "?", torch.float8_e4m3fn: "?",
    }.items()),
]

CONTENTS = [
    ids("negative", lambda: IDS - 40, "plain"),
    ids("beyond the vocabulary", lambda: IDS + VOCAB, "plain"),
    labels("beyond the vocabulary", lambda: LABELS + VOCAB, "plain"),
    labels("negative", lambda: LABELS - 99, "plain"),
    labels("all of them ignored", lambda: torch.full_like(LABELS, -100), "exact"),
]

DEVICES = [
    ids("on meta", lambda: IDS.to("meta"), "InputError: an input is on the meta device"),
    labels("on meta", lambda: LABELS.to("meta"), "InputError: an input is on the meta device"),
    mask("on meta", lambda: MASK.to("meta"), "InputError: an input is on the meta device"),
]

STRIDES = [
    ids("expanded", lambda: IDS[:1].expand(2, -1), "exact"),
    ids("stored column by column", lambda: IDS.t().contiguous().t(), "exact"),
    ids("every second element", lambda: strided(IDS), "exact"),
    ids("in the middle of memory", lambda: torch.cat([IDS, IDS], 1)[:, 5:17], "exact"),
    ids("overlapping rows", overlapping, "exact"),
    ids("int32 at an odd offset", lambda: torch.cat([IDS, IDS], 1).int()[:, 1:12], "exact"),
    labels("expanded", lambda: LABELS[:1].expand(2, -1), "exact"),
    mask("expanded", lambda: MASK[:, None, None, :].expand(-1, 1, LENGTH, -1), "exact"),
    ids("sparse_coo", lambda: IDS.to_sparse(), "InputError: argument 'ids' is a sparse_coo tensor"),
    ids("sparse_csr", lambda: IDS.to_sparse_csr(), "InputError: argument 'ids' is a sparse_csr tensor"),
    labels("sparse_coo", lambda: LABELS.to_sparse(), "InputError: argument 'labels' is a sparse_coo tensor"),
    mask("sparse_coo", lambda: MASK.to_sparse(), "InputError: argument 'mask' is a sparse_coo tensor"),
    ids("nested", lambda: torch.nested.nested_tensor([IDS[0], IDS[1, :5]]), "InputError: argument 'ids' is a nested tensor"),
    ids("nested and jagged", lambda: torch.nested.nested_tensor([IDS[0], IDS[1, :5]], layout=torch.jagged), "InputError: argument 'ids' is a nested tensor"),
    ids("quantized", lambda: torch.quantize_per_tensor(IDS.float(), 1.0, 0, torch.qint8), "InputError: argument 'ids' is a quantized tensor"),
    ids("mkldnn", lambda: IDS.float().to_mkldnn(), "InputError: argument 'ids' is a _mkldnn tensor"),
    ids("a parameter", lambda: nn.Parameter(IDS, requires_grad=False), "exact"),
    ids("a subclass", lambda: IDS.as_subclass(Subclass), "?"),
    ids("floats that require gradients", lambda: IDS.float().requires_grad_(), "?"),
    mask("floats that require gradients", lambda: MASK.double().requires_grad_(), "?"),
    mask("conjugated", lambda: MASK.to(torch.complex128).conj(), "?"),
    mask("negated lazily", lambda: torch.complex(torch.zeros(2, 12).double(), -MASK.double()).conj().imag, "exact"),
    mask("not initialized", lambda: nn.UninitializedParameter(), "?"),
]

OTHERS = [
    ids("None", lambda: None, "?"),
    ids("a list", lambda: IDS.tolist(), "?"),
    ids("a list of tensors", lambda: [*IDS], "?"),
    ids("a tuple of tensors", lambda: (IDS, IDS), "?"),
    ids("an array of numpy", lambda: IDS.numpy(), "InputError: argument 'ids' holds a ndarray"),
    ids("a string", lambda: "to be or not to be", "?"),
    ids("a number", lambda: 7, "?"),
    ids("a dict", lambda: {"ids": IDS}, "?"),
    ids("a set", lambda: {1, 2}, "InputError: argument 'ids' holds a set"),
    ids("a generator", lambda: (x for x in IDS), "InputError: argument 'ids' holds a generator"),
    ids("an iterator of tensors", lambda: iter([IDS]), "InputError: argument 'ids' holds a list_iterator"),
    ids("a dataclass", lambda: Holder(IDS), "InputError: argument 'ids' holds a Holder"),
    ids("bytes", lambda: b"123", "InputError: argument 'ids' holds a bytes"),
    ids("a module", lambda: nn.Linear(2, 2), "InputError: argument 'ids' holds a Linear"),
    ids("a storage", lambda: IDS.untyped_storage(), "InputError: argument 'ids' holds a UntypedStorage"),
    ids("a class", lambda: Tensor, "InputError: argument 'ids' holds a "),
    labels("a list", lambda: LABELS.tolist(), "?"),
    labels("a string", lambda: "labels", "?"),
    mask("a string", lambda: "causal", "?"),
    mask("True", lambda: True, "?"),
    call("nothing at all", lambda model: model(), "?"),
    call("labels alone", lambda model: model(labels=LABELS), "?"),
    call("too many arguments", lambda model: model(IDS, LABELS, MASK, 1.0, IDS), "?"),
    call("an argument twice", lambda model: model(IDS, ids=IDS), "?"),
    call("a misspelt keyword", lambda model: model(IDS, lables=LABELS), "?"),
    call("an unknown keyword of text", lambda model: model(IDS, LABELS, note="hello"), "?"),
    call("scale: text", lambda model: model(IDS, LABELS, None, "large"), "?"),
    call("scale: None", lambda model: model(IDS, LABELS, None, None), "?"),
    call("scale: NaN", lambda model: model(IDS, LABELS, None, float("nan")), "exact"),
    call("scale: infinite", lambda model: model(IDS, LABELS, None, float("inf")), "exact"),
    call("scale: a float of numpy", lambda model: model(IDS, LABELS, None, np.float64(2)), "exact"),
    call("scale: an int of numpy", lambda model: model(IDS, LABELS, None, np.int64(2)), "InputError: argument 'scale' holds a int64"),
    call("scale: a tensor", lambda model: model(IDS, LABELS, None, torch.tensor(2.0)), "exact"),
    call("scale: a tensor that trains", lambda model: model(IDS, LABELS, None, torch.tensor(2.0, requires_grad=True)), "exact"),
    call("scale: complex", lambda model: model(IDS, LABELS, None, 1j), "?"),
    call("scale: a tensor of one element in two dims", lambda model: model(IDS, LABELS, None, torch.ones(1, 1)), "exact"),
    call("scale: for three rows", lambda model: model(IDS, LABELS, None, torch.ones(3, 1, 1)), "?"),
    call("scale: for a width that is not there", lambda model: model(IDS, LABELS, None, torch.ones(1, 1, 5)), "?"),
]

CASES = [*SHAPES, *DTYPES, *CONTENTS, *DEVICES, *STRIDES, *OTHERS]
