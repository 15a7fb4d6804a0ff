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
    ids("transposed", IDS.t, "InputError: 2 tokens cannot be spread over 3 ranks"),
    ids("two tokens for three ranks", lambda: IDS[:, :2], "InputError: 2 tokens cannot be spread over 3 ranks"),
    ids("one token", lambda: IDS[:, :1], "InputError: 1 token"),
    ids("no tokens", lambda: IDS[:, :0], "InputError: 0 tokens cannot be spread over 3 ranks"),
    ids("no rows", lambda: IDS[:0], "UnsupportedModelError: 1 node cannot be spread over ranks exactly"),
    ids("no elements at all", lambda: torch.empty(0, dtype=torch.int64), "InputError: no input has a sequence dim"),
    ids("as many tokens as ranks", lambda: IDS[:, :3], "exact"),
    ids("a token more than ranks", lambda: IDS[:, :4], "exact"),
    ids(
        "longer than the table of positions",
        lambda: tokens(2, LONGEST + 1),
        "InputError: in positions reads row 40 of 40",
    ),
    ids("as long as the table of positions", lambda: tokens(2, LONGEST), "exact"),
    ids("another batch", lambda: tokens(5, 7), "exact"),
    ids("one row", lambda: IDS[:1], "exact"),
    labels(
        "too short",
        lambda: LABELS[:, :5],
        "InputError: the inputs hold sequences of different lengths (ids [2, 12], labels [2, 5])",
    ),
    labels(
        "too long",
        lambda: tokens(2, 13),
        "InputError: the inputs hold sequences of different lengths (ids [2, 12], labels [2, 13])",
    ),
    labels("of one row", lambda: LABELS[:1], "UnsupportedModelError: torch.export cannot trace Decoder"),
    labels("transposed", LABELS.t, "InputError: 2 tokens cannot be spread over 3 ranks"),
    labels("flat", LABELS.flatten, "UnsupportedModelError: torch.export cannot trace Decoder"),
    labels("of three dims", lambda: LABELS[..., None], "exact"),
    labels("none at all", lambda: LABELS[:, :0], "UnsupportedModelError: torch.export cannot trace Decoder"),
    mask("too short", lambda: MASK[:, :7], "InputError: the inputs hold sequences of different lengths"),
    mask("of three rows", lambda: MASK[[0, 0, 1]], "UnsupportedModelError: torch.export cannot trace Decoder"),
    mask("of one row", lambda: MASK[:1], "exact"),
    mask("of one dim", lambda: MASK[0], "UnsupportedModelError: torch.export cannot trace Decoder"),
    mask("of three dims", lambda: SQUARE[:, 0], "UnsupportedModelError: Decoder fixes its sequence length"),
    mask(
        "of three heads",
        lambda: SQUARE.expand(-1, 3, -1, -1),
        "UnsupportedModelError: torch.export cannot trace Decoder",
    ),
    mask("with too few keys", lambda: SQUARE[..., :7], "UnsupportedModelError: torch.export cannot trace Decoder"),
    mask("with too few queries", lambda: SQUARE[:, :, :7], "UnsupportedModelError: torch.export cannot trace Decoder"),
    mask("of five dims", lambda: SQUARE[None], "InputError: 2 tokens cannot be spread over 3 ranks"),
    mask("square", lambda: SQUARE, "exact"),
    mask("that hides everything", lambda: torch.zeros_like(MASK), "exact"),
]

DTYPES = [
    *(
        ids(str(kind).removeprefix("torch."), lambda kind=kind: IDS.to(kind), says)
        for kind, says in {
            torch.float32: "UnsupportedModelError: torch.export cannot trace Decoder",
            torch.float64: "UnsupportedModelError: torch.export cannot trace Decoder",
            torch.float16: "UnsupportedModelError: torch.export cannot trace Decoder",
            torch.bfloat16: "UnsupportedModelError: torch.export cannot trace Decoder",
            torch.int8: "UnsupportedModelError: torch.export cannot trace Decoder",
            torch.uint8: "UnsupportedModelError: torch.export cannot trace Decoder",
            torch.int16: "UnsupportedModelError: torch.export cannot trace Decoder",
            torch.int32: "exact",
            torch.bool: "UnsupportedModelError: torch.export cannot trace Decoder",
            torch.complex64: "UnsupportedModelError: torch.export cannot trace Decoder",
            torch.float8_e4m3fn: "UnsupportedModelError: torch.export cannot trace Decoder",
            torch.float8_e5m2: "UnsupportedModelError: torch.export cannot trace Decoder",
            torch.uint16: "UnsupportedModelError: torch.export cannot trace Decoder",
            torch.uint32: "UnsupportedModelError: torch.export cannot trace Decoder",
            torch.uint64: "UnsupportedModelError: torch.export cannot trace Decoder",
        }.items()
    ),
    *(
        labels(str(kind).removeprefix("torch."), lambda kind=kind: LABELS.to(kind), says)
        for kind, says in {
            torch.float32: "UnsupportedModelError: torch.export cannot trace Decoder",
            torch.float64: "UnsupportedModelError: torch.export cannot trace Decoder",
            torch.int32: "plain",
            torch.int8: "UnsupportedModelError: torch.export cannot trace Decoder",
            torch.bool: "plain",
            torch.complex128: "UnsupportedModelError: torch.export cannot trace Decoder",
            torch.float8_e4m3fn: "UnsupportedModelError: torch.export cannot trace Decoder",
            torch.uint8: "UnsupportedModelError: torch.export cannot trace Decoder",
        }.items()
    ),
    *(
        mask(str(kind).removeprefix("torch."), lambda kind=kind: MASK.to(kind), says)
        for kind, says in {
            torch.float64: "exact",
            torch.float32: "exact",
            torch.float16: "UnsupportedModelError: torch.export cannot trace Decoder",
            torch.int64: "UnsupportedModelError: torch.export cannot trace Decoder",
            torch.uint8: "UnsupportedModelError: torch.export cannot trace Decoder",
            torch.complex128: "UnsupportedModelError: torch.export cannot trace Decoder",
            torch.float8_e4m3fn: "UnsupportedModelError: torch.export cannot trace Decoder",
        }.items()
    ),
]

CONTENTS = [
    ids("negative", lambda: IDS - 40, "InputError: in tokens reads rows from -39 to -10 of 31"),
    ids("beyond the vocabulary", lambda: IDS + VOCAB, "InputError: in tokens reads rows from 32 to 61 of 31"),
    labels("beyond the vocabulary", lambda: LABELS + VOCAB, "InputError: reads rows from 33 to 58 of 31"),
    labels("negative", lambda: LABELS - 99, "InputError: reads rows from -97 to -72 of 31"),
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
    ids("sparse_coo", IDS.to_sparse, "InputError: argument 'ids' is a sparse_coo tensor"),
    ids("sparse_csr", IDS.to_sparse_csr, "InputError: argument 'ids' is a sparse_csr tensor"),
    labels("sparse_coo", LABELS.to_sparse, "InputError: argument 'labels' is a sparse_coo tensor"),
    mask("sparse_coo", MASK.to_sparse, "InputError: argument 'mask' is a sparse_coo tensor"),
    ids(
        "nested",
        lambda: torch.nested.nested_tensor([IDS[0], IDS[1, :5]]),
        "InputError: argument 'ids' is a nested tensor",
    ),
    ids(
        "nested and jagged",
        lambda: torch.nested.nested_tensor([IDS[0], IDS[1, :5]], layout=torch.jagged),
        "InputError: argument 'ids' is a nested tensor",
    ),
    ids(
        "quantized",
        lambda: torch.quantize_per_tensor(IDS.float(), 1.0, 0, torch.qint8),
        "InputError: argument 'ids' is a quantized tensor",
    ),
    ids("mkldnn", lambda: IDS.float().to_mkldnn(), "InputError: argument 'ids' is a _mkldnn tensor"),
    ids("a parameter", lambda: nn.Parameter(IDS, requires_grad=False), "exact"),
    ids("a subclass", lambda: IDS.as_subclass(Subclass), "exact"),
    ids(
        "floats that require gradients",
        lambda: IDS.float().requires_grad_(),
        "UnsupportedModelError: torch.export cannot trace Decoder",
    ),
    mask("floats that require gradients", lambda: MASK.double().requires_grad_(), "exact"),
    mask(
        "conjugated",
        lambda: MASK.to(torch.complex128).conj(),
        "UnsupportedModelError: torch.export cannot trace Decoder",
    ),
    mask("negated lazily", lambda: torch.complex(torch.zeros(2, 12).double(), -MASK.double()).conj().imag, "exact"),
    mask("not initialized", nn.UninitializedParameter, "InputError: argument 'mask' is a uninitialized tensor"),
]

OTHERS = [
    ids("None", lambda: None, "InputError: the call passes no tensor"),
    ids("a list", IDS.tolist, "InputError: the call passes no tensor"),
    ids("a list of tensors", lambda: [*IDS], "InputError: no input has a sequence dim: ids_0 [12], ids_1 [12]"),
    ids("a tuple of tensors", lambda: (IDS, IDS), "UnsupportedModelError: torch.export cannot trace Decoder"),
    ids("an array of numpy", IDS.numpy, "InputError: argument 'ids' holds a ndarray"),
    ids("a string", lambda: "to be or not to be", "InputError: the call passes no tensor"),
    ids("a number", lambda: 7, "InputError: the call passes no tensor"),
    ids("a dict", lambda: {"ids": IDS}, "UnsupportedModelError: torch.export cannot trace Decoder"),
    ids("a set", lambda: {1, 2}, "InputError: argument 'ids' holds a set"),
    ids("a generator", lambda: (x for x in IDS), "InputError: argument 'ids' holds a generator"),
    ids("an iterator of tensors", lambda: iter([IDS]), "InputError: argument 'ids' holds a list_iterator"),
    ids("a dataclass", lambda: Holder(IDS), "UnsupportedModelError: torch.export cannot trace Decoder: TypeError"),
    ids("bytes", lambda: b"123", "InputError: argument 'ids' holds a bytes"),
    ids("a module", lambda: nn.Linear(2, 2), "InputError: argument 'ids' holds a Linear"),
    ids("a storage", IDS.untyped_storage, "InputError: argument 'ids' holds a UntypedStorage"),
    ids("a class", lambda: Tensor, "InputError: argument 'ids' holds a "),
    labels("a list", LABELS.tolist, "UnsupportedModelError: torch.export cannot trace Decoder"),
    labels("a string", lambda: "labels", "UnsupportedModelError: torch.export cannot trace Decoder"),
    mask("a string", lambda: "causal", "UnsupportedModelError: torch.export cannot trace Decoder"),
    mask("True", lambda: True, "UnsupportedModelError: torch.export cannot trace Decoder"),
    call("nothing at all", lambda model: model(), "InputError: the call passes no tensor"),
    call(
        "labels alone", lambda model: model(labels=LABELS), "UnsupportedModelError: torch.export cannot trace Decoder"
    ),
    call(
        "too many arguments",
        lambda model: model(IDS, LABELS, MASK, 1.0, IDS),
        "UnsupportedModelError: torch.export cannot trace Decoder",
    ),
    call(
        "an argument twice",
        lambda model: model(IDS, ids=IDS),
        "UnsupportedModelError: torch.export cannot trace Decoder",
    ),
    call(
        "a misspelt keyword",
        lambda model: model(IDS, lables=LABELS),
        "UnsupportedModelError: torch.export cannot trace Decoder",
    ),
    call(
        "an unknown keyword of text",
        lambda model: model(IDS, LABELS, note="hello"),
        "UnsupportedModelError: torch.export cannot trace Decoder",
    ),
    call(
        "scale: text",
        lambda model: model(IDS, LABELS, None, "large"),
        "UnsupportedModelError: torch.export cannot trace Decoder",
    ),
    call(
        "scale: None",
        lambda model: model(IDS, LABELS, None, None),
        "UnsupportedModelError: torch.export cannot trace Decoder",
    ),
    call("scale: NaN", lambda model: model(IDS, LABELS, None, float("nan")), "exact"),
    call("scale: infinite", lambda model: model(IDS, LABELS, None, float("inf")), "exact"),
    call("scale: a float of numpy", lambda model: model(IDS, LABELS, None, np.float64(2)), "exact"),
    call(
        "scale: an int of numpy",
        lambda model: model(IDS, LABELS, None, np.int64(2)),
        "InputError: argument 'scale' holds a int64",
    ),
    call("scale: a tensor", lambda model: model(IDS, LABELS, None, torch.tensor(2.0)), "exact"),
    call(
        "scale: a tensor that trains",
        lambda model: model(IDS, LABELS, None, torch.tensor(2.0, requires_grad=True)),
        "exact",
    ),
    call("scale: complex", lambda model: model(IDS, LABELS, None, 1j), "UnsupportedModelError: "),
    call(
        "scale: a tensor of one element in two dims", lambda model: model(IDS, LABELS, None, torch.ones(1, 1)), "exact"
    ),
    call(
        "scale: for three rows", lambda model: model(IDS, LABELS, None, torch.ones(3, 1, 1)), "UnsupportedModelError: "
    ),
    call(
        "scale: for a width that is not there",
        lambda model: model(IDS, LABELS, None, torch.ones(1, 1, 5)),
        "UnsupportedModelError: ",
    ),
]

CASES = [*SHAPES, *DTYPES, *CONTENTS, *DEVICES, *STRIDES, *OTHERS]
