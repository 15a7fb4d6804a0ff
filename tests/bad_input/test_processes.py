"""In processes, as torchrun starts them: forks, meshes, groups that are gone, one rank with bad input."""

import os
import pickle
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import sp
from sp.testing.ranks import ProcessWorld
from tests.bad_input.harness import IDS, LABELS, Case, decoder, different, outcome, plain_outcome, proper

RIGHT = Case("proper", proper, "exact")


def message(run: Any) -> str:
    try:
        run()
    except Exception as error:  # noqa: BLE001 - looked at
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def in_turn() -> dict[str, Any]:
    """Everything that needs one capture, one after another; the last call is a proper one."""
    rank, model = dist.get_rank(), decoder()
    parallel = sp.parallelize(model, compile=False)
    right = plain_outcome(RIGHT).found
    found: dict[str, Any] = {"hash": hash("a word")}
    found["first"] = different(outcome(lambda: proper(parallel), model).found, right, 1e-10)
    found["none"] = message(lambda: parallel(None if rank else IDS))
    found["contents"] = message(lambda: parallel(IDS.flip(1) if rank else IDS, LABELS))
    found["length"] = message(lambda: parallel(IDS[:, : 12 - rank], LABELS[:, : 12 - rank]))
    found["vocabulary"] = message(lambda: parallel(IDS + 31 * rank, LABELS))
    found["fork"] = forked(parallel)
    twin = pickle.loads(pickle.dumps(parallel))
    found["pickled"] = message(lambda: proper(twin))
    found["last"] = different(outcome(lambda: proper(parallel), model).found, right, 1e-10)
    return found


def forked(parallel: Any) -> str:
    """What a forked child meets; it ends without the clean-up of its parent."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(write, message(lambda: proper(parallel)).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as pipe:
        return pipe.read()


def meshes() -> dict[str, str]:
    model, found = decoder(), dict[str, str]()

    def of(mesh: Any, strategy: str = "striped") -> str:
        return message(lambda: sp.parallelize(model, strategy, mesh=mesh))

    found["three axes"] = of(init_device_mesh("cpu", (1, 1, 2), mesh_dim_names=("pp", "dp", "sp")))
    found["two axes"] = of(init_device_mesh("cpu", (1, 2)))
    found["one axis for two"] = of(init_device_mesh("cpu", (2,)), "usp")
    found["three axes for two"] = of(init_device_mesh("cpu", (1, 1, 2)), "usp")
    found["in another order"] = of(DeviceMesh("cpu", [[1], [0]]), "usp")
    data = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    found["an axis that is not there"] = message(lambda: sp.fully_shard(model, data))
    alone = dist.new_group([0])
    found["without this rank"] = of(alone) if dist.get_rank() else "-"
    first = DeviceMesh("cpu", [0])
    found["a mesh without this rank"] = of(first) if dist.get_rank() else "-"
    gone = dist.new_group([0, 1])
    dist.destroy_process_group(gone)
    found["a group that is gone"] = of(gone)
    return found


@pytest.mark.filterwarnings("ignore")
def test_bad_input_between_proper_calls(world2: ProcessWorld) -> None:
    one, two = world2.run(in_turn)
    assert one["hash"] != two["hash"], "processes have hash seeds of their own, and agree all the same"
    for found in (one, two):
        assert found["first"] == found["last"] == []
        assert "the ranks disagree about the contents of the inputs" in found["contents"]
        assert "shapes of the inputs: rank 0: [[2, 12], [2, 12]]; rank 1: [[2, 11]" in found["length"]
        assert found["fork"].startswith("SpError: a parallelized model is called in a forked process")
        assert "remedy: call it there; in a new process, join a process group" in found["fork"]
        assert found["pickled"] == "nothing was raised"
    assert one["none"].startswith("RankMismatchError: rank 1 could not take part in this call: the call passes no")
    assert two["none"].startswith("InputError: the call passes no tensor")
    assert one["vocabulary"].startswith("RankMismatchError: rank 1 could not take part in this call: embedding: ")
    assert "needed: indices from 0 to 30" in two["vocabulary"]


@pytest.mark.filterwarnings("ignore")
def test_meshes(world2: ProcessWorld) -> None:
    for rank, found in enumerate(world2.run(meshes)):
        assert found["three axes"].startswith("StrategyError: the mesh has 3 axes: ('pp', 'dp', 'sp')")
        assert found["two axes"].startswith("StrategyError: the mesh has 2 axes")
        assert found["one axis for two"].startswith("StrategyError: the mesh has 1 axis")
        assert found["three axes for two"].startswith("StrategyError: the mesh has 3 axes")
        assert found["in another order"].startswith("StrategyError: row after row the ranks of the mesh are [1, 0]")
        assert found["an axis that is not there"].startswith("StrategyError: the mesh has the axes ['dp']")
        assert found["a group that is gone"].startswith("StrategyError: the process group")
        if rank:
            assert found["without this rank"].startswith("StrategyError: this rank is no part of the mesh")
            assert found["a mesh without this rank"].startswith("StrategyError: this rank is no part of the mesh")
