"""Arguments of the public functions, in a world of one without a process group: each is refused where it is given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import sp
from tests.bad_input.harness import IDS, LABELS, decoder, proper

Refused = tuple[str, Callable[[], Any], str]  # a name, what is called, `Class: words of its message`


def made(name: str, says: str, *args: Any, **options: Any) -> Refused:
    """sp.parallelize of the decoder with these options."""
    return f"parallelize: {name}", lambda: sp.parallelize(decoder(), *args, **options), says


def called(name: str, says: str, **options: Any) -> Refused:
    """What parallelize cannot know yet: a call is needed."""
    return f"parallelize and call: {name}", lambda: proper(sp.parallelize(decoder(), compile=False, **options)), says


def of(name: str, says: str, model: Callable[[], Any]) -> Refused:
    return f"parallelize: {name}", lambda: sp.parallelize(model(), compile=False), says


def run(name: str, says: str, call: Callable[[], Any]) -> Refused:
    return name, call, says


def inside() -> nn.Module:
    model = decoder()
    model.layers[0] = sp.parallelize(model.layers[0])
    return model


S = "StrategyError: "
STRATEGIES = [
    made("strategy: misspelt", f"{S}there is no strategy 'stripped'", "stripped"),
    made("strategy: in capitals", f"{S}there is no strategy 'Striped'", "Striped"),
    made("strategy: empty", f"{S}there is no strategy ''", ""),
    made("strategy: None", f"{S}the strategy is a NoneType", None),
    made("strategy: a number", f"{S}the strategy is a int", 3),
    made("strategy: a list", f"{S}the strategy is a list", ["ring"]),
    made("strategy: a Strategy", f"{S}the strategy is a Strategy", sp.STRATEGIES["ring"]),
    made("strategy: stripes of nothing", f"{S}'striped:0' names no width", "striped:0"),
    made("strategy: stripes of text", f"{S}'striped:wide' names no width", "striped:wide"),
    made("strategy: stripes below zero", f"{S}'striped:-4' names no width", "striped:-4"),
    made("strategy: stripes where there are none", f"{S}ring has no stripes", "ring:4"),
]
MESHES = [
    made("mesh: a number", f"{S}mesh is a int", mesh=2),
    made("mesh: a name", f"{S}mesh is a str", mesh="sp"),
    made("mesh: ranks", f"{S}mesh is a list", mesh=[0, 1]),
    made("mesh: an object", f"{S}mesh is a object", mesh=object()),
]
OPTIONS = [
    made("inputs: None", f"{S}inputs cannot be None", inputs=None),
    made("inputs: a list", f"{S}inputs cannot be ['global']", inputs=["global"]),
    made("inputs: unknown", f"{S}inputs cannot be 'shard'", inputs="shard"),
    made("outputs: None", f"{S}outputs cannot be None", outputs=None),
    made("outputs: a list", f"{S}outputs cannot be ['local']", outputs=["local"]),
    made("outputs: none of all", f"{S}outputs cannot be 'none'", outputs="none"),
    made("outputs: a number by name", f"{S}outputs cannot be 3", outputs={"logits": 3}),
    made("outputs: a list by name", f"{S}outputs cannot be ['local']", outputs={"logits": ["local"]}),
    called("outputs: of an unknown name", f"{S}the model has no output 'logitz'", outputs={"logitz": "local"}),
    made("compile: a word", f"{S}compile cannot be 'yes'", compile="yes"),
    made("compile: None", f"{S}compile cannot be None", compile=None),
    made("compile: a number", f"{S}compile cannot be 3", compile=3),
    made("compile: a list", f"{S}compile cannot be []", compile=[]),
    made("compile: an unknown setting", f"{S}compile cannot be {{'colour': 'red'}}", compile={"colour": "red"}),
    made("kernel: unknown", f"{S}there is no kernel 'fast'", kernel="fast"),
    made("kernel: a number", f"{S}there is no kernel 3", kernel=3),
    made("kernel: a list", f"{S}there is no kernel ['dense']", kernel=["dense"]),
    made("generator: a seed", f"{S}generator cannot be 3", generator=3),
    made("validate: a word", f"{S}validate cannot be 'no'", validate="no"),
    made("checkpoint: a word", f"{S}checkpoint cannot be 'yes'", checkpoint="yes"),
    made("sync_gradients: None", f"{S}sync_gradients cannot be None", sync_gradients=None),
    made("memory_budget: a word", f"{S}memory_budget cannot be 'half'", memory_budget="half"),
    made("memory_budget: below zero", f"{S}memory_budget is -1", memory_budget=-1),
    made("memory_budget: above one", f"{S}memory_budget is 2", memory_budget=2),
    made("memory_budget: NaN", f"{S}memory_budget is nan", memory_budget=float("nan")),
    made("memory_budget: None", f"{S}memory_budget cannot be None", memory_budget=None),
    made("machine: unknown", f"{S}there is no machine 'h9000'", "auto", machine="h9000"),
    made("machine: a number", f"{S}there is no machine 3", "auto", machine=3),
    made("sequence_dim: text", f"{S}sequence_dim cannot be '1'", sequence_dim="1"),
    made("sequence_dim: None", f"{S}sequence_dim cannot be None", sequence_dim=None),
    made("sequence_dim: a float", f"{S}sequence_dim cannot be 1.5", sequence_dim=1.5),
    made("sequence_dim: True", f"{S}sequence_dim cannot be True", sequence_dim=True),
    made("sequence_dim: a list", f"{S}sequence_dim cannot be [1]", sequence_dim=[1]),
    made("sequence_dim: text by name", f"{S}sequence_dim cannot be {{'ids': '1'}}", sequence_dim={"ids": "1"}),
    made("sequence_dim: None by name", f"{S}sequence_dim cannot be {{'ids': None}}", sequence_dim={"ids": None}),
    made("sequence_dim: by number", f"{S}sequence_dim cannot be {{0: 1}}", sequence_dim={0: 1}),
    called("sequence_dim: out of range", "InputError: no input has a sequence dim", sequence_dim=7),
    called(
        "sequence_dim: of the batch",
        "UnsupportedModelError: 1 node cannot be spread over ranks exactly",
        sequence_dim=0,
    ),
    called("sequence_dim: out of range by name", "InputError: sequence_dim 7 of 'ids'", sequence_dim={"ids": 7}),
    called("sequence_dim: of an unknown name", "InputError: sequence_dim names ['idz']", sequence_dim={"idz": 1}),
    called("sequence_dim: of nothing", "InputError: no input has a sequence dim", sequence_dim={}),
    called(
        "sequence_dim: the same dim twice", "InputError: sequence_dim of 'ids' is (1, 1)", sequence_dim={"ids": (1, 1)}
    ),
    called(
        "sequence_dim: three dims",
        "InputError: sequence_dim 2 of 'ids' is out of range",
        sequence_dim={"ids": (0, 1, 2)},
    ),
    made("example_args: a tensor", "InputError: example_args cannot be a Tensor", example_args=IDS),
    made("example_args: a number", "InputError: example_args cannot be 3", example_args=3),
    made("example_kwargs: a list", "InputError: example_kwargs cannot be a list", example_kwargs=[IDS]),
    made(
        "example_kwargs: unknown names",
        "UnsupportedModelError: torch.export cannot trace Decoder",
        example_kwargs={"idz": IDS},
    ),
    made("example_args: None inside", "InputError: the call passes no tensor", example_args=(None,)),
]
SUBJECTS = [
    of("None", f"{S}the model is a NoneType", lambda: None),
    of("a name", f"{S}the model is a str", lambda: "gpt2"),
    of("a class", f"{S}the model is the class ", lambda: nn.Linear),
    of("a function", f"{S}the model is a function", lambda: called),
    of("parameters", f"{S}the model is a ", lambda: decoder().state_dict()),
    of("a parallelized model", f"{S}the model is parallelized already", lambda: sp.parallelize(decoder())),
    of("a model that holds a parallelized one", f"{S}'layers.0' of the model is parallelized already", inside),
    of(
        "a model that is compiled",
        f"{S}the model is in a OptimizedModule",
        lambda: torch.compile(decoder(), backend="eager"),
    ),
    of("DataParallel", f"{S}the model is in a DataParallel", lambda: nn.DataParallel(decoder())),
    of("a scripted module", f"{S}the model is in a RecursiveScriptModule", lambda: torch.jit.script(nn.Linear(2, 2))),
    of(
        "a traced module",
        f"{S}the model is in a TopLevelTracedModule",
        lambda: torch.jit.trace(nn.Linear(2, 2), torch.ones(2, 2)),
    ),
    of("a ModuleList", f"{S}ModuleList has no forward", lambda: nn.ModuleList([nn.Linear(2, 2)])),
    of("a bare Module", f"{S}Module has no forward", nn.Module),
    of("a lazy module", f"{S}the parameter 'weight' has no shape yet", lambda: nn.LazyLinear(3)),
    of("an exported program", f"{S}a ", lambda: torch.export.export(nn.Linear(2, 2), (torch.ones(2, 2),))),
]
TOOLS = [
    run("inspect: None", f"{S}a NoneType", lambda: sp.inspect(None, (IDS,))),
    run("inspect: no arguments", "InputError: the call passes no tensor", lambda: sp.inspect(decoder())),
    run("inspect: a tensor for arguments", "InputError: args cannot be a Tensor", lambda: sp.inspect(decoder(), IDS)),
    run(
        "inspect: a list for keywords",
        "InputError: kwargs cannot be a list",
        lambda: sp.inspect(decoder(), (IDS,), [LABELS]),
    ),
    run("inspect: no ranks", f"{S}a world of 0 ranks", lambda: sp.inspect(decoder(), (IDS,), world_size=0)),
    run("inspect: ranks below zero", f"{S}a world of -2 ranks", lambda: sp.inspect(decoder(), (IDS,), world_size=-2)),
    run("inspect: half a rank", f"{S}world_size cannot be 2.5", lambda: sp.inspect(decoder(), (IDS,), world_size=2.5)),
    run(
        "inspect: ranks as text", f"{S}world_size cannot be '8'", lambda: sp.inspect(decoder(), (IDS,), world_size="8")
    ),
    run("inspect: no axes", f"{S}world_size cannot be ()", lambda: sp.inspect(decoder(), (IDS,), world_size=())),
    run("inspect: three axes", f"{S}", lambda: sp.inspect(decoder(), (IDS,), world_size=(2, 2, 2))),
    run(
        "inspect: two axes for striped",
        f"{S}the mesh has 2 axes",
        lambda: sp.inspect(decoder(), (IDS,), world_size=(2, 2)),
    ),
    run("inspect: one axis for usp", f"{S}the mesh has 1 axis", lambda: sp.inspect(decoder(), (IDS,), strategy="usp")),
    run("inspect: unknown strategy", f"{S}there is no strategy", lambda: sp.inspect(decoder(), (IDS,), strategy="x")),
    run("check: None", f"{S}a NoneType", lambda: sp.check(None, (IDS,))),
    run("check: a tensor for arguments", "InputError: args cannot be a Tensor", lambda: sp.check(decoder(), IDS)),
    run("check: no ranks", f"{S}a world of 0 ranks", lambda: sp.check(decoder(), (IDS,), world_size=0)),
    run("check: auto", f"{S}there is nothing to check of 'auto'", lambda: sp.check(decoder(), (IDS,), strategy="auto")),
    run("check: lengths of zero", "InputError: ", lambda: sp.check(decoder(), (IDS,), lengths=[0])),
    run("check: no lengths", "InputError: ", lambda: sp.check(decoder(), (IDS,), lengths=[])),
    run(
        "check: lengths as a number",
        "InputError: lengths cannot be 12",
        lambda: sp.check(decoder(), (IDS,), lengths=12),
    ),
    run(
        "check: lengths as text", "InputError: a length cannot be", lambda: sp.check(decoder(), (IDS,), lengths=["12"])
    ),
    run(
        "check: fewer tokens than ranks", "InputError: ", lambda: sp.check(decoder(), (IDS,), lengths=[2], world_size=4)
    ),
    run(
        "check: integers for a dtype",
        "InputError: the dtype of a check cannot be torch.int64",
        lambda: sp.check(decoder(), (IDS,), dtype=torch.int64),
    ),
    run("check: text for a dtype", "InputError: dtype cannot be", lambda: sp.check(decoder(), (IDS,), dtype="float64")),
    run(
        "estimate: no tokens",
        "InputError: one graph of Decoder does not hold",
        lambda: sp.estimate(decoder(), 0, 2, "h100", args=(IDS,)),
    ),
    run(
        "estimate: tokens as text",
        "InputError: length cannot be '8k'",
        lambda: sp.estimate(decoder(), "8k", 2, "h100", args=(IDS,)),
    ),
    run(
        "estimate: unknown machine",
        f"{S}there is no machine",
        lambda: sp.estimate(decoder(), 64, 2, "h9000", args=(IDS,)),
    ),
    run("estimate: no arguments", "InputError: the call passes no", lambda: sp.estimate(decoder(), 64, 2, "h100")),
    run("estimate: no ranks", f"{S}a world of 0 ranks", lambda: sp.estimate(decoder(), 64, 0, "h100", args=(IDS,))),
    run("data.stream: a number", f"{S}mesh is a int", lambda: sp.data.stream(2)),
    run("data.sampler: a name", f"{S}mesh is a str", lambda: sp.data.sampler([1, 2], "sp")),
    run(
        "data.cut: no batch",
        "InputError: batch cannot be a Tensor",
        lambda: sp.data.cut(IDS, sp.parallelize(decoder()).layout),
    ),
    run(
        "data.cut: an unknown name",
        "InputError: the batch has no 'x'",
        lambda: sp.data.cut({"ids": IDS}, sp.parallelize(decoder()).layout, {"x": 1}),
    ),
    run(
        "data.cut: text for a dim",
        f"{S}sequence_dim cannot be '1'",
        lambda: sp.data.cut({"ids": IDS}, sp.parallelize(decoder()).layout, "1"),
    ),
    run(
        "layout.shard: a list",
        "InputError: a list has no dim to be cut or joined",
        lambda: sp.parallelize(decoder()).layout.shard([1, 2], 0),
    ),
    run(
        "layout.shard: a dim that is not there", "InputError: ", lambda: sp.parallelize(decoder()).layout.shard(IDS, 5)
    ),
    run("layout.positions: below zero", "InputError: ", lambda: sp.parallelize(decoder()).layout.positions(-3)),
    run(
        "trace: no folder",
        "InputError: a trace cannot be written to",
        lambda: sp.trace("/no/such/folder/step.json").__enter__(),
    ),
    run("trace: a number", "InputError: a trace cannot be written to 3", lambda: sp.trace(3).__enter__()),
    run("trace: a mesh that is none", f"{S}mesh is a int", lambda: sp.trace(Path("step.json"), 2).__enter__()),
    run("parallelize_chain: nothing", f"{S}there are no layers", lambda: sp.parallelize_chain([])),
    run("parallelize_chain: a module", f"{S}layers cannot be a Linear", lambda: sp.parallelize_chain(nn.Linear(2, 2))),
    run("parallelize_chain: numbers", f"{S}the model is a int", lambda: sp.parallelize_chain([1, 2])),
    run("fully_shard: no mesh", f"{S}mesh is a NoneType", lambda: sp.fully_shard(decoder(), None)),
    run("register_rule: an unknown op", "RuleError: ", lambda: sp.register_rule("no::op", "... -> ...")),
    run("register_rule: no op", "RuleError: ", lambda: sp.register_rule(3, "... -> ...")),
    run(
        "measure_machine: an unknown device",
        f"{S}there is no device 'abacus'",
        lambda: sp.measure_machine(device="abacus"),
    ),
    run("measure_machine: a mesh that is none", f"{S}mesh is a int", lambda: sp.measure_machine(2)),
    run(
        "report: before any call", "SpError: nothing has been captured yet", lambda: sp.parallelize(decoder()).report()
    ),
    run(
        "generate: of what generates nothing",
        "SpError: Decoder has no method generate",
        lambda: sp.parallelize(decoder()).generate(IDS),
    ),
]
CASES = [*STRATEGIES, *MESHES, *OPTIONS, *SUBJECTS, *TOOLS]
