"""What all reference models promise: shapes, one dtype, a clean graph, and no word about parallelism."""

import ast
import inspect
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sp.models import GPT, Encoder, EncoderConfig, GPTConfig, Llama, LlamaConfig

VOCAB, LAYERS, WIDTH = 50, 2, 32
SIZE: dict[str, Any] = {"vocab_size": VOCAB, "layers": LAYERS, "heads": 4, "width": WIDTH}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "gpt": lambda: GPT(GPTConfig(**SIZE, max_length=64)),
    "gpt_untied": lambda: GPT(GPTConfig(**SIZE, max_length=64, tie_embeddings=False)),
    "llama": lambda: Llama(LlamaConfig(**SIZE)),
    "llama_repeat_kv": lambda: Llama(LlamaConfig(**SIZE, gqa="repeat_kv")),
    "encoder": lambda: Encoder(EncoderConfig(**SIZE, max_length=64)),
}
SINGLE_NODES = {
    "gpt": {"layer_norm": 2 * LAYERS + 1, "embedding": 2, "linear": 4 * LAYERS + 1},
    "llama": {"rms_norm": 2 * LAYERS + 1, "embedding": 1, "linear": 7 * LAYERS + 1},
    "encoder": {"layer_norm": 2 * LAYERS + 2, "embedding": 2, "linear": 6 * LAYERS + 2},
}


@pytest.fixture(params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    torch.manual_seed(0)
    return request.param


def batch(size: int, length: int) -> tuple[Tensor, Tensor]:
    """Distinct tensors for ids and labels; half the labels of the first row do not count."""
    ids, labels = torch.randint(VOCAB, (2, size, length))
    labels[0, ::2] = -100
    return ids, labels


def test_shapes(name: str) -> None:
    model, (ids, labels) = MODELS[name](), batch(3, 11)
    output, loss = model(ids)
    assert output.shape == (3, 11, WIDTH if name == "encoder" else VOCAB)
    assert loss is None
    assert model(ids, labels).loss.shape == ()


def test_fresh_model_guesses_uniformly(name: str) -> None:
    loss = MODELS[name]()(*batch(4, 64)).loss
    assert loss.item() == pytest.approx(torch.tensor(VOCAB).log().item(), abs=0.1)


def test_every_parameter_gets_a_gradient(name: str) -> None:
    model = MODELS[name]()
    model(*batch(2, 9)).loss.backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


class FloatDtypes(TorchDispatchMode):
    """Collects the dtype of every floating tensor that any op returns, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.seen |= {x.dtype for x in tree_leaves(result) if isinstance(x, Tensor) and x.is_floating_point()}
        return result


def test_float64_stays_float64(name: str) -> None:
    model = MODELS[name]().double()
    with FloatDtypes() as dtypes:
        model(*batch(2, 9)).loss.backward()
    assert dtypes.seen == {torch.float64}


def test_bfloat16(name: str) -> None:
    model, (ids, labels) = MODELS[name](), batch(2, 33)
    expected = model(ids, labels).loss
    actual = model.bfloat16()(ids, labels).loss
    assert actual.item() == pytest.approx(expected.item(), rel=1e-2)


def export(model: nn.Module) -> torch.export.ExportedProgram:
    dims = {0: torch.export.Dim("B"), 1: torch.export.Dim("S", min=3, max=64)}
    return torch.export.export(model, batch(2, 8), dynamic_shapes=(dims, dims), strict=False)


def test_export_equals_eager_at_other_lengths(name: str) -> None:
    model = MODELS[name]().double()
    exported = export(model).module()
    for ids, labels in (batch(1, 3), batch(3, 37), batch(2, 64)):
        torch.testing.assert_close(exported(ids, labels), model(ids, labels), rtol=1e-13, atol=1e-13)


def test_exported_graph_keeps_single_nodes(name: str) -> None:
    graph = export(MODELS[name]()).graph
    nodes = Counter(str(n.target).split(".")[1] for n in graph.nodes if str(n.target).startswith("aten."))
    expected = SINGLE_NODES[name.split("_")[0]] | {
        "scaled_dot_product_attention": LAYERS,
        "cross_entropy_loss": 1,
    }
    assert {op: nodes[op] for op in expected} == expected
    assert nodes.keys().isdisjoint({"bmm", "matmul", "softmax", "_softmax", "promote_types", "item"})


def test_source_knows_only_torch_and_the_standard_library(name: str) -> None:
    source = inspect.getsource(sys.modules[type(MODELS[name]()).__module__])
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {n.module or "" if isinstance(n, ast.ImportFrom) else n.names[0].name for n in imports}
    assert {module.split(".")[0] for module in modules} <= {"torch", *sys.stdlib_module_names}
    assert not {"parallel", "distributed", "rank", "world", "shard", "mesh"} & set(source.lower().split())
