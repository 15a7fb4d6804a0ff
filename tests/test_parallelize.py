"""Whole models: loss, every output and every gradient equal to the single device's, in worlds of threads."""

import copy

import pytest
import torch

import sp
from sp.models import GPT, Encoder, EncoderConfig, GPTConfig, Llama, LlamaConfig
from sp.testing.compare import errors_between, run_once, total_norm
from sp.testing.ranks import run_mesh, run_ranks

pytestmark = pytest.mark.usefixtures("one_capture")

STRATEGIES = ("ring", "striped", "zigzag")
OTHERS = ("allgather", "ulysses")
TWO_AXES = ("usp", "usp_zigzag", "double_ring")
MODELS = {
    "gpt": lambda: GPT(GPTConfig(vocab_size=61, max_length=64, layers=2, heads=2, width=16)),
    "llama": lambda: Llama(LlamaConfig(vocab_size=61, layers=2, heads=4, kv_heads=2, width=32)),
    "llama repeat_kv": lambda: Llama(
        LlamaConfig(vocab_size=61, layers=1, heads=4, kv_heads=1, width=32, gqa="repeat_kv")
    ),
    "encoder": lambda: Encoder(EncoderConfig(vocab_size=61, max_length=64, layers=1, heads=2, width=16)),
}


def make(name, dtype=torch.float64):
    torch.manual_seed(0)
    return MODELS[name]().to(dtype)


def batch(length, rows=2, vocab=61):
    """Ids, and labels of which half are ignored on one row: ranks with unequal counts."""
    ids = torch.randint(0, vocab, (rows, length), generator=torch.Generator().manual_seed(length))
    labels = ids.clone()
    labels[0, : length // 2] = -100
    return ids, labels


def compare(model, strategy, world, lengths, **options):
    """Errors per length, on every rank, against the model itself."""
    calls = [batch(length) for length in lengths]
    references = [run_once(model, (ids,), {"labels": labels}) for ids, labels in calls]

    def rank(group):
        parallel = sp.parallelize(copy.deepcopy(model), strategy, mesh=group, compile=False, **options)
        runs = [run_once(parallel, (ids,), {"labels": labels}) for ids, labels in calls]
        assert len(parallel.executables) == 1, "another length needs no new capture"
        return [errors_between(run, reference) for run, reference in zip(runs, references, strict=True)]

    ranks = run_ranks(world, rank) if isinstance(world, int) else run_mesh(world, rank)
    return [errors for found in ranks for errors in found]


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        *((name, strategy) for name in MODELS for strategy in STRATEGIES),
        *(("llama", strategy) for strategy in OTHERS),
        *(pytest.param(n, s, marks=pytest.mark.slow) for n in MODELS if n != "llama" for s in OTHERS),
    ],
)
def test_model_is_exact_in_fp64(name, strategy):
    """Worlds of 2 and 4 are real processes, in test_processes.py."""
    for errors in compare(make(name), strategy, world=3, lengths=(12, 17, 4)):
        assert errors.within(1e-11), errors


@pytest.mark.parametrize("strategy", TWO_AXES)
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("llama", (2, 2)),
        ("encoder", (2, 3)),
        *(pytest.param(name, (3, 2), marks=pytest.mark.slow) for name in ("gpt", "llama repeat_kv")),
    ],
)
def test_model_on_two_axes_is_exact_in_fp64(name, shape, strategy):
    """2 or 4 heads, 1 or 2 of keys, which do not divide."""
    for errors in compare(make(name), strategy, shape, lengths=(12, 17, 6)):
        assert errors.within(1e-11), errors


@pytest.mark.parametrize(
    ("strategy", "world"),
    [
        ("striped", 8),
        *(
            pytest.param(name, world, marks=pytest.mark.slow)
            for name, world in [("striped", 16), ("zigzag", 8), ("ring", 8)]
        ),
        *(pytest.param(name, 7, marks=pytest.mark.slow) for name in OTHERS),
    ],
)
def test_many_ranks(strategy, world):
    for errors in compare(make("llama repeat_kv"), strategy, world, lengths=(16, 37)):
        assert errors.within(1e-11), errors


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("strategy", [*STRATEGIES, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_low_precision_is_no_worse_than_single_device(strategy, dtype):
    exact, model = make("llama"), make("llama", dtype)
    exact.load_state_dict(model.state_dict())  # the same values, exactly
    ids, labels = batch(96)
    right = run_once(exact, (ids,), {"labels": labels})
    own = run_once(model, (ids,), {"labels": labels})

    def rank(group):
        parallel = sp.parallelize(copy.deepcopy(model), strategy, mesh=group, compile=False)
        return run_once(parallel, (ids,), {"labels": labels})

    for run in run_ranks(3, rank):
        assert gradient_error(run, right) <= 1.5 * gradient_error(own, right)
        for found, single, truth in zip(run.outputs, own.outputs, right.outputs, strict=True):
            luck = torch.finfo(dtype).eps if truth.ndim == 0 else 0.0  # one number may happen to round to the truth
            assert distance(found, truth) <= 1.5 * distance(single, truth) + luck


def gradient_error(run, right):
    return total_norm(run.gradients[name].double() - right.gradients[name] for name in right.gradients)


def distance(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm())


def test_the_comparison_can_fail():
    """A gradient that misses one rank's part must be seen."""
    model = make("llama")
    ids, labels = batch(12)
    right = run_once(model, (ids,), {"labels": labels})
    wrong = run_once(model, (ids[:, :6],), {"labels": labels[:, :6]})
    assert errors_between(right, right).within(0)
    for run in (wrong.gradients, {**right.gradients, "norm.weight": right.gradients["norm.weight"] * (1 + 1e-10)}):
        changed = type(right)(right.outputs, run)
        assert not errors_between(changed, right).within(1e-11)


def test_the_comparison_sees_nan():
    model = make("llama")
    ids, labels = batch(12)
    right = run_once(model, (ids,), {"labels": labels})
    broken = {**right.gradients, "norm.weight": right.gradients["norm.weight"] * torch.nan}
    assert not errors_between(type(right)(right.outputs, broken), right).within(1e9)


def test_all_labels_ignored_is_nan_everywhere_as_on_one_device():
    model = make("gpt")
    ids, _ = batch(12)
    labels = torch.full_like(ids, -100)

    def rank(group):
        return sp.parallelize(copy.deepcopy(model), mesh=group, compile=False)(ids, labels=labels).loss

    assert model(ids, labels=labels).loss.isnan()
    assert all(loss.isnan() for loss in run_ranks(2, rank))


def test_rank_without_valid_labels():
    model = make("gpt")
    ids, labels = batch(12)
    labels[:, 1::2] = -100  # under striped, all of rank 1's
    reference = run_once(model, (ids,), {"labels": labels})

    def rank(group):
        return run_once(sp.parallelize(copy.deepcopy(model), mesh=group, compile=False), (ids,), {"labels": labels})

    for run in run_ranks(2, rank):
        assert errors_between(run, reference).within(1e-11)


def test_no_group_at_all():
    model = make("gpt")
    ids, labels = batch(9)
    parallel = sp.parallelize(copy.deepcopy(model), compile=False)
    errors = errors_between(run_once(parallel, (ids,), {"labels": labels}), run_once(model, (ids,), {"labels": labels}))
    assert errors.within(1e-12)


def test_one_training_step_then_another_capture_sees_the_new_weights():
    model = make("gpt")
    calls = [batch(10), batch(13)]

    def train(module):
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
        for ids, labels in calls:
            optimizer.zero_grad()
            module(ids, labels=labels).loss.backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
        return {name: value.detach().clone() for name, value in module.state_dict().items()}

    def rank(group):
        return train(sp.parallelize(copy.deepcopy(model), "zigzag", mesh=group, compile=False))

    right = train(copy.deepcopy(model))
    for state in run_ranks(3, rank):
        assert state.keys() == right.keys()
        for name, value in right.items():
            torch.testing.assert_close(state[name], value, rtol=1e-9, atol=1e-10)
