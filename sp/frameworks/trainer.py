"""transformers' Trainer over a parallelized model.

Trainer takes every rank for a replica of the model: it deals each another batch, wraps the model in
DistributedDataParallel over all of them, and gathers what each has found.  Where several ranks share a sequence

* the gradient stays exact: sp sums it over the ranks of a sequence, and the mean of equal gradients is each of them;
* the loss over a step's tokens stays exact: Trainer counts each token once for every rank that shares it, and
  multiplies by the number of ranks in turn;
* batches must be dealt to replicas, and what evaluation gathers taken once from each: this is what the mixin does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn
from torch.utils.data import DataLoader

from sp.errors import StrategyError
from sp.frameworks.replicas import Replicas
from sp.module import ParallelModule
from sp.options import check_whole

if TYPE_CHECKING:
    from transformers import Trainer
else:  # a mixin stands in front of the user's own Trainer
    Trainer = object


class TrainerMixin(Trainer):
    """Makes of a Trainer one for parallelized models, whatever else it was made for:

        >>> from transformers import Trainer, TrainingArguments
        >>> class SequenceTrainer(sp.frameworks.TrainerMixin, Trainer): ...
        >>> arguments = TrainingArguments("out", use_cpu=True, report_to=[])
        >>> pmodel = sp.parallelize(nn.Linear(4, 4))  # a model of transformers, mesh=mesh["sp"]
        >>> trainer = SequenceTrainer(model=pmodel, args=arguments)
        >>> trainer.model is pmodel.plain, trainer.parallel_model is pmodel
        (True, True)

    `trainer.model` is the plain model, as under DDP: it is saved, and callbacks see it.  What trains and evaluates is
    the parallelized one, `trainer.parallel_model`.  Batches are dealt to the groups of ranks that share a sequence: the
    batch size per device is that of a group.

    StrategyError: the model is a plain one, its inputs or outputs are not whole, or its parameters are sharded; the
    process group was made too late; or arguments ask for what Trainer or Accelerate would do to the plain model (fsdp,
    deepspeed, torch_compile, parallelism_config), or deal to ranks by themselves."""

    def __init__(self, model: ParallelModule, *args: Any, **kwargs: Any) -> None:
        _check_model(model)
        self.parallel_model, self.replicas = model, Replicas.of(model)
        super().__init__(model.plain, *args, **kwargs)
        _check_arguments(self)

    def get_train_dataloader(self) -> DataLoader[Any]:
        return deal(super().get_train_dataloader(), self.replicas)

    def get_eval_dataloader(self, *args: Any, **kwargs: Any) -> DataLoader[Any]:
        return deal(super().get_eval_dataloader(*args, **kwargs), self.replicas)

    def get_test_dataloader(self, *args: Any, **kwargs: Any) -> DataLoader[Any]:
        return deal(super().get_test_dataloader(*args, **kwargs), self.replicas)

    def get_total_train_batch_size(self, *args: Any, **kwargs: Any) -> int:
        return super().get_total_train_batch_size(*args, **kwargs) * self.replicas.count // self.replicas.world

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        self.gather_function = self._gather_once  # Trainer puts its own back at the end
        return super().evaluation_loop(*args, **kwargs)

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: DataLoader[Any] | None = None) -> Any:
        """In place of the plain model the parallelized one, which Accelerate wraps as it would the plain one."""
        if self.model_wrapped is self.model:  # nothing is wrapped yet
            self.model_wrapped = self.accelerator.prepare_model(self.parallel_model)
        return self.model_wrapped if training else self.parallel_model

    def _gather_once(self, data: Any) -> Any:
        """As Accelerate's `gather_for_metrics`: without the samples that fill up the last batch."""
        from accelerate.utils import recursively_apply

        state = self.accelerator.gradient_state
        size = state.remainder if state.end_of_dataloader and state.remainder > 0 else None
        return recursively_apply(lambda gathered: self.replicas.once(gathered)[:size], self.accelerator.gather(data))


def deal(loader: DataLoader[Any], replicas: Replicas) -> DataLoader[Any]:
    """The loader that Accelerate has prepared, dealing batches to replicas in place of ranks.

    StrategyError: rank 0 reads for all and cuts what it has read into one piece for each rank."""
    from accelerate.data_loader import BatchSamplerShard, DataLoaderDispatcher, IterableDatasetShard

    if isinstance(loader, DataLoaderDispatcher):
        raise StrategyError(
            "dispatch_batches deals a piece of each batch to every rank",
            needed="the same batch on all ranks that share a sequence",
            remedy='accelerator_config={"dispatch_batches": False} in the TrainingArguments',
        )
    sampler, dataset = loader.batch_sampler, loader.dataset
    if isinstance(sampler, BatchSamplerShard):
        sampler.num_processes, sampler.process_index = replicas.count, replicas.index
        sampler.even_batches = replicas.count > 1  # else the last batch may be short, as in one process
    if isinstance(dataset, IterableDatasetShard):
        dataset.num_processes, dataset.process_index = replicas.count, replicas.index
    return loader


def _check_model(model: nn.Module) -> None:
    from torch.distributed.tensor import DTensor

    if not isinstance(model, ParallelModule):
        raise StrategyError(
            f"the model is a {type(model).__name__}", needed="a parallelized one", remedy="sp.parallelize(model)"
        )
    check_whole(model.options, "Trainer")
    name = next((name for name, value in model.named_parameters() if isinstance(value, DTensor)), None)
    if name is not None:
        raise StrategyError(
            f"the parameter {name!r} is sharded, and Trainer saves what it takes to be whole on each rank",
            needed="parameters that are not sharded",
            remedy="a loop of your own (docs/composing.md), or Trainer without fully_shard",
        )


def _check_arguments(trainer: Trainer) -> None:
    arguments = trainer.args
    unfit = {
        'train_sampling_strategy="batch_rebalance"': arguments.train_sampling_strategy == "batch_rebalance",
        "eval_use_gather_object=True": arguments.eval_use_gather_object,
        "fsdp": trainer.is_fsdp_enabled,
        "deepspeed": trainer.is_deepspeed_enabled,
        "parallelism_config": arguments.parallelism_config is not None,
        "torch_compile=True": arguments.torch_compile,
    }
    remedies = {"torch_compile=True": "sp.parallelize compiles by itself", "fsdp": "sp.fully_shard and your own loop"}
    for name in (name for name, found in unfit.items() if found):
        raise StrategyError(
            f"TrainingArguments with {name} do not fit a parallelized model",
            remedy=remedies.get(name, "leave it out"),
        )
