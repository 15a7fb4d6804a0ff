"""2 to 4 ranks that share one GPU, over gloo: a small Llama against the same on the GPU alone, forward and gradients.

Not about speed: what travels goes by way of the host.  FlashAttention computes the 16-bit cases, the dense kernel those
of float32.  Errors of 16 bits are compared with those that the single GPU makes itself, both against float64.
"""

import copy

import pytest
import torch
from torch import Tensor, nn

import sp
from sp.models import Llama, LlamaConfig
from sp.strategy import STRATEGIES
from sp.testing import ProcessWorld
from sp.testing.compare import Errors, errors_between, run_once

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
WORLDS = (2, 3, 4)
ONE_AXIS = [name for name, strategy in STRATEGIES.items() if not strategy.axes]


def model_of(heads: int, kv_heads: int, size: int) -> nn.Module:
    torch.manual_seed(0)
    return Llama(LlamaConfig(layers=2, heads=heads, kv_heads=kv_heads, width=heads * size)).double()


def compare(strategy: str, dtype: torch.dtype, length: int, device: str, compiled: bool) -> tuple[float, float, str]:
    """On every rank: the largest error of a single device's call, of the parallelized one's, and the kernel chosen."""
    exact = model_of(4, 2, 64).to(device)
    ids = torch.randint(0, 256, (2, length), generator=torch.Generator().manual_seed(length)).to(device)
    labels = ids.clone()
    labels[0, : length // 2] = -100
    call: tuple[tuple[Tensor, ...], dict[str, Tensor]] = ((ids,), {"labels": labels})
    truth = run_once(exact, *call)
    alone = copy.deepcopy(exact).to(dtype)
    parallel = sp.parallelize(copy.deepcopy(alone), strategy, compile=compiled)
    single, found = (errors_between(run_once(model, *call), truth) for model in (alone, parallel))
    (attention,) = parallel.report().as_dict()["attentions"]
    return worst(single), worst(found), attention["kernel"]


def worst(errors: Errors) -> float:
    return max(errors.outputs, errors.gradients)


@pytest.fixture(scope="module", params=WORLDS)
def world(request: pytest.FixtureRequest):
    with ProcessWorld(request.param) as ranks:
        yield ranks


@pytest.mark.timeout(900)
@pytest.mark.parametrize("strategy", ONE_AXIS)
@pytest.mark.parametrize("length", [256, 301])
def test_float32(world: ProcessWorld, strategy: str, length: int) -> None:
    for _, error, kernel in world.run(compare, strategy, torch.float32, length, "cuda", False, timeout_s=600):
        assert kernel == "dense"
        assert error < 1e-4


@pytest.mark.timeout(900)
@pytest.mark.parametrize("strategy", ONE_AXIS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("length", [256, 301])
def test_16_bits(world: ProcessWorld, strategy: str, dtype: torch.dtype, length: int) -> None:
    """No worse than twice what one GPU makes of the same model."""
    for single, error, kernel in world.run(compare, strategy, dtype, length, "cuda", False, timeout_s=600):
        assert kernel == "flash"
        assert error < 2 * single


@pytest.mark.timeout(900)
def test_compiled(world: ProcessWorld) -> None:
    for single, error, _ in world.run(compare, "striped", torch.bfloat16, 256, "cuda", True, timeout_s=600):
        assert error < 2 * single
