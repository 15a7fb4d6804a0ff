"""A trace of all ranks: their names, clocks and spans, in one file."""

import json
from pathlib import Path
from typing import Any

import torch

import sp
from sp.models import Llama, LlamaConfig
from sp.testing import run_processes
from sp.tracing import merge_traces

IDS = torch.randint(0, 256, (1, 63), generator=torch.Generator().manual_seed(0))


def train(path: str) -> None:
    torch.manual_seed(0)
    model = sp.parallelize(Llama(LlamaConfig(layers=1, width=32)), compile=False)
    with sp.trace(path):
        model(IDS, labels=IDS).loss.backward()


def test_what_two_ranks_did_is_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    run_processes(2, train, str(path))
    assert [each.name for each in tmp_path.iterdir()] == ["step.json"]
    events = json.loads(path.read_text())["traceEvents"]
    for rank in (0, 1):
        names = [event["name"] for event in events if event["pid"] == rank and event["name"].startswith("sp: ")]
        for source in (0, 1):
            assert f"sp: attention to keys of rank {source}" in names
            assert f"sp: gradients of attention to keys of rank {source}" in names
        assert any(name.startswith(f"sp: send 4,096 bytes to rank {1 - rank}") for name in names), names
        assert any(name.startswith("sp: wait for ") for name in names)
    rows = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert rows == {0: "rank 0", 1: "rank 1"}


def test_a_world_of_one_needs_no_group(tmp_path: Path) -> None:
    with sp.trace(tmp_path / "one.json") as profiler:
        torch.ones(3) + 1
    assert profiler.events()
    assert json.loads((tmp_path / "one.json").read_text())["traceEvents"]


def test_clocks_are_those_of_rank_0() -> None:
    def one(base: int, start: float) -> dict[str, Any]:
        return {
            "baseTimeNanoseconds": base,
            "traceEvents": [{"name": "work", "ph": "X", "pid": 77, "ts": start, "id": 5}],
        }

    merged = merge_traces([one(5_000, 10.0), one(7_000, 10.0)])["traceEvents"]
    work = [event for event in merged if event["name"] == "work"]
    assert [(event["pid"], event["ts"], event["id"]) for event in work] == [(0, 10.0, "0.5"), (1, 12.0, "1.5")]
