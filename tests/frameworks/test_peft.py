"""Adapters of peft on packed documents: loss and every gradient of the plain model, and what changes between calls."""

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import sp
from sp.testing import run_ranks
from sp.testing.compare import relative_error

pytestmark = pytest.mark.usefixtures("one_capture")

pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

LENGTHS = (11, 6, 14)
Found = tuple[Tensor, dict[str, Tensor]]


def pack() -> dict[str, Tensor]:
    """Three documents in a row; the first token of each has no label."""
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    ids = torch.randint(40, positions.shape, generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "position_ids": positions, "labels": ids.masked_fill(positions == 0, -100)}


def base(checkpoint: bool = False) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=40, use_cache=False, **sizes, **heads))
    if checkpoint:
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
    return model


def lora(**options: Any) -> Any:
    """Adapters that are not zero, as they are after a while."""
    chosen = {"target_modules": "all-linear", "init_lora_weights": False, **options}
    return peft.LoraConfig(task_type="CAUSAL_LM", r=3, **chosen)


CONFIGS: dict[str, Callable[[], Any]] = {
    "lora": lora,
    "dora": lambda: lora(use_dora=True),
    "rank-stabilized": lambda: lora(use_rslora=True),
    "modules to save": lambda: lora(modules_to_save=["lm_head", "embed_tokens"]),
    "embeddings": lambda: lora(target_modules=["embed_tokens", "q_proj", "lm_head"]),
    "ia3": lambda: peft.IA3Config(task_type="CAUSAL_LM", init_ia3_weights=False),
    "vera": lambda: peft.VeraConfig(task_type="CAUSAL_LM", r=3, target_modules=["q_proj", "v_proj"]),
}


def adapted(config: str, checkpoint: bool = False) -> nn.Module:
    model = base(checkpoint)
    torch.manual_seed(2)
    return peft.get_peft_model(model, CONFIGS[config]()).double()


def step(model: nn.Module) -> Found:
    out = model(**pack())
    out.loss.backward()
    return out.logits.detach(), {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


def check(config: str, checkpoint: bool, world: int = 3) -> None:
    plain = adapted(config, checkpoint)
    copies = [copy.deepcopy(plain) for _ in range(world)]
    logits, gradients = step(plain)
    assert gradients
    assert len(gradients) < len(list(plain.parameters()))  # the rest is frozen

    def on_rank(group: dist.ProcessGroup) -> Found:
        return step(sp.parallelize(copies[group.rank()], mesh=group, compile=False))

    for found, ours in run_ranks(world, on_rank, timeout_s=240):
        assert relative_error(found, logits) < 1e-12
        assert ours.keys() == gradients.keys()
        assert max(relative_error(ours[name], gradients[name]) for name in gradients) < 1e-12


def test_lora_has_the_gradients_of_the_plain_model() -> None:
    check("lora", checkpoint=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "checkpoint"), [("lora", True), *((name, False) for name in CONFIGS if name != "lora")]
)
def test_adapters_have_the_gradients_of_the_plain_model(config: str, checkpoint: bool) -> None:
    check(config, checkpoint)


def merge(model: Any) -> None:
    model.set_adapter("default")
    model.merge_adapter()


def louder(model: Any) -> None:
    model.unmerge_adapter()
    for module in model.modules():
        if isinstance(module, peft.tuners.lora.LoraLayer):
            module.set_scale("default", 5.0)


CHANGES: dict[str, Callable[[Any], None]] = {
    "another adapter": lambda model: model.set_adapter("other"),
    "none": lambda model: model.base_model.disable_adapter_layers(),
    "again": lambda model: model.base_model.enable_adapter_layers(),
    "merged": merge,
    "louder": louder,
}


@torch.no_grad()
def answers(model: nn.Module, adapters: Any) -> list[Tensor]:
    """The logits at first, and after each of the changes of `adapters`, peft's own model."""
    found = [model(**pack()).logits]
    for change in CHANGES.values():
        change(adapters)
        found.append(model(**pack()).logits)
    return found


def test_adapters_that_change_between_calls_are_heard() -> None:
    """Switched, off, on, merged into the weights, scaled: each call computes what the plain model would."""
    plain = adapted("lora")
    plain.add_adapter("other", lora())
    plain.double().eval()
    model = copy.deepcopy(plain)
    expected = answers(plain, plain)
    apart = [relative_error(before, after) for before, after in itertools.pairwise(expected)]
    assert min(apart) > 1e-3  # the changes matter

    found = answers(sp.parallelize(model, compile=False), model)  # a world of one: what is heard is heard on all ranks
    assert max(relative_error(ours, theirs) for ours, theirs in zip(found, expected, strict=True)) < 1e-12
