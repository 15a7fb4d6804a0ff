"""Inputs that no rank holds whole: shards in the strategy's layout, and contiguous parts of any lengths."""

import copy
from collections.abc import Sequence

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import sp
from sp.models import GPT, GPTConfig, Llama, LlamaConfig
from sp.testing import run_mesh, run_ranks
from tests.test_trunks import Found, Trunk, worst

pytestmark = pytest.mark.usefixtures("one_capture")


class Headed(nn.Module):
    """Hidden states in; labels are shifted over the borders of the parts, positions are those of the whole."""

    def __init__(self) -> None:
        super().__init__()
        self.positions, self.trunk, self.head = nn.Parameter(torch.randn(64, 16)), Trunk(True), nn.Linear(16, 7)

    def forward(self, hidden: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.trunk(hidden + self.positions[: hidden.shape[1]]))
        shifted = F.pad(labels, (0, 1), value=-100)[:, 1:]
        return {"loss": F.cross_entropy(logits.flatten(0, 1), shifted.flatten()), "logits": logits}


def made() -> nn.Module:
    torch.manual_seed(0)
    return Headed().double()


def inputs(length: int) -> tuple[Tensor, Tensor]:
    """Half of one row counts, so that ranks count unequally."""
    generator = torch.Generator().manual_seed(length)
    labels = torch.randint(0, 7, (2, length), generator=generator)
    labels[0, length // 2 :] = -100
    return torch.randn(2, length, 16, dtype=torch.float64, generator=generator), labels


def step(model: nn.Module, hidden: Tensor, labels: Tensor) -> Found:
    model.zero_grad()
    hidden = hidden.detach().clone().requires_grad_()
    output = model(hidden, labels)
    output["loss"].backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {name: value.detach() for name, value in output.items()} | {"hidden": hidden.grad} | gradients  # type: ignore[operator]


def part(x: Tensor, lengths: Sequence[int], rank: int) -> Tensor:
    return x.split(list(lengths), 1)[rank]


@pytest.mark.parametrize(
    ("strategy", "world"), [("ring", 3), ("striped", 3), ("zigzag", 4), ("ulysses", 3), ("allgather", 2)]
)
def test_shards_of_hidden_states(strategy: str, world: int) -> None:
    model = made()

    def rank(group: dist.ProcessGroup) -> tuple[list[Found], str]:
        mine = copy.deepcopy(model)
        options = {"inputs": "local", "outputs": {"logits": "local"}, "compile": False}
        parallel = sp.parallelize(mine, strategy, mesh=group, **options)
        layout, found = parallel.layout, list[Found]()
        for length in (12, 17):
            one = step(parallel, *(layout.shard(x, 1) for x in inputs(length)))
            assert one["logits"].shape[1] == layout.local_length(length)
            found.append(one | {name: layout.unshard(one[name], 1) for name in ("logits", "hidden")})
        assert len(parallel.executables) == 1
        return found, str(parallel.graph_module.graph)

    for found, graph in run_ranks(world, rank):
        assert "sp.unshard" not in graph, "the whole sequence is never built"
        assert worst(found[0], step(model, *inputs(12))) < 1e-11
        assert worst(found[1], step(model, *inputs(17))) < 1e-11


@pytest.mark.parametrize(
    ("strategy", "lengths"),
    [("ring", (5, 6, 6)), ("striped", (6, 6, 5)), ("zigzag", (0, 16, 1)), ("ulysses", (17, 0, 0))],
)
def test_contiguous_parts(strategy: str, lengths: tuple[int, ...]) -> None:
    """As a layout deals them, as torch.chunk does, and as nobody would."""
    model = made()

    def rank(group: dist.ProcessGroup) -> Found:
        mine = copy.deepcopy(model)
        options = {"inputs": "contiguous", "outputs": {"logits": "local"}, "compile": False}
        parallel = sp.parallelize(mine, strategy, mesh=group, **options)
        found = step(parallel, *(part(x, lengths, group.rank()) for x in inputs(17)))
        assert found["hidden"].shape[1] == lengths[group.rank()]
        back = parallel.layout.to_contiguous(found["logits"], 1, lengths)
        assert back.shape[1] == lengths[group.rank()]
        return found | {"logits": back}

    results, right = run_ranks(3, rank), step(model, *inputs(17))
    for name in ("hidden", "logits"):
        whole = torch.cat([found[name] for found in results], 1)
        assert worst({name: whole}, {name: right[name]}) < 1e-11
    for found in results:
        assert worst({**found, "hidden": right["hidden"], "logits": right["logits"]}, right) < 1e-11


@pytest.mark.slow
def test_ids_of_any_lengths_need_no_new_capture() -> None:
    torch.manual_seed(0)
    llama = Llama(LlamaConfig(vocab_size=61, layers=2, heads=4, kv_heads=2, width=16)).double()
    gpt = GPT(GPTConfig(vocab_size=61, max_length=64, layers=1, heads=2, width=16)).double()
    cases = ((5, 6, 6), (6, 6, 5), (1, 2, 1), (20, 1, 0))

    def ids(length: int) -> Tensor:
        return torch.randint(0, 61, (2, length), generator=torch.Generator().manual_seed(length))

    def losses(model: nn.Module, batches: list[Tensor]) -> list[Found]:
        found: list[Found] = []
        for mine in batches:
            model.zero_grad()
            loss = model(mine, labels=mine).loss
            loss.backward()
            found.append({"loss": loss.detach(), **{name: p.grad.clone() for name, p in model.named_parameters()}})  # type: ignore[union-attr]
        return found

    def rank(group: dist.ProcessGroup) -> list[Found]:
        found: list[Found] = []
        for model in (llama, gpt):
            parallel = sp.parallelize(copy.deepcopy(model), mesh=group, inputs="contiguous", compile=False)
            found += losses(parallel, [part(ids(sum(lengths)), lengths, group.rank()) for lengths in cases])
            assert len(parallel.executables) == 1
        return found

    right = [*losses(llama, [ids(sum(lengths)) for lengths in cases]), *losses(gpt, [ids(sum(c)) for c in cases])]
    for found in run_ranks(3, rank):
        assert max(worst(one, other) for one, other in zip(found, right, strict=True)) < 1e-11


@pytest.mark.slow
def test_contiguous_parts_on_a_mesh_of_two_axes_and_of_a_strategy_to_choose() -> None:
    model, lengths = made(), (3, 4, 5, 1)
    right = step(model, *inputs(13))

    def rank(mesh: sp.MeshGroups) -> list[Found]:
        number, found = mesh.whole.rank(), list[Found]()
        for strategy, ranks in (("usp", mesh), ("auto", mesh.whole)):
            options = {"inputs": "contiguous", "machine": "h100", "compile": False}
            parallel = sp.parallelize(copy.deepcopy(model), strategy, mesh=ranks, **options)
            found.append(step(parallel, *(part(x, lengths, number) for x in inputs(13))))
        return found

    results = run_mesh((2, 2), rank)
    for strategy in range(2):
        whole = torch.cat([found[strategy]["hidden"] for found in results], 1)
        for found in results:
            assert worst(found[strategy] | {"hidden": whole}, right) < 1e-11


def test_what_the_ranks_hold_does_not_fit() -> None:
    model = Trunk(True)

    def rank(group: dist.ProcessGroup) -> list[str]:
        found: list[str] = []
        for form, lengths in (("local", (5, 6, 6)), ("contiguous", (1, 1, 0)), ("local", (0, 1, 1))):
            parallel = sp.parallelize(model, mesh=group, inputs=form, compile=False)  # type: ignore[arg-type]
            with pytest.raises(sp.InputError) as caught:
                parallel(torch.ones(2, lengths[group.rank()], 16))
            found.append(str(caught.value))
        return found

    for uneven, few, none in run_ranks(3, rank):
        assert "the ranks hold [5, 6, 6] tokens, 17 in all\n  needed: [6, 6, 5], as the striped" in uneven
        assert "for contiguous parts, inputs='contiguous'" in uneven
        assert "the ranks hold [1, 1, 0] tokens" in few
        assert "at least 3 in all" in few
        assert "the ranks hold [0, 1, 1] tokens" in none


def test_an_unknown_form_of_inputs() -> None:
    with pytest.raises(sp.StrategyError, match=r"inputs cannot be 'chunks'(.|\n)*'global', 'local' or 'contiguous'"):
        sp.parallelize(Trunk(True), inputs="chunks")  # type: ignore[arg-type]


class Names(nn.Module):
    """Inputs called as what generated code reads (`-inf`, `device`), and as inputs that sp adds to a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, torch: Tensor, device: Tensor, inf: Tensor, noise_seed: Tensor, global_length: Tensor) -> Tensor:
        late = hidden_before(torch.shape[1], torch.device)
        return self.linear(torch * device + inf).masked_fill(late, -float("inf")).exp() * noise_seed + global_length


def hidden_before(length: int, device: torch.device) -> Tensor:
    return torch.arange(length, device=device)[:, None] < 2


@pytest.mark.parametrize("form", ["global", "local"])
def test_inputs_may_have_any_name(form: str) -> None:
    torch.manual_seed(0)
    model, given = Names().double(), [torch.randn(2, 11, 16, dtype=torch.float64) for _ in range(5)]
    expected = model(*given)
    gradients = torch.autograd.grad(expected.square().sum(), list(model.parameters()))
    copies = [copy.deepcopy(model) for _ in range(3)]

    def rank(group: dist.ProcessGroup) -> float:
        parallel = sp.parallelize(copies[group.rank()], mesh=group, inputs=form, compile=False)  # type: ignore[arg-type]
        parts = given if form == "global" else [parallel.layout.shard(each, 1) for each in given]
        found = parallel(*parts)
        ours = torch.autograd.grad(found.square().sum(), list(parallel.parameters()))
        pairs = zip((found, *ours), (expected, *gradients), strict=True)
        return max((one - other).abs().max().item() for one, other in pairs)

    assert max(run_ranks(3, rank)) < 1e-11
