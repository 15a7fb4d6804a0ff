"""What all frameworks train on here: a small Llama of transformers, and texts of uneven length and uneven labels."""

import os
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import pad

VOCABULARY = 61
Sample = dict[str, Tensor]


def make(dtype: torch.dtype = torch.float64) -> nn.Module:
    """All but the loss of this dtype: that transformers takes in fp32 whatever the model is."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=True,
        )
    ).to(dtype)


def samples(count: int, seed: int) -> list[Sample]:
    """Of 9 to 25 tokens; some of the labels are ignored, of some texts most."""
    random = torch.Generator().manual_seed(seed)
    made: list[Sample] = []
    for number in range(count):
        ids = torch.randint(VOCABULARY, (int(torch.randint(9, 26, (1,), generator=random)),), generator=random)
        ignored = torch.rand(ids.shape, generator=random) < (0.8 if number % 3 == 0 else 0.1)
        made.append({"input_ids": ids, "labels": ids.masked_fill(ignored, -100)})
    return made


def collate(texts: Sequence[Sample]) -> Sample:
    """A batch padded on the right to its longest text."""
    longest = max(len(text["input_ids"]) for text in texts)
    fill = {"input_ids": 0, "labels": -100, "attention_mask": 0}
    masked = [{**text, "attention_mask": torch.ones_like(text["input_ids"])} for text in texts]
    return {
        name: torch.stack([pad(text[name], (0, longest - len(text[name])), value=value) for text in masked])
        for name, value in fill.items()
    }


def like_torchrun() -> None:
    """The environment that frameworks read a world from, in a rank of `ProcessWorld`."""
    seat = {"RANK": dist.get_rank(), "LOCAL_RANK": dist.get_rank(), "LOCAL_WORLD_SIZE": dist.get_world_size()}
    seat |= {"WORLD_SIZE": dist.get_world_size(), "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    seat |= {"GROUP_RANK": 0, "TORCHELASTIC_RUN_ID": "tests"}
    os.environ.update({name: str(value) for name, value in seat.items()})


def parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def apart(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest difference between trained parameters, relative to how far training has moved each."""
    assert found.keys() == expected.keys()
    start = parameters(make())
    return max(
        ((found[name] - expected[name]).norm() / (expected[name] - start[name]).norm()).item() for name in expected
    )
