"""Dry runs: against torch's own counters on the model itself, which is run."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from sp.models import GPT, Encoder, EncoderConfig, GPTConfig, Llama, LlamaConfig
from tests.weigh.models import MLP, Layer, weighed

IDS = torch.zeros(2, 24, dtype=torch.long)
MODELS: dict[str, Callable[[], nn.Module]] = {
    "gpt": lambda: GPT(GPTConfig(max_length=64, layers=2, heads=2, width=16)),
    "llama": lambda: Llama(LlamaConfig(layers=2, heads=4, kv_heads=4, width=32)),
    "encoder": lambda: Encoder(EncoderConfig(max_length=64, layers=2, heads=2, width=16)),
}


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Conv1d(4, 6, 3, padding=1)

    def forward(self, x_BSD: Tensor) -> Tensor:
        return self.inside(x_BSD.transpose(1, 2)).transpose(1, 2)


def saved_bytes(model: nn.Module, inputs: tuple[Tensor, ...], call: Callable[[], Any]) -> int:
    """What autograd really saves, each storage once, but for what there is anyway."""
    known = {x.untyped_storage().data_ptr() for x in (*model.parameters(), *model.buffers(), *inputs)}
    kept: dict[int, Any] = {}

    def keep(saved: Tensor) -> Tensor:
        if (at := saved.untyped_storage().data_ptr()) not in known:
            kept[at] = saved.untyped_storage()
        return saved

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
        output = call()
    assert output is not None
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("name", MODELS)
def test_products_are_those_that_torch_counts(name: str) -> None:
    model = MODELS[name]()
    with FlopCounterMode(display=False) as counter:
        model(IDS, labels=IDS)
    found = weighed(model, (24,), IDS, labels=IDS)
    assert round(found.token_flops * 24) + found.shared_flops == counter.get_total_flops()
    assert found.shared_flops == 0


@pytest.mark.parametrize("name", MODELS)
def test_activations_are_those_that_torch_keeps(name: str) -> None:
    model = MODELS[name]()
    kept = saved_bytes(model, (IDS,), lambda: model(IDS, labels=IDS))
    found = weighed(model, (24,), IDS, labels=IDS)
    assert round(found.token_bytes * 24) + found.shared_bytes == kept


def test_a_perceptron_by_hand() -> None:
    """Two products; the input is there anyway, and the 12 numbers behind the relu serve it and the product."""
    found = weighed(MLP(), (7,), torch.zeros(3, 5, 4))
    assert found.token_flops == 3 * 2 * (4 * 12 + 12 * 4)
    assert found.token_bytes == 3 * 12 * 4
    assert (found.shared_flops, found.shared_bytes) == (0, 0)
    assert found.state_bytes == 2 * 4 * (4 * 12 + 12 + 12 * 4 + 4)


def test_an_attention_keeps_q_k_v_its_output_and_the_log_of_its_sums() -> None:
    """Two heads of 8: q, k and v are one projection.  The same as torch's own kernel keeps."""
    model, x = Layer(), torch.zeros(2, 64, 16)
    found = weighed(model, (64,), x)
    assert found.token_bytes == 2 * 4 * (3 * 16 + 16 + 2)
    assert 64 * found.token_bytes == saved_bytes(model, (x,), lambda: model(x))
    assert found.token_flops == 2 * 2 * 16 * 48  # nothing of attention itself


def test_convolutions_count() -> None:
    assert weighed(Convolution(), (8,), torch.zeros(2, 8, 4)).token_flops == 2 * 2 * 4 * 6 * 3


def test_sizes_are_those_asked_for_and_cost_nothing() -> None:
    """A million tokens, from an example of 5."""
    found = weighed(MLP(), (2**20,), torch.zeros(3, 5, 4))
    assert found.length == 2**20
    assert found.token_bytes == 3 * 12 * 4


def test_nothing_is_kept_without_gradients() -> None:
    with torch.no_grad():
        found = weighed(MLP(), (7,), torch.zeros(3, 5, 4))
    assert (found.token_bytes, found.trains) == (0, False)
    frozen = weighed(MLP().requires_grad_(False), (7,), torch.zeros(3, 5, 4))
    assert (frozen.token_bytes, frozen.trains) == (0, False)
    assert frozen.state_bytes == 4 * (4 * 12 + 12 + 12 * 4 + 4)  # no gradients


def test_models_without_memory() -> None:
    with torch.device("meta"):
        model, x = MLP(), torch.zeros(3, 5, 4)
    assert weighed(model, (7,), x) == weighed(MLP(), (7,), torch.zeros(3, 5, 4))
