"""A second opinion on the rules: torch's DTensor, where it has a sharding rule for the same op.

Each example of op_examples.txt is called with a DTensor that is sharded where the sequence is, everything else
replicated.  Where that needs no communication, DTensor's placement of the result must be ours; where it does, ours must
be a refusal.  Both opinions are listed where they differ, with the reason.
"""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.experimental import implicit_replication
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.passes.op_examples import EXAMPLES, SHAPES, Example, function

COMMUNICATES = "DTensor has no rule for this form and redistributes its operands first"
BIAS = "DTensor gives the bias to one rank; all ranks of sp run the same graph"
MAXIMUM = "DTensor has partial maxima, products and norms; what the table of sp refuses needs communication"
CHANNELS = "DTensor shards a dim of channels, and their weights with it; the sequence is no channel"
SIZES = "DTensor knows the sizes, where a rank of sp must be right for any length"
OPTIONS = "DTensor takes no notice of an option that changes the gradient"
DATA = "DTensor reads the repeats from a replicated tensor; sp wants a number"
TABLES = "DTensor masks what lies in another rank's part of a table and sums; the tables of sp are whole"
NO_DIMS = "DTensor reads an empty list of dims as none, eager torch as all"
NEGATIVE = "DTensor takes a negative dim for one that is not sharded"


APART = "sp takes it apart along the sequence and communicates inside (docs/sequence.md); so does DTensor, or has parts"
FILTER = "DTensor answers with the placement of the filter"


def each(ops: str, pairs: str, reason: str) -> dict[str, tuple[str, str]]:
    return dict.fromkeys(ops.split(), (pairs, reason))


# Op → pairs of opinions, ours and DTensor's, and the reason.
DISAGREEMENTS: dict[str, tuple[str, str]] = {
    **each("linear addmm baddbmm", "-/+ 1*/- 0*/- =/-", f"{BIAS}; {COMMUNICATES}"),
    **each("unbind select argmax logsumexp var var_mean kl_div min", "=/-", APART),
    **each("pad constant_pad_nd roll softmax log_softmax", "0/- 1/- 2/-", APART),
    **each("argmin", "+/-", APART),
    "split_with_sizes": ("0[/-", APART),
    **each("conv1d conv2d", "2[/= -/=", FILTER),
    **each("mm mv dot vdot tensordot chain_matmul linalg_multi_dot", "+/- 0/-", COMMUNICATES),
    **each("matmul addr einsum", "0/- 1/- 2/- 0*/- 1*/- +/-", COMMUNICATES),
    **each("diagonal triu tril cross linalg_cross", "0/- 1/- 2/- 3/-", COMMUNICATES),
    "slice": ("0/- 1/- 1[/- 2[/- =/-", f"{COMMUNICATES}; {APART}"),
    "cosine_embedding_loss": ("=/- +/-", COMMUNICATES),
    "cross_entropy_loss": ("=/- +/-", COMMUNICATES),
    "squeeze": ("-/0 -/1 -/2", SIZES),
    "repeat_interleave": ("-/0 -/1 -/2", DATA),
    "cat": ("-/0 0/- 1/- 2/-", f"{SIZES}; {APART}"),
    "cumsum": ("-/2", NEGATIVE),
    "sum": ("+/0 +/1 +/2", NO_DIMS),
    "mean": ("=/0 =/1 =/2", NO_DIMS),
    **each("max amax", "+/- =/+max", APART),
    "amin": ("=/+min", APART),
    "aminmax": ("-/+max -/+min", MAXIMUM),
    "prod": ("-/+product", MAXIMUM),
    "any": ("-/+", MAXIMUM),
    "all": ("-/+product =/+product", f"{MAXIMUM}; {APART}"),
    **each("norm linalg_vector_norm linalg_norm linalg_matrix_norm pairwise_distance", "-/+", MAXIMUM),
    "instance_norm": ("-/1 -/0", CHANNELS),
    "batch_norm": ("-/1 0/- 2/-", f"{CHANNELS}; {COMMUNICATES}"),
    "prelu": ("-/1", CHANNELS),
    "embedding": ("-/0 -/1 -/2 -/+", f"{OPTIONS}; {TABLES}"),
    "gather": ("-/+ =/-", f"{TABLES}; {APART}"),
    "bucketize": ("-/+", TABLES),
}
# Ops that everybody uses: tried in every run; the slow tests try all.
OFTEN = (
    "linear matmul bmm addmm baddbmm einsum mv outer view transpose permute unsqueeze squeeze expand repeat cat stack "
    "split softmax log_softmax cumsum sort topk flip sum mean amax argmax logsumexp var linalg_vector_norm layer_norm "
    "rms_norm group_norm embedding gather index_select index where mse_loss cross_entropy_loss nll_loss_nd"
)

pytestmark = pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="DTensor's rules change")


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    """Two ranks of which only this one exists."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


def opinion(example: Example, dim: int, mesh: DeviceMesh) -> str | None:
    """DTensor's, as a code of the examples; None if it has none."""
    shape = [size // 2 if at == dim else size for at, size in enumerate(SHAPES[dim])]
    x = DTensor.from_local(torch.rand(shape, dtype=torch.float64), mesh, [Shard(dim)], run_check=False)
    try:
        with implicit_replication(), CommDebugMode() as traffic:
            result = function(example.text)(x)
    except (RuntimeError, NotImplementedError, ValueError, IndexError, AssertionError, TypeError):
        return None
    if traffic.get_total_counts():
        return "-"
    return _code(result.placements[0]) if isinstance(result, DTensor) else None


def _code(placement: object) -> str:
    if isinstance(placement, Partial):
        return {"sum": "+", "avg": "="}.get(placement.reduce_op, f"+{placement.reduce_op}")
    if isinstance(placement, Replicate):
        return "="
    merged = "" if type(placement) is Shard else "*"
    return f"{placement.dim}{merged}"  # type: ignore[attr-defined]


def compare(op: str, mesh: DeviceMesh) -> int:
    """How many opinions agree; those that differ must be listed."""
    listed, agreed = DISAGREEMENTS.get(op, ("", ""))[0].split(), 0
    for example in EXAMPLES[op]:
        for dim in example.dims:
            ours, theirs = example.codes[dim], opinion(example, dim, mesh)
            averaged = (ours, theirs) == ("=", "+")  # a sum that the call itself divides
            if theirs is None or ours == theirs or averaged:
                agreed += theirs is not None
            else:
                assert f"{ours}/{theirs}" in listed, f"{example.text}, dim {dim}: {ours} here, {theirs} there"
    return agreed


def test_ops_that_everybody_uses(mesh: DeviceMesh) -> None:
    agreed = {op: compare(op, mesh) for op in OFTEN.split()}
    assert len([op for op, count in agreed.items() if count]) > 35
    assert sum(agreed.values()) > 200


@pytest.mark.slow
@pytest.mark.parametrize("op", EXAMPLES)
def test_every_op(op: str, mesh: DeviceMesh) -> None:
    compare(op, mesh)
