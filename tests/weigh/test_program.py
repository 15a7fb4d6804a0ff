"""Workloads: attention sites with their own masks and lengths, what is shared, what is gathered, and words."""

import pytest
import torch
from torch import Tensor, nn

from sp.costs import Attending, AttentionShape, ModelShape
from sp.mask import CAUSAL, FULL, Band
from sp.models import Llama, LlamaConfig
from sp.weigh import weigh
from tests.weigh.models import MLP, Biased, Cross, Latents, Layer, prepare, weighed

X = torch.zeros(2, 12, 16)
SHAPE = AttentionShape(2, 2, 8, 8, 4)


def test_each_attention_has_its_own_mask() -> None:
    model = nn.Sequential(Layer(), Layer(window=4), Layer(), Layer(window=4), Layer())
    found = weighed(model, (100,), X)
    assert found.attentions == (
        Attending(SHAPE, CAUSAL, 100, 100, count=3, batch=2),
        Attending(SHAPE, Band(3, 0), 100, 100, count=2, batch=2),
    )
    assert found.name == "Sequential: 5 attentions, 4,080 parameters"


def test_queries_without_a_sequence_are_shared() -> None:
    found = weighed(Latents(), (40,), X)
    assert found.attentions == (Attending(AttentionShape(1, 1, 16, 16, 4), FULL, 5, 40, 1, 2, shared=True),)


def test_sequences_of_two_lengths() -> None:
    found = weighed(Cross(), (40, 24), X.requires_grad_(), torch.zeros(2, 8, 16))
    assert [(each.queries, each.keys) for each in found.attentions] == [(40, 24)]


def test_scores_that_compare_positions_count_as_causal() -> None:
    """Whatever the proven mask says, which is that nothing is known."""
    for causal, mask in ((True, CAUSAL), (False, FULL)):
        assert prepare(Biased(causal), X)[0].attentions[0].mask == FULL
        assert weighed(Biased(causal), (40,), X).attentions[0].mask == mask


def test_what_holds_no_sequence_every_rank_computes() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside, self.other = nn.Linear(4, 4, bias=False), nn.Parameter(torch.zeros(6, 4))

        def forward(self, x_BSD: Tensor) -> Tensor:
            return self.inside(x_BSD) + self.inside(self.other).sum(0)

    found = weighed(Own(), (9,), torch.zeros(1, 5, 4))
    assert found.token_flops == 2 * 4 * 4
    assert found.shared_flops == 6 * 2 * 4 * 4


def test_outputs_that_stay_are_not_gathered() -> None:
    program, tensors = prepare(MLP(), torch.zeros(3, 5, 4))
    whole = weigh(program, tensors, (7,), "MLP", lambda port: True)
    assert whole.output_bytes == 3 * 4 * 4
    assert weigh(program, tensors, (7,), "MLP", lambda port: False).output_bytes == 0


def test_a_loss_is_nothing_to_gather() -> None:
    ids = torch.zeros(2, 8, dtype=torch.long)
    model = Llama(LlamaConfig(layers=1, heads=2, kv_heads=1, width=16))
    assert weighed(model, (8,), ids, labels=ids).output_bytes == 2 * 256 * 4  # logits


def test_a_decoder_weighs_what_its_sizes_say() -> None:
    """Products and attentions exactly, parameters but for norms, activations of a layer within a tenth: norms."""
    ids = torch.zeros(1, 32, dtype=torch.long)
    configs = [LlamaConfig(layers=layers, heads=4, kv_heads=2, width=256, gqa="repeat_kv") for layers in (1, 3)]
    small, large = (weighed(Llama(config), (512,), ids, labels=ids) for config in configs)
    fewer, more = (ModelShape.of(config, item_bytes=4).workload(512) for config in configs)
    for found, sizes in ((small, fewer), (large, more)):
        assert found.token_flops == sizes.token_flops
        assert found.attentions == sizes.attentions
        assert found.state_bytes == pytest.approx(sizes.state_bytes, rel=0.01)
    assert large.token_bytes - small.token_bytes == pytest.approx(more.token_bytes - fewer.token_bytes, rel=0.1)


def test_large_models_are_called_so() -> None:
    with torch.device("meta"):
        model, x = MLP(4000, 400_000), torch.zeros(1, 5, 4000)
    assert weighed(model, (7,), x).name == "MLP: 0 attentions, 3.2 billion parameters"
    with torch.device("meta"):
        model, x = MLP(1000, 1000), torch.zeros(1, 5, 1000)
    assert weighed(model, (7,), x).name == "MLP: 0 attentions, 2.0 million parameters"
