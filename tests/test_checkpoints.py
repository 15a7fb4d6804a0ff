"""Checkpoints: written from any number of ranks and read on any other, also on none; the keys are the model's own.

Training goes on as if nothing had happened: the losses are those of one process that never stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import networkx as nx
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import sp
from sp.testing import ProcessWorld

WORLD, ROWS, LENGTH = 4, 4, 13
# said by `no_dist=True`, which is how one process reads and writes alone
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x_BSD: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(x_BSD).chunk(3, -1))
        return x_BSD + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


class Decoder(nn.Module):
    """Tied weights, and buffers at the root, one of which is not saved."""

    gain: Tensor
    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.e, self.head = nn.Embedding(61, 16), nn.Linear(16, 61, bias=False)
        self.head.weight = self.e.weight
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.register_buffer("gain", torch.rand(16))
        self.register_buffer("shift", torch.linspace(0, 1, 16), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """The loss of the next token."""
        x = self.e(ids) * self.gain + self.shift
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def make(seed: int = 0) -> Decoder:
    torch.manual_seed(seed)
    return Decoder().double()


def batch(step: int) -> Tensor:
    return torch.randint(0, 61, (ROWS, LENGTH), generator=torch.Generator().manual_seed(step))


@dataclass(frozen=True)
class Way:
    """How a model is spread: `dp` replicas, each over `sp` ranks; parameters plain, under FSDP over all, or DDP."""

    kind: str
    dp: int
    sp: int


@dataclass(frozen=True)
class Training:
    """A model under way.  mesh: None for the plain model in one process."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    mesh: DeviceMesh | None = None

    @staticmethod
    def begin(model: nn.Module, mesh: DeviceMesh | None = None) -> Training:
        return Training(model, torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3), mesh)

    def step(self, number: int) -> float:
        """The mean loss of all replicas."""
        self.optimizer.zero_grad()
        if self.mesh is None:
            loss = self.model(batch(number))
            loss.backward()
        else:
            replicas = self.mesh["dp"]
            loss = self.model(batch(number).chunk(replicas.size())[replicas.get_local_rank()])
            loss.backward()
            loss = loss.detach() / replicas.size()
            dist.all_reduce(loss, group=replicas.get_group())
        self.optimizer.step()
        return loss.item()

    def save(self, folder: Path) -> None:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        state = {"model": model, "optimizer": optimizer}
        dcp.save(state, checkpoint_id=folder, process_group=self._group(), no_dist=self.mesh is None)

    def load(self, folder: Path) -> None:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        state = {"model": model, "optimizer": optimizer}
        dcp.load(state, checkpoint_id=folder, process_group=self._group(), no_dist=self.mesh is None)
        model, optimizer = state["model"], state["optimizer"]
        set_state_dict(self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer)

    def _group(self) -> dist.ProcessGroup | None:
        return None if self.mesh is None else self.mesh._flatten("all").get_group()


def spread(way: Way, seed: int) -> Training:
    """On a part of the ranks; the others do the same among themselves."""
    names = ("copy", "dp", "sp")
    mesh = init_device_mesh("cpu", (WORLD // way.dp // way.sp, way.dp, way.sp), mesh_dim_names=names)["dp", "sp"]
    model = make(seed)
    if way.kind == "fsdp":
        return Training.begin(sp.fully_shard(model, mesh, compile=False), mesh)
    parallel = sp.parallelize(model, mesh=mesh["sp"], compile=False)
    if way.kind == "ddp":
        return Training.begin(DistributedDataParallel(parallel, process_group=mesh["dp"].get_group()), mesh)
    return Training.begin(parallel, mesh)


def relay(ways: Sequence[Way], first: Path) -> tuple[list[float], Path]:
    """Each way takes a step from what the one before has saved, the first from `first`; the losses, the last folder.

    Models are made once and loaded as often as they come."""
    trainings = {way: spread(way, seed) for seed, way in enumerate(dict.fromkeys(ways), 1)}
    losses, folder = list[float](), first
    for number, way in enumerate(ways, 1):
        training = trainings[way]
        training.load(folder)
        losses.append(training.step(number))
        folder = first.parent / f"{number}-{dist.get_rank() // (way.dp * way.sp)}"
        training.save(folder)
        dist.barrier()
        folder = first.parent / f"{number}-0"
    return losses, folder


PLAIN4, FSDP4, DDP4 = Way("plain", 1, 4), Way("fsdp", 2, 2), Way("ddp", 2, 2)
ALL = [*(Way("plain", 1, world) for world in (1, 2, 4)), *(Way("fsdp", 1, world) for world in (1, 2)), FSDP4, DDP4]
CIRCUIT = [begin for begin, _ in nx.eulerian_circuit(nx.complete_graph(len(ALL), nx.DiGraph))]
EVERY_PAIR = [ALL[number] for number in (*CIRCUIT, CIRCUIT[0])]  # and to where it began


@pytest.mark.slow
@pytest.mark.parametrize(
    "ways",
    [(PLAIN4, FSDP4, DDP4), pytest.param(EVERY_PAIR, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
    ids=len,
)
def test_training_goes_on_where_another_world_stopped(
    ways: Sequence[Way], world4: ProcessWorld, tmp_path: Path
) -> None:
    """From a plain model through all worlds back to a plain one, which has never seen anything but the last folder."""
    single = Training.begin(make())
    right = [single.step(number) for number in range(len(ways) + 2)]
    before, after = Training.begin(make()), Training.begin(make(99))
    losses = [before.step(0)]
    before.save(tmp_path / "begin")
    ranks = world4.run(relay, ways, tmp_path / "begin", timeout_s=800)
    assert [found for found, _ in ranks] == [pytest.approx(right[1:-1], rel=1e-11)] * WORLD
    after.load(ranks[0][1])
    losses.append(after.step(len(ways) + 1))
    assert losses == pytest.approx([right[0], right[-1]], rel=1e-11)
    assert after.model.head.weight is after.model.e.weight


def in_the_background(folder: Path) -> float:
    """Save while training goes on; the loss of the step that was saved in front of."""
    training = spread(FSDP4, 1)
    training.step(0)
    model, optimizer = get_state_dict(training.model, training.optimizer)
    group = dist.new_group(backend="gloo")  # the ranks talk in two threads at a time
    saving = dcp.async_save({"model": model, "optimizer": optimizer}, checkpoint_id=folder, process_group=group)
    loss = training.step(1)
    training.step(2)
    saving.result()
    return loss


def test_saving_in_the_background_saves_what_was_there(world4: ProcessWorld, tmp_path: Path) -> None:
    losses = world4.run(in_the_background, tmp_path / "async")
    plain = Training.begin(make(99))
    plain.load(tmp_path / "async")
    assert losses == pytest.approx([plain.step(1)] * WORLD, rel=1e-11)


def keys(kind: str) -> tuple[list[str], list[str], list[str]]:
    """The keys of the model's state, the same in full; what a strict load of that in full misses or does not know."""
    training = spread(Way(kind, 2, 2), 1)
    model, full = training.model, StateDictOptions(full_state_dict=True)
    whole = get_model_state_dict(model, options=full)
    answer = set_model_state_dict(model, dict(whole), options=full)
    return list(get_model_state_dict(model)), list(whole), [*answer.missing_keys, *answer.unexpected_keys]


@pytest.mark.parametrize("kind", ["plain", "fsdp", "ddp"])
def test_keys_are_the_model_s_own(kind: str, world4: ProcessWorld) -> None:
    right = list(make().state_dict())
    assert right == [
        "gain",
        "e.weight",
        "head.weight",
        *(f"blocks.{n}.qkv.{part}" for n in (0, 1) for part in ("weight", "bias")),
    ]
    for found in world4.run(keys, kind):
        assert found == (right, right, [])


def test_states_are_equal_key_for_key() -> None:
    model = make()
    parallel = sp.parallelize(model, compile=False)
    right = make().state_dict()
    assert equal(parallel.state_dict(), right)
    assert parallel.state_dict().keys() == get_model_state_dict(parallel).keys() == right.keys()
    assert parallel.load_state_dict(make(1).state_dict()) == model.load_state_dict(make(1).state_dict())
    assert torch.equal(model.gain, make(1).gain)
    assert parallel.head.weight is parallel.e.weight


class Outer(nn.Module):
    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.trunk = trunk


class Versioned(Decoder):
    """Reads what an older version wrote."""

    def _load_from_state_dict(self, state: dict[str, Tensor], prefix: str, *rest: object) -> None:
        if (old := state.pop(f"{prefix}old_gain", None)) is not None:
            state[f"{prefix}gain"] = old
        super()._load_from_state_dict(state, prefix, *rest)  # type: ignore[arg-type]


def test_a_parallelized_part_is_read_as_the_part_itself() -> None:
    outer = Outer(sp.parallelize(Versioned(), compile=False))
    state = Outer(Decoder()).state_dict()
    assert outer.state_dict().keys() == get_model_state_dict(outer).keys() == state.keys()
    state["trunk.old_gain"] = state.pop("trunk.gain")
    outer.load_state_dict(state)
    assert torch.equal(outer.trunk.gain, state["trunk.old_gain"])


def test_hooks_of_the_state_are_the_model_s() -> None:
    """Whichever of the two they were registered on."""
    model = make()
    parallel = sp.parallelize(model, compile=False)
    seen: list[str] = []
    parallel.register_state_dict_pre_hook(lambda *_: seen.append("save"))
    parallel.register_load_state_dict_pre_hook(lambda *_: seen.append("load"))
    model.register_load_state_dict_post_hook(lambda *_: seen.append("loaded"))
    parallel.load_state_dict(parallel.state_dict())
    model.load_state_dict(model.state_dict())
    assert seen == ["save", "load", "loaded"] * 2


def sharded_afterwards() -> list[str]:
    """Keys whose values are not sharded, of a model that has run forward alone.

    FSDP leaves the root's parameters gathered then."""
    mesh = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("sp",))
    parallel = sp.parallelize(make(), mesh=mesh["sp"], compile=False, sync_gradients=False)
    for module in (*parallel.blocks, parallel):
        fully_shard(module, mesh=mesh)
        module.set_force_sum_reduction_for_comms(True)
        module.set_gradient_divide_factor(1.0)
    parallel(batch(0))
    return [key for key, value in parallel.state_dict().items() if not isinstance(value, DTensor)]


def test_a_model_that_was_sharded_afterwards_saves_shards(world4: ProcessWorld) -> None:
    assert world4.run(sharded_afterwards) == [["gain"]] * WORLD


def with_safetensors(folder: Path) -> dict[str, Tensor]:
    """Rank 0 writes; all read what a plain model has written."""
    from safetensors.torch import load_model, save_model

    model = spread(PLAIN4, 1).model
    if dist.get_rank() == 0:
        save_model(model, str(folder / "parallel.safetensors"))
    dist.barrier()
    assert load_model(model, folder / "plain.safetensors") == (set(), [])
    return model.state_dict()


def test_safetensors_there_and_back(world4: ProcessWorld, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    plain, read = make(7), make(99)
    safetensors.save_model(plain, str(tmp_path / "plain.safetensors"))
    for found in world4.run(with_safetensors, tmp_path):
        assert equal(found, plain.state_dict())
    assert safetensors.load_model(read, tmp_path / "parallel.safetensors") == (set(), [])
    assert equal(read.state_dict(), make(1).state_dict())


def equal(found: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return found.keys() == right.keys() and all(torch.equal(value, right[name]) for name, value in found.items())


def pretrained(tied: bool) -> nn.Module:
    import transformers as hf

    hf.utils.logging.set_verbosity_error()
    torch.manual_seed(0)
    shape = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": None, "eos_token_id": None}
    return hf.LlamaForCausalLM(hf.LlamaConfig(**shape, **heads, tie_word_embeddings=tied)).double()


def trained_and_saved(folder: Path, sharded: bool, tied: bool) -> tuple[float, dict[str, Tensor]]:
    """The loss after a step, and the parameters; saved as a user of transformers does."""
    model = pretrained(tied)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "sp"))
    whole = mesh["sp"] if sharded else mesh._flatten("all")
    parallel = (
        sp.fully_shard(model, mesh, compile=False) if sharded else sp.parallelize(model, mesh=whole, compile=False)
    )
    optimizer, ids = torch.optim.SGD(parallel.parameters(), lr=0.1), batch(0)
    parallel(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    full = get_model_state_dict(parallel, options=StateDictOptions(full_state_dict=True, cpu_offload=sharded))
    if not sharded:
        parallel.save_pretrained(folder)
    elif dist.get_rank() == 0:
        parallel.save_pretrained(folder, state_dict=dict(full))  # it empties what it is given
    with torch.no_grad():
        return parallel(input_ids=ids, labels=ids).loss.item(), full


@pytest.mark.parametrize(("sharded", "tied"), [(True, False), pytest.param(False, True, marks=pytest.mark.slow)])
def test_save_pretrained_writes_the_plain_model(
    sharded: bool, tied: bool, world4: ProcessWorld, tmp_path: Path
) -> None:
    hf = pytest.importorskip("transformers")
    (loss, state), *_ = world4.run(trained_and_saved, tmp_path, sharded, tied)
    read = hf.LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert equal(read.state_dict(), state)
    assert read.config.architectures == ["LlamaForCausalLM"]
    ids = batch(0)
    assert read(input_ids=ids, labels=ids).loss.item() == pytest.approx(loss, rel=1e-11)
    again = sp.parallelize(read, compile=False)
    assert again(input_ids=ids, labels=ids).loss.item() == pytest.approx(loss, rel=1e-11)
