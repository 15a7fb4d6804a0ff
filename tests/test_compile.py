"""Under torch.compile: one graph, no break, no recompilation for another length, no attention computed twice."""

import os
from typing import Any

import pytest
import torch
from functorch.compile import aot_function, min_cut_rematerialization_partition
from torch import fx, nn
from torch._dynamo.utils import counters

import sp
from sp.models import Llama, LlamaConfig
from sp.testing.compare import relative_error
from sp.testing.ranks import run_processes


def llama(layers: int = 2) -> Llama:
    torch.manual_seed(0)
    return Llama(LlamaConfig(vocab_size=61, layers=layers, heads=4, kv_heads=2, width=32)).double()


def batch(length: int, rows: int = 2) -> torch.Tensor:
    return torch.randint(0, 61, (rows, length), generator=torch.Generator().manual_seed(length))


class Recorder:
    """A backend that keeps the graphs it is given and runs them as they are."""

    def __init__(self) -> None:
        self.graphs: list[fx.GraphModule] = []

    def __call__(self, graph: fx.GraphModule, example_inputs: Any) -> Any:
        self.graphs.append(graph)
        return graph.forward


def test_one_graph_for_every_length_and_batch():
    recorder = Recorder()
    model = llama()
    parallel = sp.parallelize(model, compile={"backend": recorder})
    for length, rows in ((16, 2), (21, 2), (9, 3), (64, 5)):
        ids = batch(length, rows)
        output = parallel(ids, labels=ids)
        output.loss.backward()
        assert relative_error(output.logits, model(ids, labels=ids).logits) < 1e-12
    assert len(recorder.graphs) == 1  # fullgraph=True: a break would have raised
    assert str(recorder.graphs[0].graph).count("torch.ops.sp.attention.default") == 2


@pytest.mark.parametrize("layers", [2, 6])
def test_blocks_that_compute_the_same_are_compiled_once(layers: int):
    """Three graphs for any depth, length and batch: what comes before the blocks, a block, what comes after."""
    torch.compiler.reset()
    counters.clear()
    model = llama(layers)
    parallel = sp.parallelize(model, compile="blocks")
    for length, rows in ((16, 2), (21, 2), (9, 3), (64, 5)):
        ids = batch(length, rows)
        found, expected = (run(ids, labels=ids) for run in (parallel, model))
        grads = [torch.autograd.grad(output.loss, list(model.parameters())) for output in (found, expected)]
        assert relative_error(found.logits, expected.logits) < 1e-12
        assert all(relative_error(a, b) < 1e-12 for a, b in zip(*grads, strict=True))
    assert counters["stats"]["unique_graphs"] == 3


def in_blocks(strategy: str) -> list[torch.Tensor]:
    model, ids = llama(3), batch(13)
    loss = sp.parallelize(model, strategy, compile="blocks")(ids, labels=ids).loss
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


@pytest.mark.slow
def test_blocks_on_two_ranks():
    model, ids = llama(3), batch(13)
    loss = model(ids, labels=ids).loss
    expected = loss, *torch.autograd.grad(loss, list(model.parameters()))
    for found in run_processes(2, in_blocks, "striped", timeout_s=300):
        assert all(relative_error(a, b) < 1e-12 for a, b in zip(found, expected, strict=True))


def test_unknown_ways_to_compile_are_refused():
    with pytest.raises(sp.StrategyError, match="compile cannot be 'block'\n  needed: True, False, 'blocks'"):
        sp.parallelize(llama(), compile="block")  # type: ignore[arg-type]


def test_compile_false_compiles_nothing():
    parallel = sp.parallelize(llama(), compile=False)
    parallel(batch(9))
    assert parallel.executables[0].run is parallel.executables[0].bound


def test_options_reach_torch_compile():
    with pytest.raises(Exception, match="no such backend"):
        sp.parallelize(llama(), compile={"backend": "no such backend"})(batch(9))


def count(graph: fx.GraphModule, op: str) -> int:
    return sum(str(node.target).startswith(op) for node in graph.graph.nodes)


def test_attention_is_never_recomputed_in_backward():
    """Forward has each attention once; backward has its gradient, and not the attention again."""
    parallel = sp.parallelize(llama(), compile=False)
    ids = batch(12)
    parallel(ids, labels=ids)
    bound, graphs = parallel.executables[0].bound, dict[str, fx.GraphModule]()

    def keep(name: str) -> Any:
        def compiler(graph: fx.GraphModule, inputs: Any) -> Any:
            graphs[name] = graph
            return graph

        return compiler

    held = {**dict(bound.named_parameters()), **dict(bound.named_buffers())}

    def run(values: list[torch.Tensor], ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(bound, dict(zip(held, values, strict=True)), (ids, labels))[1]

    compiled = aot_function(run, keep("forward"), keep("backward"), partition_fn=min_cut_rematerialization_partition)
    compiled(list(held.values()), ids, ids).backward()
    assert count(graphs["forward"], "sp.attention.default") == 2
    assert count(graphs["backward"], "sp.attention_backward.default") == 2
    assert count(graphs["backward"], "sp.attention.default") == 0
    assert count(graphs["forward"], "sp.reduce") == 1  # the loss
    assert count(graphs["backward"], "sp.start_sums") == count(graphs["backward"], "sp.finish_sums") == 2 + 2
    ends = [str(node.target) for node in graphs["backward"].graph.nodes if str(node.target).startswith("sp.")]
    assert ends[-4:] == ["sp.finish_sums.default"] * 4


class TokenWise(nn.Module):
    """The least that has a local length: compiling more takes longer."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.out = nn.Embedding(61, 16), nn.Linear(16, 16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.tokens(ids) * 2).sin()


def compile_and_compare(cache: str) -> float:
    """The largest error over lengths that do and do not divide, with code cached in `cache`."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    torch.manual_seed(0)
    model = TokenWise().double()
    parallel = sp.parallelize(model, "striped")
    worst = 0.0
    for length in (21, 16):
        worst = max(worst, relative_error(parallel(batch(length)), model(batch(length))))
    return worst


@pytest.mark.slow
def test_code_cached_by_one_rank_serves_no_other(tmp_path):
    """torch keeps compiled code on disk by the text of the graph.  Ranks hold different lengths, so a second start
    must find each rank's own code, not that of the rank that wrote last."""
    for _ in range(2):
        assert max(run_processes(2, compile_and_compare, str(tmp_path), timeout_s=250)) < 1e-11
