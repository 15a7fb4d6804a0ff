"""Printed programs: golden files for every stage, and what holds for each of them."""

import re
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import sp
from sp.models import Llama, LlamaConfig
from sp.program import Program
from sp.show import Report, print_program

Golden = Callable[[str, str], None]
Stages = Callable[[str], dict[str, Program]]
Inspect = Callable[..., Report]
MODELS = ["gpt", "llama", "encoder"]
# They change nothing in these models.
UNSHOWN = {"outputs", "inline", "flex", "autocast", "functionalize", "detach", "recognize", "noise", "decompose"}
STAGES = ["capture", "outputs", "inline", "flex", "autocast", "functionalize", "detach", "normalize", "canonical"]
STAGES += ["recognize", "noise", "attention", "decompose", "reduce", "place", "localize", "overlap"]


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage not in UNSHOWN])
@pytest.mark.parametrize("model", MODELS)
def test_stage_prints_as_before(model: str, stage: str, stages: Stages, golden: Golden) -> None:
    golden(f"show/{model}/{stage}", print_program(stages(model)[stage]))


@pytest.mark.parametrize("model", MODELS)
def test_verify_changes_nothing_but_the_signature(model: str, stages: Stages) -> None:
    programs = stages(model)
    assert list(programs) == [*STAGES, "verify"]
    overlapped, verified = (print_program(programs[stage]) for stage in ("overlap", "verify"))
    assert verified == overlapped.replace("after overlap:", "after verify:")


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("model", MODELS)
def test_every_name_is_printed_before_it_is_read(model: str, stage: str, stages: Stages) -> None:
    program = stages(model)[stage]
    assert undefined_names(program, print_program(program)) == []


def undefined_names(program: Program, text: str) -> list[str]:
    """Names that a line reads though no line above defines them."""
    names = {node.name for node in program.graph.nodes}
    known: set[str] = set()
    found: list[str] = []
    for line in text.splitlines()[2:]:
        if "╭" in line:
            continue
        if "╰" in line:
            known |= set(re.findall(r" is (\w+)", line))
            continue
        defined, _, read = line.lstrip("│ ").partition(" = ")
        arguments = read.partition("(")[2] or read  # not the op, which may be called like a node
        found += [name for name in re.findall(r"(?<![\w.])\w+(?![\w.(=])", arguments) if name in names - known]
        known.add(defined.split()[0])
    return found


def test_undefined_names_are_found(stages: Stages) -> None:
    program = stages("llama")["localize"]
    lines = print_program(program).splitlines()
    text = "\n".join(line for line in lines if not line.startswith("embedding "))
    assert set(undefined_names(program, text)) == {"embedding"}


def test_sizes_are_named_like_in_the_models(stages: Stages) -> None:
    text = print_program(stages("llama")["localize"])
    assert not re.search(r"\bs\d+\b", text), "torch's own symbols change from model to model"
    assert "i64[B, S]" in text
    assert "f32[B*S, 256]" in text


def test_print_is_the_same_every_time() -> None:
    def printed() -> str:
        ids = torch.zeros(2, 16, dtype=torch.long)
        model = Llama(LlamaConfig(layers=2, heads=2, kv_heads=1, width=16))
        return sp.inspect(model, (ids,), world_size=2).graph_table()

    assert printed() == printed()


def test_print_knows_no_world(inspect: Inspect) -> None:
    """All ranks hold the same program: neither the number of ranks nor the length stands in it."""
    few, many = inspect("llama", "zigzag", 2), inspect("llama", "zigzag", 16, 48)
    assert few.graph_table() == many.graph_table()


def test_sizes_that_shards_bring_keep_their_line() -> None:
    ids = torch.zeros(2, 16, dtype=torch.long)
    model = sp.parallelize(
        Llama(LlamaConfig(layers=2, heads=2, kv_heads=1, width=16)),
        inputs="local",
        outputs="local",
        compile=False,
        example_args=(ids,),
    )
    text = model.report().graph_table()
    assert re.search(r"^ids_BS .* local input, sequence in dim 1$", text, re.MULTILINE)
    assert re.search(r"^return logits .* local +=", text, re.MULTILINE)


def test_stages_are_signed(stages: Stages) -> None:
    programs = stages("gpt")
    for name, program in programs.items():
        assert print_program(program).startswith(f"after {name}: striped · {len(program.graph.nodes)} nodes")
    assert all(after.history[:-1] == before.history for before, after in pairwise(programs.values()))


class PythonsOwnNames(nn.Module):
    def forward(self, input: Tensor, list: Tensor) -> Tensor:  # noqa: A002
        return (input.view(input.shape[0], input.shape[1], 2, -1) * list.unsqueeze(2)).flatten(2)


@pytest.mark.parametrize("inputs", ["global", "local"])
def test_inputs_may_be_called_as_python_calls_its_own(inputs: str) -> None:
    """torch.fx names them otherwise, as it does the `input` of nn.Sequential and nn.Linear."""
    args = torch.randn(2, 9, 4), torch.randn(2, 9, 1)
    parallel = sp.parallelize(PythonsOwnNames(), inputs=inputs, example_args=args, compile=False)
    assert parallel(*args).shape == args[0].shape
    report, form = parallel.report(), "input" if inputs == "global" else "local input"
    text = report.graph_table()
    for name in ("input_1", "list_1"):
        assert re.search(rf"^{name} +f32\[B, S, \d\] +\w.* {form}, sequence in dim 1$", text, re.M), text
    assert "input_1" in report.to_html()
    assert "input (" in str(report)
