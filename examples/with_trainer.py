"""transformers' Trainer, with sequences spread over ranks.

    torchrun --nproc-per-node 2 examples/with_trainer.py
    torchrun --nproc-per-node 4 examples/with_trainer.py --replicas 2

Of sp there are two lines: `parallelize`, and the mixin that deals batches to groups of ranks in place of ranks.  At the
end the first rank loads what Trainer has saved, and asks the plain model for the same loss.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile

import torch.distributed as dist
from bytes_llama import make_model, mean_loss, options, texts, verdict
from torch.distributed.device_mesh import init_device_mesh
from transformers import LlamaForCausalLM, Trainer, TrainingArguments

import sp
from sp.frameworks import TrainerMixin


class SequenceTrainer(TrainerMixin, Trainer):
    """Trainer; each of its batches goes to all ranks that share a sequence."""


def train(args: argparse.Namespace, folder: str) -> tuple[list[float], float]:
    """The loss of each step, and that of the trained model on other texts."""
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=args.steps,
        per_device_train_batch_size=1,  # of a group of ranks
        per_device_eval_batch_size=1,
        gradient_accumulation_steps=2,
        learning_rate=1e-3,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    ranks = dist.get_world_size() // args.replicas
    mesh = init_device_mesh("cpu", (args.replicas, ranks), mesh_dim_names=("dp", "sp"))
    trainer = SequenceTrainer(
        model=sp.parallelize(make_model(), mesh=mesh["sp"], compile=args.compile),
        args=arguments,
        train_dataset=texts(64, args.length),
        eval_dataset=texts(4, args.length, seed=1),
    )
    trainer.train()
    trainer.save_model()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return losses, trainer.evaluate()["eval_loss"]


def main() -> None:
    args = options(__doc__)
    dist.init_process_group("gloo")
    folder = [tempfile.mkdtemp(prefix="with_trainer_")]
    dist.broadcast_object_list(folder)  # where the first rank writes
    losses, loss = train(args, folder[0])
    good = True
    if dist.get_rank() == 0:
        alone = mean_loss(LlamaForCausalLM.from_pretrained(folder[0]), texts(4, args.length, seed=1))
        good = verdict(losses, loss, alone)
        shutil.rmtree(folder[0])
    dist.destroy_process_group()
    raise SystemExit(not good)


if __name__ == "__main__":
    main()
