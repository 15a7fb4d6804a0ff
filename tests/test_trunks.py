"""Parallelized trunks inside of plain models: loss and every gradient of the plain model, and all that people do with a
module that holds another."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import sp
from sp.testing import run_mesh, run_ranks
from sp.testing.compare import relative_error

pytestmark = pytest.mark.usefixtures("one_capture")

Found = dict[str, Tensor]


class Trunk(nn.Module):
    """Hidden states [B, S, 16] in, hidden states out.  It has what a checkpoint leaves out: a buffer."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.causal, self.scale = causal, 1.0
        self.register_buffer("turn", torch.linspace(0.5, 1.5, 16), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (4, 4)).transpose(1, 2) for part in self.qkv(self.norm(x) * self.turn).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return x + self.out(mixed.transpose(1, 2).flatten(2)) * self.scale


class Outer(nn.Module):
    """Parameters before the trunks, between them and behind; `shift` is used in all three places."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.start = nn.Linear(6, 16), nn.Parameter(torch.randn(16))
        self.encoder, self.between, self.decoder = Trunk(False), nn.LayerNorm(16), Trunk(True)
        self.head, self.shift = nn.Linear(16, 5), nn.Parameter(torch.randn(16))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.cat([self.start.expand(len(x), 1, 16), self.patches(x)], 1) + self.shift
        coded = self.encoder(hidden)
        told = self.decoder(self.between(coded) * self.shift) + coded.roll(1, 1)
        logits = self.head(told[:, 0] * self.shift + told.mean(1))
        return F.cross_entropy(logits, torch.arange(len(x)) % 5) + told.square().mean()


class Chained(Outer):
    """The decoder is called on what the encoder has returned."""

    def forward(self, x: Tensor) -> Tensor:
        told = self.decoder(self.encoder(self.patches(x) * self.shift))
        return F.cross_entropy(self.head(told[:, 0]), torch.arange(len(x)) % 5) + (told * self.start).square().mean()


def made(kind: type[nn.Module] = Outer) -> nn.Module:
    torch.manual_seed(0)
    return kind().double()


def images(length: int = 10) -> Tensor:
    return torch.randn(3, length, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(length))


def step(model: nn.Module, x: Tensor) -> Found:
    """The loss, the gradient of every parameter, and that of the input."""
    model.zero_grad()
    x = x.clone().requires_grad_()
    loss = model(x)
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), "x": x.grad, **gradients}  # type: ignore[dict-item]


def worst(found: Found, right: Found) -> float:
    assert found.keys() == right.keys()
    floor = 1e-6 * float(torch.stack([value.norm() for value in right.values()]).norm())  # of key biases: zero
    return max(relative_error(found[name], right[name], floor) for name in right)


def of_all_ranks(found: list[Found], right: Found) -> float:
    """Whole on every rank, and the same bits, so that parameters never drift apart."""
    for other in found[1:]:
        assert all(torch.equal(found[0][name], other[name]) for name in right)
    return max(worst(one, right) for one in found)


@pytest.mark.parametrize(
    ("strategy", "world"), [("ring", 2), ("striped", 3), ("zigzag", 4), ("allgather", 3), ("ulysses", 3)]
)
def test_a_trunk_alone(strategy: str, world: int) -> None:
    model, x = made(), images()

    def rank(group: dist.ProcessGroup) -> Found:
        mine = copy.deepcopy(model)
        mine.encoder = sp.parallelize(mine.encoder, strategy, mesh=group, compile=False)
        return step(mine, x)

    assert of_all_ranks(run_ranks(world, rank), step(model, x)) < 1e-11


def test_two_trunks_over_one_group() -> None:
    model = made()

    def rank(group: dist.ProcessGroup) -> list[Found]:
        mine = copy.deepcopy(model)
        mine.encoder = sp.parallelize(mine.encoder, "ulysses", mesh=group, compile=False)
        mine.decoder = sp.parallelize(mine.decoder, "zigzag", mesh=group, compile=False)
        return [step(mine, images(length)) for length in (10, 7, 12)]

    for length, *found in zip((10, 7, 12), *run_ranks(3, rank), strict=True):
        assert of_all_ranks(found, step(model, images(length))) < 1e-11


def test_two_trunks_over_the_axes_of_a_mesh() -> None:
    """Each rank is in a group of the encoder and in another one of the decoder."""
    model, x = made(), images()

    def rank(mesh: sp.MeshGroups) -> Found:
        mine = copy.deepcopy(model)
        mine.encoder = sp.parallelize(mine.encoder, "striped", mesh=mesh.outer, compile=False)
        mine.decoder = sp.parallelize(mine.decoder, "ring", mesh=mesh.inner, compile=False)
        return step(mine, x)

    assert of_all_ranks(run_mesh((2, 2), rank), step(model, x)) < 1e-11


def test_a_trunk_in_each_half_of_the_world() -> None:
    """Two models in one process group each, at the same time, with batches and lengths of their own."""
    model = made()

    def rank(mesh: sp.MeshGroups) -> tuple[int, Found, Found]:
        row = mesh.outer.rank()
        mine, other = copy.deepcopy(model), copy.deepcopy(model)
        mine.encoder = sp.parallelize(mine.encoder, ("striped", "ulysses")[row], mesh=mesh.inner, compile=False)
        other.decoder = sp.parallelize(other.decoder, ("zigzag", "ring")[row], mesh=mesh.inner, compile=False)
        return row, step(mine, images(8 + row)), step(other, images(5 + row))

    for row, first, second in run_mesh((2, 2), rank):
        assert worst(first, step(model, images(8 + row))) < 1e-11
        assert worst(second, step(model, images(5 + row))) < 1e-11


@pytest.mark.parametrize("strategy", ["zigzag", "ulysses"])
def test_trunks_that_hand_on_shards(strategy: str) -> None:
    model = made(Chained)

    def rank(group: dist.ProcessGroup) -> tuple[list[Found], str]:
        mine = copy.deepcopy(model)
        mine.encoder = sp.parallelize(mine.encoder, strategy, mesh=group, outputs="local", compile=False)
        mine.decoder = sp.parallelize(mine.decoder, strategy, mesh=group, inputs="local", compile=False)
        found = [step(mine, images(length)) for length in (10, 13)]
        return found, f"{mine.encoder.graph_module.graph} {mine.decoder.captured.graph}"

    results = run_ranks(3, rank)
    assert all("sp.unshard" not in graphs for _, graphs in results), "nothing is gathered between them"
    for length, *found in zip((10, 13), *(found for found, _ in results), strict=True):
        assert of_all_ranks(found, step(model, images(length))) < 1e-11


def test_shards_of_another_layout_are_dealt_anew() -> None:
    """From a striped trunk to a zigzag one, by one all-to-all."""
    model, x = made(Chained), images(11)

    def rank(group: dist.ProcessGroup) -> Found:
        mine = copy.deepcopy(model)
        encoder = sp.parallelize(mine.encoder, "striped", mesh=group, outputs="local", compile=False)
        decoder = sp.parallelize(mine.decoder, "zigzag", mesh=group, inputs="local", compile=False)
        mine.encoder, mine.decoder = encoder, nn.Sequential(Dealt(encoder, decoder), decoder)
        found = step(mine, x)
        return {name.replace("decoder.1.", "decoder."): value for name, value in found.items()}

    assert of_all_ranks(run_ranks(3, rank), step(model, x)) < 1e-11


class Dealt(nn.Module):
    def __init__(self, source: sp.ParallelModule, target: sp.ParallelModule) -> None:
        super().__init__()
        self.__dict__.update(source=source, target=target)

    def forward(self, x: Tensor) -> Tensor:
        return self.source.layout.redistribute(x, 1, self.target.layout)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.layers = nn.Linear(6, 16), nn.ModuleList(Trunk(False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x)
        for layer in self.layers:
            x = layer(x)
        return x.square().mean() + x[:, -1].sin().sum()


def test_a_chain_of_layers() -> None:
    model, x = made(Layers), images(11)

    def rank(group: dist.ProcessGroup) -> tuple[Found, list[str]]:
        mine = copy.deepcopy(model)
        mine.layers = sp.parallelize_chain(mine.layers, "zigzag", mesh=group, compile=False)
        found = step(mine, x)
        assert list(mine.state_dict()) == list(model.state_dict())
        return found, [str(layer.graph_module.graph) for layer in mine.layers]

    results = run_ranks(3, rank)
    assert of_all_ranks([found for found, _ in results], step(model, x)) < 1e-11
    for _, graphs in results:
        gathered = ["sp.unshard" in graph for graph in graphs]
        assert gathered == [False, False, True]


class Turned(Trunk):
    """Takes, beside hidden states, something else for each token."""

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        return super().forward(x * turn)


def test_a_chain_whose_layers_take_another_sequence_is_refused() -> None:
    """It is whole, and what the layers hand on is not."""
    layers, x = nn.ModuleList(Turned(False) for _ in range(2)).double(), torch.randn(1, 8, 16, dtype=torch.float64)

    def rank(group: dist.ProcessGroup) -> str:
        first, second = sp.parallelize_chain(copy.deepcopy(layers), mesh=group, compile=False)
        with pytest.raises(sp.InputError) as caught:
            second(first(x, x.sin()), x.sin())
        return str(caught.value)

    for message in run_ranks(2, rank):
        assert "inputs='local' with sequences of different lengths: x [1, 4, 16], turn [1, 8, 16]" in message


def test_an_empty_chain() -> None:
    with pytest.raises(sp.StrategyError, match="no layers to parallelize"):
        sp.parallelize_chain([])


def vit() -> tuple[nn.Module, str, Tensor]:
    """17 tokens: 16 patches and the class token."""
    from transformers import ViTConfig, ViTForImageClassification

    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 32,
    }
    model = ViTForImageClassification(ViTConfig(**sizes, image_size=16, patch_size=4, num_labels=3))
    return model, "vit.layers", torch.randn(2, 3, 16, 16, dtype=torch.float64)


def whisper() -> tuple[nn.Module, str, Tensor]:
    """A spectrogram of 26 frames becomes 13 tokens; the decoder stays as it is and reads them whole."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    sizes: dict[str, Any] = {
        f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")
    }
    tokens = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 1, "vocab_size": 61}
    config = WhisperConfig(
        **sizes, **tokens, d_model=16, encoder_ffn_dim=32, decoder_ffn_dim=32, max_source_positions=13, num_mel_bins=8
    )
    model = WhisperForConditionalGeneration(config)
    return model, "model.encoder.layers", torch.randn(2, 8, 26, dtype=torch.float64)


@pytest.mark.parametrize("family", [vit, whisper])
def test_transformers_whose_sequence_is_born_inside(family: Callable[[], tuple[nn.Module, str, Tensor]]) -> None:
    torch.manual_seed(0)
    model, path, x = family()
    model = model.double().train()
    labels = torch.tensor([0, 2]) if family is vit else torch.arange(10).view(2, 5) + 7

    def run(model: nn.Module) -> Found:
        class Loss(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return model(x, labels=labels).loss

        return step(Loss(), x) | {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    owner, _, name = path.rpartition(".")

    def rank(group: dist.ProcessGroup) -> Found:
        mine = copy.deepcopy(model)
        holder = mine.get_submodule(owner)
        setattr(holder, name, sp.parallelize_chain(getattr(holder, name), mesh=group, compile=False))
        assert list(mine.state_dict()) == list(model.state_dict())
        return run(mine)

    model.zero_grad()
    assert of_all_ranks(run_ranks(3, rank), run(model)) < 1e-10
