"""ParallelModule: the model's own names and modes, captures, and shards in and out."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sp
from sp.models import GPT, GPTConfig, Llama, LlamaConfig
from sp.testing.compare import errors_between, relative_error, run_once
from sp.testing.ranks import run_ranks


def gpt(**config):
    torch.manual_seed(0)
    return GPT(GPTConfig(vocab_size=61, max_length=64, layers=1, heads=2, width=16, **config)).double()


def ids(length):
    return torch.randint(0, 61, (2, length), generator=torch.Generator().manual_seed(length))


class Trunk(nn.Module):
    """Hidden states in, hidden states out: what a caller who holds shards parallelizes."""

    def __init__(self, width=16, heads=2):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads = heads

    def forward(self, x_BSD):
        parts = self.qkv(self.norm(x_BSD)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x_BSD + self.out(mixed.transpose(1, 2).flatten(2))


def test_names_are_the_models_own():
    model = gpt()
    parallel = sp.parallelize(model, compile=False)
    assert list(parallel.state_dict()) == list(model.state_dict())
    assert [name for name, _ in parallel.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert all(a is b for a, b in zip(parallel.parameters(), model.parameters(), strict=True))
    assert dict(parallel.named_modules()).keys() == dict(model.named_modules()).keys()
    assert parallel.config is model.config


def test_it_goes_by_the_models_name_and_bears_what_frameworks_put_on_it():
    parallel = sp.parallelize(gpt(), compile=False)
    assert parallel._get_name() == "GPT"
    parallel._device = torch.device("cpu")  # Lightning Fabric marks modules like this
    assert parallel(ids(9)).logits.shape == (2, 9, 61)


def test_state_dict_round_trip():
    parallel, other = sp.parallelize(gpt(), compile=False), gpt()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.5)
    parallel.load_state_dict(other.state_dict())
    assert torch.equal(parallel(ids(9)).logits, other(ids(9)).logits)


def test_tied_weights_stay_tied():
    parallel = sp.parallelize(gpt(tie_embeddings=True), compile=False)
    parallel(ids(9), labels=ids(9)).loss.backward()
    twins = [name for name, p in parallel.named_parameters(remove_duplicate=False) if p is parallel.head.weight]
    assert len(twins) == 2


def test_one_capture_for_all_lengths_and_batches():
    parallel = sp.parallelize(gpt(), compile=False)
    for rows, length in ((4, 9), (2, 9), (3, 12), (2, 40)):
        parallel(torch.zeros(rows, length, dtype=torch.long))
    assert len(parallel.executables) == 1
    for length in (9, 40):  # models do ask whether the batch is 1
        parallel(torch.zeros(1, length, dtype=torch.long))
    assert len(parallel.executables) == 2


def test_each_mode_structure_and_dtype_is_captured_once():
    parallel = sp.parallelize(gpt(), compile=False)
    for _ in range(2):
        parallel.train()(ids(9))
        parallel.eval()(ids(9))
        parallel(ids(9), labels=ids(9))
    assert len(parallel.executables) == 3
    assert not parallel.plain.training
    parallel.float()(ids(9))
    assert len(parallel.executables) == 4


def test_buffers_that_were_replaced_are_followed():
    """`.to()` gives the model new buffer objects; rope frequencies are one."""
    torch.manual_seed(0)
    model = Llama(LlamaConfig(vocab_size=61, layers=1, heads=2, kv_heads=1, width=16)).double()
    parallel = sp.parallelize(model, compile=False)
    parallel(ids(9))
    for name, buffer in list(model.named_buffers()):
        owner, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, buffer * 2)
    assert relative_error(parallel(ids(9)).logits, model(ids(9)).logits) < 1e-12
    assert len(parallel.executables) == 1


def test_deep_copy_is_independent():
    parallel = sp.parallelize(gpt(), compile=False)
    before = parallel(ids(9)).logits
    twin = copy.deepcopy(parallel)
    with torch.no_grad():
        next(twin.parameters()).zero_()
    assert torch.equal(parallel(ids(9)).logits, before)
    assert not torch.equal(twin(ids(9)).logits, before)


def test_example_arguments_capture_at_once():
    parallel = sp.parallelize(gpt(), example_args=(ids(9),), example_kwargs={"labels": ids(9)}, compile=False)
    assert "sp.attention" in str(parallel.graph_module.graph)
    assert "scaled_dot_product_attention" in str(parallel.captured.graph)
    assert "causal" in str(parallel.report())
    parallel(ids(12), labels=ids(12))
    assert len(parallel.executables) == 1


def test_inspect_without_a_group():
    report = sp.inspect(gpt(), (ids(32),), {"labels": ids(32)}, strategy="zigzag", world_size=8)
    assert "zigzag" in str(report)


@pytest.mark.parametrize("strategy", ["ring", "striped", "zigzag"])
@pytest.mark.parametrize("length", [12, 17])
def test_shards_in_and_out(strategy, length):
    torch.manual_seed(0)
    model = Trunk().double()
    x = torch.randn(2, length, 16, dtype=torch.float64)
    weight = torch.randn(2, length, 16, dtype=torch.float64)
    whole = x.clone().requires_grad_()
    expected = model(whole)
    (expected * weight).sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}

    def rank(group):
        local = copy.deepcopy(model)
        local.zero_grad()
        parallel = sp.parallelize(local, strategy, mesh=group, inputs="local", outputs="local", compile=False)
        mine = parallel.layout.shard(x, 1).requires_grad_()
        out = parallel(mine)
        (out * parallel.layout.shard(weight, 1)).sum().backward()
        errors = [relative_error(p.grad, gradients[name]) for name, p in local.named_parameters()]
        errors.append(relative_error(parallel.layout.unshard(out, 1), expected))
        errors.append(relative_error(parallel.layout.unshard(mine.grad, 1), whole.grad))
        return max(errors), parallel.layout.positions(length).tolist(), len(parallel.executables)

    found = run_ranks(3, rank)
    assert max(error for error, _, _ in found) < 1e-11
    assert sorted(position for _, positions, _ in found for position in positions) == list(range(length))
    assert all(captures == 1 for _, _, captures in found)


def test_shards_of_other_lengths_need_no_new_capture():
    model = Trunk().double()

    def rank(group):
        parallel = sp.parallelize(copy.deepcopy(model), mesh=group, inputs="local", compile=False)
        for length in (12, 17, 5):
            x = torch.randn(2, length, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(length))
            torch.testing.assert_close(parallel(parallel.layout.shard(x, 1)), model(x), rtol=1e-12, atol=1e-12)
        return len(parallel.executables)

    assert run_ranks(3, rank) == [1, 1, 1]


def test_shards_that_no_layout_deals():
    model = Trunk()

    def rank(group):
        parallel = sp.parallelize(model, mesh=group, inputs="local", compile=False)
        with pytest.raises(sp.InputError) as caught:
            parallel(torch.ones(2, 4 + 3 * group.rank(), 16))
        return str(caught.value)

    for message in run_ranks(2, rank):
        assert "the ranks hold [4, 7] tokens" in message
        assert "pmodel.layout.shard" in message


def test_some_outputs_local():
    model = gpt()

    def rank(group):
        parallel = sp.parallelize(copy.deepcopy(model), mesh=group, outputs={"logits": "local"}, compile=False)
        output = parallel(ids(11), labels=ids(11))
        return output.loss, output.logits, parallel.layout.positions(11)

    expected = model(ids(11), labels=ids(11))
    for loss, logits, positions in run_ranks(2, rank):
        torch.testing.assert_close(loss, expected.loss, rtol=1e-12, atol=0)
        torch.testing.assert_close(logits, expected.logits[:, positions], rtol=1e-12, atol=1e-12)


def test_an_output_that_the_model_lacks():
    with pytest.raises(sp.StrategyError, match=r"no output 'logit'(.|\n)*logits, loss"):
        sp.parallelize(gpt(), outputs={"logit": "local"}, compile=False)(ids(9), labels=ids(9))


def test_input_that_requires_grad_gets_its_whole_gradient():
    torch.manual_seed(0)
    model = Trunk().double()
    x = torch.randn(2, 11, 16, dtype=torch.float64)
    expected = x.clone().requires_grad_()
    model(expected).square().sum().backward()

    def rank(group):
        mine = x.clone().requires_grad_()
        sp.parallelize(copy.deepcopy(model), mesh=group, compile=False)(mine).square().sum().backward()
        return relative_error(mine.grad, expected.grad)

    assert max(run_ranks(3, rank)) < 1e-11


def test_attention_of_global_inputs_alone():
    """No parameter anywhere: the attention itself is where the sequence is spread."""
    q, k, v = (torch.randn(2, 2, 13, 8, dtype=torch.float64) for _ in range(3))

    class Attention(nn.Module):
        def forward(self, q, k, v):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def rank(group):
        return sp.parallelize(Attention(), mesh=group, sequence_dim=2, compile=False)(q, k, v)

    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    for found in run_ranks(3, rank):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_run_once_reads_the_only_output():
    model = Trunk().double()
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    assert errors_between(run_once(model, (x,), {}), run_once(model, (x,), {})).within(0)
