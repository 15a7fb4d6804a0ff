"""transformers' Trainer over a parallelized model: losses, parameters, evaluation and checkpoints of Trainer alone."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader, IterableDataset

import sp
from sp.errors import StrategyError
from sp.testing import ProcessWorld
from tests.frameworks.texts import apart, collate, like_torchrun, make, parameters, samples

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

# Trained in fp64, but for the loss and its first gradient, which transformers takes in fp32.
BOUND = 1e-6


@dataclass(frozen=True)
class Case:
    """What is asked of Trainer; `dp` x `sp` ranks, or Trainer alone on batches as large as all replicas' together."""

    dp: int = 1
    sp: int = 2
    options: dict[str, Any] = field(default_factory=dict)
    evaluated: int = 5
    dtype: torch.dtype = torch.float64
    bound: float = BOUND

    @property
    def arguments(self) -> dict[str, Any]:
        given = {"gradient_accumulation_steps": 2, "learning_rate": 0.3, "optim": "sgd", "max_steps": 5}
        given |= {"logging_steps": 1, "report_to": "none", "use_cpu": True, "disable_tqdm": True}
        return given | {"lr_scheduler_type": "linear", "save_strategy": "steps", "save_steps": 2} | self.options


@dataclass(frozen=True)
class Outcome:
    losses: list[float]
    norms: list[float]
    evaluated: float
    predicted: list[Tensor]
    trained: dict[str, Tensor]
    resumed: dict[str, Tensor]
    saved: dict[str, Tensor]
    seen: tuple[float, ...]


def alone(case: Case, folder: str) -> Outcome:
    from transformers import Trainer

    return outcome(case, folder, lambda **given: Trainer(model=make(case.dtype), **given), case.dp)


def spread(case: Case, folder: str) -> Outcome:
    from transformers import Trainer

    from sp.frameworks import TrainerMixin

    class SequenceTrainer(TrainerMixin, Trainer):
        pass

    like_torchrun()
    mesh = init_device_mesh("cpu", (case.dp, case.sp), mesh_dim_names=("dp", "sp"))
    model = lambda: sp.parallelize(make(case.dtype), mesh=mesh["sp"], compile=False)  # noqa: E731
    return outcome(case, folder, lambda **given: SequenceTrainer(model=model(), **given), 1)


def outcome(case: Case, folder: str, trainer_of: Any, replicas: int) -> Outcome:
    from transformers import LlamaForCausalLM, TrainingArguments, logging

    logging.set_verbosity_error()
    sizes = {"per_device_train_batch_size": 2 * replicas, "per_device_eval_batch_size": 2 * replicas}
    arguments = TrainingArguments(output_dir=folder, **case.arguments, **sizes)
    data = {"train_dataset": samples(15 if case.dp == 1 else 16, 1), "eval_dataset": samples(case.evaluated, 2)}
    trainer = trainer_of(args=arguments, data_collator=collate, **data)
    trainer.train()
    logs = [line for line in trainer.state.log_history if "loss" in line]
    evaluated = trainer.evaluate()["eval_loss"]
    predictions = torch.from_numpy(trainer.predict(data["eval_dataset"]).predictions)
    assert len(predictions) == case.evaluated
    again = trainer_of(args=arguments, data_collator=collate, **data)
    again.train(resume_from_checkpoint=f"{folder}/checkpoint-2")
    saved = LlamaForCausalLM.from_pretrained(f"{folder}/checkpoint-5", dtype=torch.float64)
    return Outcome(
        [line["loss"] for line in logs],
        [line["grad_norm"] for line in logs],
        evaluated,
        [row[: len(text["input_ids"])] for row, text in zip(predictions, data["eval_dataset"], strict=True)],
        parameters(trainer.model),
        parameters(again.model),
        parameters(saved),
        (trainer.state.epoch, trainer.state.max_steps, trainer.get_total_train_batch_size(arguments)),
    )


def check(case: Case, world: ProcessWorld, folder: Path) -> None:
    expected = alone(case, str(folder / "alone"))
    for found in world.run(spread, case, str(folder / "spread"), timeout_s=200):
        assert found.losses == pytest.approx(expected.losses, rel=case.bound)
        assert found.norms == pytest.approx(expected.norms, rel=case.bound)
        assert found.evaluated == pytest.approx(expected.evaluated, rel=case.bound)
        torch.testing.assert_close(found.predicted, expected.predicted, rtol=0, atol=case.bound)
        for name in ("trained", "resumed", "saved"):
            assert apart(getattr(found, name), getattr(expected, name)) < case.bound, name
        assert found.seen == expected.seen


@pytest.fixture(scope="module")
def world() -> Iterator[ProcessWorld]:
    with ProcessWorld(2) as ranks:
        yield ranks


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="defaults"),
        pytest.param(
            {"average_tokens_across_devices": False, "label_smoothing_factor": 0.1},
            marks=pytest.mark.slow,
            id="each counts its own tokens, smoothed labels",
        ),
    ],
)
def test_two_ranks_of_one_sequence_train_as_one_process(options, world, tmp_path):
    check(Case(options=options), world, tmp_path)


@pytest.mark.slow
def test_two_replicas_of_two_ranks_train_as_one_process_on_larger_batches(tmp_path):
    with ProcessWorld(4) as four:
        check(Case(dp=2, evaluated=8), four, tmp_path)


@pytest.mark.slow
def test_mixed_precision_is_that_of_trainer(world, tmp_path):
    """A gradient off by a factor would be off by 1 or more; bfloat16 itself is good for two digits."""
    check(Case(options={"bf16": True}, dtype=torch.float32, bound=0.05), world, tmp_path)


class Numbers(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


@pytest.mark.parametrize(
    ("data", "firsts", "dealt"),
    [
        (list(range(5)), (0,), [[[0, 1], [2, 3], [4]]]),
        (list(range(5)), (0, 3), [[[0, 1], [4, 0]], [[2, 3], [1, 2]]]),
        (Numbers(), (0,), [[[0, 1], [2, 3], [4, 0]]]),
        (Numbers(), (0, 3), [[[0, 1], [4, 0]], [[2, 3], [1, 2]]]),
    ],
)
def test_batches_are_dealt_to_replicas(data, firsts, dealt):
    from accelerate.data_loader import prepare_data_loader

    from sp.frameworks import Replicas
    from sp.frameworks.trainer import deal

    for rank in range(6):
        index = sum(rank >= first for first in firsts) - 1
        loader = deal(
            prepare_data_loader(DataLoader(data, 2), num_processes=6, process_index=rank), Replicas(firsts, index, 6)
        )
        assert [batch.tolist() for batch in loader] == dealt[index], rank
        assert isinstance(data, Numbers) or len(loader) == len(dealt[index])


def refusal(given: dict[str, Any], folder: str, kind: str = "parallel") -> str:
    from transformers import Trainer, TrainingArguments

    from sp.frameworks import TrainerMixin

    class SequenceTrainer(TrainerMixin, Trainer):
        pass

    like_torchrun()
    arguments = TrainingArguments(output_dir=folder, use_cpu=True, report_to="none", **given)
    try:
        model = make()
        if kind == "sharded":
            model = sp.fully_shard(model, init_device_mesh("cpu", (2,), mesh_dim_names=("sp",)), compile=False)
        elif kind != "plain":
            model = sp.parallelize(model, compile=False, **({"inputs": "local"} if kind == "parts" else {}))
        SequenceTrainer(model=model, args=arguments, train_dataset=samples(4, 1), data_collator=collate).train()
    except StrategyError as error:
        return str(error)
    return "trained"


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"train_sampling_strategy": "batch_rebalance"}, 'with train_sampling_strategy="batch_rebalance" do not fit'),
        ({"eval_use_gather_object": True}, "with eval_use_gather_object=True do not fit"),
        ({"torch_compile": True}, "sp.parallelize compiles by itself"),
        ({"accelerator_config": {"dispatch_batches": True}}, "dispatch_batches deals a piece of each batch"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(given, complaint, world, tmp_path):
    assert all(complaint in said for said in world.run(refusal, given, str(tmp_path)))


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        ("plain", "the model is a LlamaForCausalLM"),
        ("sharded", "is sharded, and Trainer saves what it takes to be whole"),
        (
            "parts",
            "Trainer passes whole sequences and reads whole results, and the model was parallelized with inputs='lo",
        ),
    ],
)
def test_what_is_not_whole_and_parallelized_is_refused(kind, complaint, world, tmp_path):
    assert all(complaint in said for said in world.run(refusal, {}, str(tmp_path), kind))
