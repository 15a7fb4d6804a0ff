"""What `sp.count` counts, against the report's bytes, in worlds of threads and of processes."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sp
from sp.counting import Counts
from sp.runtime.agreement import STATEMENT_BYTES
from sp.runtime.tally import ALL_TO_ALL, EXCHANGE, GATHER, SUM, tallies_of
from sp.testing import run_mesh, run_ranks

pytestmark = pytest.mark.usefixtures("one_capture")

BATCH, HEADS, SIZE = 2, 4, 8


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 3 * HEADS * SIZE)
        for parameter in self.parameters():  # threads that draw at random would draw in turn
            nn.init.constant_(parameter, 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, SIZE)).permute(2, 0, 3, 1, 4).unbind(0)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def of_kind(counts: Counts, kind: str) -> tuple[int, int, int]:
    (found,) = (each for each in counts.kinds if each.kind == kind)
    return found.messages, found.sent, found.received


def trained(length: int, strategy: str, mesh: object, **options: object) -> tuple[Counts, Counts, dict[str, object]]:
    """Counts of forward and of backward, and the report."""
    pmodel = sp.parallelize(Attends().double(), strategy, mesh=mesh, **{"compile": False, **options})
    x = torch.linspace(-1, 1, BATCH * length * 16, dtype=torch.float64).view(BATCH, length, 16)
    with sp.count(pmodel, waits=True) as forward:
        out = pmodel(x)
    with sp.count(pmodel) as backward:
        out.sum().backward()
    return forward.counts, backward.counts, pmodel.report().as_dict()


@pytest.mark.parametrize(
    ("strategy", "world", "length", "kind"),
    [
        ("ring", 3, 23, EXCHANGE),
        ("striped", 3, 22, EXCHANGE),
        ("zigzag", 3, 24, EXCHANGE),
        ("ulysses", 4, 21, ALL_TO_ALL),
    ],
)
def test_bytes_are_those_of_the_report(strategy: str, world: int, length: int, kind: str) -> None:
    ranks = run_ranks(world, lambda group: trained(length, strategy, group))
    for rank, (forward, backward, report) in enumerate(ranks):
        (attention,) = report["attentions"]
        assert of_kind(forward, kind)[1] == BATCH * attention["sent_forward"][rank] > 0
        assert of_kind(backward, kind)[1] == BATCH * attention["sent_backward"][rank] > 0
        # Three statements of the ranks (the call, what parameters hold, the program), and the output: rows of the
        # longest part, from each of the others.
        rows = BATCH * max(report["local_lengths"]) * HEADS * SIZE * 8
        assert of_kind(forward, GATHER) == (4, *[(world - 1) * (3 * STATEMENT_BYTES + rows)] * 2)
        parameters = 8 * (16 + 1) * 3 * HEADS * SIZE
        _, sent, received = of_kind(backward, SUM)
        assert sent == received == 2 * parameters * (world - 1) // world
        assert forward.sent == of_kind(forward, kind)[1] + of_kind(forward, GATHER)[1]
        assert forward.messages == 4 + of_kind(forward, kind)[0]
        assert forward.waited_s is not None
        assert forward.waited_s > 0
        assert backward.waited_s is None
    for side in (0, 1):
        everything = [each[side] for each in ranks]
        assert sum(each.sent for each in everything) == sum(each.received for each in everything)


def test_two_axes_are_counted_together() -> None:
    for rank, (forward, backward, report) in enumerate(run_mesh((2, 2), lambda mesh: trained(22, "usp", mesh))):
        (attention,) = report["attentions"]
        for counts, sent in ((forward, attention["sent_forward"]), (backward, attention["sent_backward"])):
            assert of_kind(counts, EXCHANGE)[1] + of_kind(counts, ALL_TO_ALL)[1] == BATCH * sent[rank]
            assert of_kind(counts, EXCHANGE)[1] > 0


def test_processes_count_as_threads_do(world2) -> None:
    def bare(counts: Counts) -> list[tuple[int, int, int]]:
        return [(each.messages, each.sent, each.received) for each in counts.kinds]

    threads = run_ranks(2, lambda group: trained(9, "striped", group))
    processes = world2.run(trained, 9, "striped", None)
    assert [bare(side) for each in processes for side in each[:2]] == [
        bare(side) for each in threads for side in each[:2]
    ]


@pytest.mark.slow
def test_compiled_code_is_counted_alike(world2) -> None:
    def bare(counts: Counts) -> list[tuple[int, int, int]]:
        return [(each.messages, each.sent, each.received) for each in counts.kinds]

    eager = world2.run(trained, 9, "striped", None)
    compiled = world2.run(compiled_step, timeout_s=400)
    assert [bare(side) for each in compiled for side in each[:2]] == [bare(side) for each in eager for side in each[:2]]


def compiled_step() -> tuple[Counts, Counts, dict[str, object]]:
    return trained(9, "striped", None, compile=True)


def test_captures_and_graphs_that_are_used_again() -> None:
    model = Attends()
    pmodel, x = sp.parallelize(model, compile=False), torch.zeros(1, 8, 16)
    with sp.count(pmodel) as meter:
        pmodel(x)
        pmodel(x[:, :5])
        model.scale = 3.0  # a plain value that `forward` might read: captured anew
        pmodel(x)
    counts = meter.counts
    assert (counts.calls, counts.reused, counts.captures, counts.recaptures) == (3, 1, 2, 1)
    assert counts.capture_s > 0
    assert (counts.sent, counts.received, counts.messages) == (0, 0, 0)
    pmodel(x)
    assert meter.counts == counts, "counting ends with the block"


def test_blocks_lie_in_each_other_and_end_with_an_error() -> None:
    pmodel, x = sp.parallelize(Attends(), compile=False), torch.zeros(1, 8, 16)

    def stop() -> None:
        pmodel(x)
        raise RuntimeError("stop")

    with sp.count(pmodel) as outer:
        pmodel(x)
        with pytest.raises(RuntimeError, match="stop"), sp.count(None) as inner:
            stop()
    assert (outer.counts.calls, inner.counts.calls) == (2, 1)
    assert tallies_of("") == ()


def test_the_table_says_what_was_not_timed() -> None:
    (first, _, _), _ = run_ranks(2, lambda group: trained(8, "striped", group))
    lines = str(first).splitlines()
    assert lines[0] == "calls     1, 0 of them by a graph that had run before"
    assert lines[1].startswith("captures  1 in ")
    assert lines[2].startswith("waited    0.")
    assert [line.split()[0] for line in lines[6:]] == ["exchange", "all-gather", "all"]
    with sp.count(None) as meter:
        pass
    assert "not timed: sp.count(…, waits=True)" in str(meter.counts)
    facts = meter.counts.as_dict()
    assert (facts["sent"], facts["waited_s"], facts["kinds"][0]["kind"]) == (0, None, EXCHANGE)
    assert math.isclose(facts["capture_s"], 0)
