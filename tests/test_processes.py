"""Whole models over real gloo processes, 2 and 4: loss, outputs, every gradient, and one optimizer step."""

import copy

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

import sp
from sp.models import GPT, Encoder, EncoderConfig, GPTConfig, Llama, LlamaConfig
from sp.testing.compare import errors_between, run_once

STRATEGIES = ("ring", "striped", "zigzag")
QUICK = {("gpt", "ring"), ("llama", "striped"), ("llama", "zigzag"), ("encoder", "zigzag")}
PAIRS = [
    pytest.param(name, strategy, marks=[] if (name, strategy) in QUICK else pytest.mark.slow)
    for name in ("gpt", "llama", "encoder")
    for strategy in STRATEGIES
]
TWO_AXES = ("usp", "usp_zigzag", "double_ring")  # on a mesh of 2 x 2


def build(name):
    """The model called `name`, in fp64, the same on every rank."""
    torch.manual_seed(0)
    if name == "gpt":
        return GPT(GPTConfig(vocab_size=61, max_length=64, layers=2, heads=2, width=16)).double()
    if name == "llama":
        return Llama(LlamaConfig(vocab_size=61, layers=2, heads=4, kv_heads=2, width=32)).double()
    if name == "encoder":
        return Encoder(EncoderConfig(vocab_size=61, max_length=64, layers=2, heads=2, width=16)).double()
    return transformers_model(name).double()


def transformers_model(name):
    import transformers as hf

    hf.utils.logging.set_verbosity_error()
    shape = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": None, "eos_token_id": None}
    if name == "hf llama":
        return hf.LlamaForCausalLM(hf.LlamaConfig(**shape, **heads))
    if name == "hf qwen3":
        return hf.Qwen3ForCausalLM(hf.Qwen3Config(**shape, **heads, head_dim=8))
    assert name == "hf gpt2"
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": None, "eos_token_id": None}
    return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=64, **still))


def batch(length):
    ids = torch.randint(0, 61, (2, length), generator=torch.Generator().manual_seed(length))
    labels = ids.clone()
    labels[0, : length // 2] = -100
    return ids, labels


def step(model):
    """One AdamW step from the gradients at hand; the parameters after it."""
    torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3).step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def compare_strategy(name, strategy, lengths, compiled=False):
    """On every rank: the errors of one call per length, and of the parameters after a step."""
    plain = build(name)
    axes = sp.STRATEGIES[strategy].axes
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=axes) if axes else None
    parallel = sp.parallelize(copy.deepcopy(plain), strategy, mesh=mesh, compile=compiled)
    found = []
    for length in lengths:
        ids, labels = batch(length)
        reference = run_once(plain, (ids,), {"labels": labels})
        found.append(errors_between(run_once(parallel, (ids,), {"labels": labels}), reference))
    moved, right = step(parallel), step(plain)
    return found, float((moved - right).norm() / right.norm())


def check(world, name, strategy, bound, lengths=(16, 21), compiled=False):
    for errors, moved in world.run(compare_strategy, name, strategy, lengths, compiled, timeout_s=400):
        for error in errors:
            assert error.within(bound), error
        assert moved <= bound


@pytest.mark.parametrize(("name", "strategy"), PAIRS)
def test_two_processes(world2, name, strategy):
    check(world2, name, strategy, 1e-11)


@pytest.mark.parametrize(("name", "strategy"), PAIRS)
def test_four_processes(world4, name, strategy):
    check(world4, name, strategy, 1e-11)


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        *(("llama", strategy) for strategy in TWO_AXES),
        *(pytest.param(n, s, marks=pytest.mark.slow) for n in ("gpt", "encoder") for s in TWO_AXES),
    ],
)
def test_four_processes_on_two_axes(world4, name, strategy):
    check(world4, name, strategy, 1e-11)


@pytest.mark.parametrize("strategy", ["usp", "double_ring"])
@pytest.mark.slow
def test_compiled_on_two_axes(world4, strategy):
    check(world4, "llama", strategy, 1e-11, compiled=True)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", ["hf llama", "hf qwen3", "hf gpt2"])
def test_transformers_two_processes(world2, name, strategy):
    """They compute norms and loss in fp32, whatever the model's dtype: hence the bound."""
    check(world2, name, strategy, 5e-6)


@pytest.mark.parametrize(("name", "strategy"), [("hf llama", "striped"), ("hf qwen3", "zigzag"), ("hf gpt2", "ring")])
def test_transformers_four_processes(world4, name, strategy):
    check(world4, name, strategy, 5e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy", ["striped", *(pytest.param(name, marks=pytest.mark.slow) for name in ("allgather", "ulysses"))]
)
def test_compiled_two_processes(world2, strategy):
    check(world2, "llama", strategy, 1e-11, compiled=True)
