"""Graphs that are traced through a call: refused by name.  In a world of one, since torch traces one at a time."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import sp
from tests.bad_input.harness import IDS, LABELS, decoder


def fake(model: Any) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        return model(torch.zeros(2, 12, dtype=torch.int64), torch.zeros(2, 12, dtype=torch.int64))


def traced_fx(model: Any) -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(lambda ids: model(ids)[0], tracing_mode="symbolic")(IDS)(IDS)


def exported(model: Any) -> Any:
    return torch.export.export(model, (IDS, LABELS)).module()(IDS, LABELS)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("trace", [fake, traced_fx, exported])
def test_refused_by_name(trace: Callable[[Any], Any]) -> None:
    with pytest.raises(sp.SpError, match="a parallelized model is called while a graph is traced"):
        trace(sp.parallelize(decoder(), compile=False))
