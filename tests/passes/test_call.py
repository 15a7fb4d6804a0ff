"""Calls taken apart and put together again: names, constants, containers, output classes."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sp.errors import InputError, UnsupportedModelError
from sp.passes.call import Call, Outputs

A, B, C = (torch.zeros(2, n) for n in (3, 4, 5))


def model(forward: Any) -> nn.Module:
    made = nn.Module()
    made.forward = forward
    return made


def plain(input_ids: Any, labels: Any = None, *more: Any, scale: Any = 1.0, **rest: Any) -> None: ...


NAMES = [
    ("by position", (A, B), {}, ["input_ids", "labels"]),
    ("by keyword", (A,), {"labels": B}, ["input_ids", "labels"]),
    ("all by keyword", (), {"labels": B, "input_ids": A}, ["labels", "input_ids"]),
    ("the same tensor twice", (A,), {"labels": A}, ["input_ids", "labels"]),
    ("starred", (A, None, B, C), {}, ["input_ids", "more_0", "more_1"]),
    ("through **rest", (A,), {"shift_labels": B}, ["input_ids", "shift_labels"]),
    ("a tuple", ((A, B),), {}, ["input_ids_0", "input_ids_1"]),
    ("a dict", ({"ids": A, "mask": B},), {}, ["input_ids_ids", "input_ids_mask"]),
    ("nested", ([{"x": (A, B)}],), {"labels": {"y": C}}, ["input_ids_0_x_0", "input_ids_0_x_1", "labels_y"]),
    ("names that are no identifiers", ({"my-key": A, "a.b": B},), {}, ["input_ids_my_key", "input_ids_a_b"]),
    ("names that collide", ((A,),), {"input_ids_0": B}, ["input_ids_0", "input_ids_0_1"]),
    ("names that collide once cleaned", ({"a.b": A, "a-b": B},), {}, ["input_ids_a_b", "input_ids_a_b_1"]),
    ("a name that Python reserves", (A,), {"class": B}, ["input_ids", "class_"]),
    ("names of the generated code", (A,), {"torch": B, "noise_seed": C}, ["input_ids", "torch_", "noise_seed_"]),
    ("constants are no inputs", (A, None), {"scale": 2.0}, ["input_ids"]),
]


@pytest.mark.parametrize(("args", "kwargs", "names"), [row[1:] for row in NAMES], ids=[row[0] for row in NAMES])
def test_names(args: tuple[Any, ...], kwargs: dict[str, Any], names: list[str]) -> None:
    call, tensors = Call.of(model(plain), args, kwargs)
    assert list(call.names) == names
    assert len(tensors) == len(names)
    again_args, again_kwargs = call.rebuild(tensors)
    flat, spec = pytree.tree_flatten((args, kwargs))
    found, found_spec = pytree.tree_flatten((tuple(again_args), again_kwargs))
    assert found_spec == spec
    assert all(a is b for a, b in zip(found, flat, strict=True))


class Unknown: ...


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((Unknown(),), {}, "argument 'input_ids' holds a Unknown"),
        ((A, [B, Unknown()]), {}, "argument 'labels_1' holds a Unknown"),
        ((A,), {"past": {"k": Unknown()}}, "argument 'past_k' holds a Unknown"),
    ],
)
def test_unknown_argument_class(args: tuple[Any, ...], kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Call.of(model(plain), args, kwargs)
    assert str(caught.value).startswith(message)
    assert "register" in str(caught.value)


def cached(input_ids: Any, use_cache: Any = None) -> None: ...


@pytest.mark.parametrize(
    ("args", "kwargs", "constants", "added"),
    [
        ((A,), {}, [False], True),
        ((A,), {"use_cache": True}, [True], False),
        ((A, True), {}, [True], False),
        ((A,), {"use_cache": None}, [None], False),
    ],
)
def test_use_cache_is_off_where_the_caller_left_it_open(
    args: tuple[Any, ...], kwargs: dict[str, Any], constants: list[Any], added: bool
) -> None:
    call, _ = Call.of(model(cached), args, kwargs)
    assert [constant[0] for constant in call.constants if constant is not None] == constants
    assert bool(call.added) == added


def test_a_model_without_cache_is_called_as_it_is() -> None:
    call, tensors = Call.of(model(plain), (A,), {})
    assert call.added == ()
    assert call.rebuild(tensors) == ((A,), {})


def test_calls_compare_by_structure() -> None:
    def call(*args: Any, **kwargs: Any) -> Call:
        return Call.of(model(plain), args, kwargs)[0]

    assert call(A) == call(B)
    assert call(A) != call(A, None)
    assert call(A, scale=1.0) != call(A, scale=2.0)
    assert call(A, B) != call(A, labels=B)


class Named(NamedTuple):
    logits: Tensor
    loss: Tensor | None


@dataclass
class Data:
    logits: Tensor
    loss: Tensor | None = None


pytree.register_dataclass(Data)
Old = namedtuple("Old", ["x", "y"])

OUTPUTS = [
    ("a tensor", A, ["output"]),
    ("a tuple", (A, B), ["0", "1"]),
    ("a list with a hole", [A, None, B], ["0", "2"]),
    ("a dict", {"logits": A, "loss": B}, ["logits", "loss"]),
    ("an ordered dict", OrderedDict(z=A, a=B), ["z", "a"]),
    ("a NamedTuple", Named(A, None), ["logits"]),
    ("a namedtuple", Old(A, B), ["x", "y"]),
    ("a dataclass", Data(A, B), ["logits", "loss"]),
    ("nested", {"states": (A, B), "rest": Named(C, None)}, ["states_0", "states_1", "rest_logits"]),
    ("numbers and words", (A, 3, "x", True, 0.5), ["0"]),
    ("the same tensor twice", (A, A), ["0", "1"]),
]


@pytest.mark.parametrize(("output", "names"), [row[1:] for row in OUTPUTS], ids=[row[0] for row in OUTPUTS])
def test_outputs(output: Any, names: list[str]) -> None:
    outputs = Outputs()
    tensors = outputs.flatten(output)
    assert outputs.names == names
    fresh = [tensor + 1 for tensor in tensors]
    again = outputs.rebuild(fresh)
    assert type(again) is type(output)
    assert pytree.tree_structure(again) == pytree.tree_structure(output)
    found = [leaf for leaf in pytree.tree_leaves(again) if isinstance(leaf, Tensor)]
    assert all(a is b for a, b in zip(found, fresh, strict=True))
    constants = [leaf for leaf in pytree.tree_leaves(again) if not isinstance(leaf, Tensor)]
    assert constants == [leaf for leaf in pytree.tree_leaves(output) if not isinstance(leaf, Tensor)]


@pytest.mark.parametrize("output", [Unknown(), (A, Unknown()), {"past": Unknown()}])
def test_unknown_output_class(output: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=r"the model returns a Unknown as '(output|1|past)'"):
        Outputs().flatten(output)


def test_transformers_output() -> None:
    modeling = pytest.importorskip("transformers.modeling_outputs")
    output = modeling.CausalLMOutputWithPast(loss=A, logits=B)
    outputs = Outputs()
    again = outputs.rebuild(outputs.flatten(output))
    assert outputs.names == ["loss", "logits"]
    assert isinstance(again, modeling.CausalLMOutputWithPast)
    assert again.loss is A
    assert again["logits"] is B
    assert again.past_key_values is None


@pytest.mark.parametrize(
    ("keeps", "named", "added"),
    [
        (True, {"position_ids": B}, False),
        (True, {"position_ids": B, "attention_mask": B}, True),
        (True, {}, True),
        (False, {"position_ids": B}, True),
    ],
)
def test_use_cache_stays_open_where_it_decides_what_positions_mean(
    keeps: bool, named: dict[str, Tensor], added: bool
) -> None:
    """transformers looks for documents in positions that restart only where it keeps no cache."""

    def forward(
        input_ids: Any, position_ids: Any = None, attention_mask: Any = None, use_cache: Any = None
    ) -> None: ...

    asked = model(forward)
    asked.config = type("Config", (), {"use_cache": keeps})()
    call, _ = Call.of(asked, (A,), named)
    assert bool(call.added) == added
