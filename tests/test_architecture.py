"""The architecture of `sp/` as a table, and a walk over the sources that holds it.

The sources are read as text, not imported: a module that is broken or needs a GPU is checked like any other.
"""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "sp").rglob("*.py"))

# unit of sp: (units it may import, packages it may import besides the standard library).
# A unit is a module or a package below sp; "" is sp/__init__.py. Lower layers come first. An import of sp is
# an arrow wherever it stands, inside a function or for the type checker too.
FACTS = "crossing errors heads layout mask plan score steps strategy tile traffic"
CALLS = "fitting options request executable"
INTERFACE = "counting faults measure mesh register tracing wiring api chain data"
ARROWS = {
    "errors": ("", ""),
    "heads": ("", ""),
    "layout": ("errors", ""),
    "crossing": ("layout", ""),
    "mask": ("errors layout", ""),
    "tile": ("", ""),
    "traffic": ("", ""),
    "cover": ("errors layout mask tile", ""),
    "steps": ("cover layout mask tile", ""),
    "plan": ("layout mask steps tile", ""),
    "strategy": ("errors layout", ""),
    "costs": ("errors heads layout mask plan strategy tile traffic", "tabulate"),
    "models": ("", "torch"),
    "score": ("", ""),
    "records": ("", "torch"),
    "caches": ("errors records sharded_cache", "torch transformers"),
    "sharded_cache": ("errors", "torch transformers"),
    "runtime": ("crossing errors heads layout mask plan score tile traffic", "torch"),
    "devices": ("", ""),
    "fsdp": ("errors", "torch"),
    "divisors": ("errors", "torch"),
    "settings": ("", "torch"),
    "inventory": ("", "torch"),
    "granted": ("fsdp inventory settings", "torch"),
    "program": (f"{FACTS} devices", "torch sympy"),
    "mesh": ("errors strategy runtime.world", "torch"),
    "measure": ("costs errors mesh runtime.comm runtime.world", "torch"),
    "faults": ("mesh runtime.faults runtime.world", "torch"),
    "generation": ("errors options runtime.agreement runtime.world", "torch"),
    "passes": (
        f"{FACTS} caches program runtime.ops runtime.kernels runtime.scores.op_table",
        "torch sympy networkx functorch",
    ),
    "weigh": (f"{FACTS} costs program passes", "torch sympy"),
    "show": (
        f"{FACTS} costs program passes.fxtools passes.naming passes.capture",
        "torch sympy networkx tabulate jinja2 matplotlib",
    ),
    "testing": (f"{FACTS} mesh program show runtime passes", "torch sympy networkx"),
    "course": ("errors", "torch"),
    "options": (f"{FACTS} costs course settings passes", "torch"),
    "request": (f"{FACTS} caches devices granted passes", "torch"),
    "choice": (f"{FACTS} costs program passes options weigh", "torch"),
    "facade": ("", "torch"),
    "transforms": ("errors", "torch"),
    "gradients": ("errors transforms runtime.comm runtime.world", "torch"),
    "slots": ("", "torch"),
    "pieces": ("fsdp passes.pieces", "torch"),
    "traces": ("", "torch"),
    "traceable": ("errors fsdp passes traces", "torch"),
    "executable": (
        (
            f"{FACTS} caches choice costs divisors fitting fsdp program passes pieces options request runtime.world "
            "slots traceable"
        ),
        "torch sympy",
    ),
    "captures": ("executable granted runtime.tally", "torch"),
    "shelf": ("executable", "torch"),
    "validation": (
        f"{FACTS} fsdp program show.words runtime.world passes testing options request executable traceable",
        "torch",
    ),
    "gate": ("errors runtime.world", "torch"),
    "values": ("errors inventory runtime.checksums", "torch"),
    "handshake": ("errors executable options request runtime values", "torch"),
    "fitting": (f"{FACTS} caches options request runtime.shards runtime.world", "torch"),
    "accord": (f"errors {CALLS} gradients granted handshake inventory runtime.agreement values", "torch"),
    "module": (
        (
            f"{FACTS} {CALLS} accord captures course facade gate generation gradients handshake program shelf show"
            " runtime passes transforms validation"
        ),
        "torch",
    ),
    "given": ("errors facade", "torch"),
    "asked": (f"{FACTS} costs given passes options", "torch"),
    "register": (f"{FACTS} passes testing traceable", "torch"),
    "api": (f"{FACTS} asked costs given mesh show passes options request executable validation module", "torch"),
    "tracing": ("errors mesh runtime.comm runtime.world", "torch"),
    "counting": ("mesh module runtime.tally runtime.world show.words", "torch"),
    "cli": ("api errors strategy costs show models testing validation", "torch click transformers"),
    "chain": ("api course errors given mesh passes.input_dims", "torch"),
    "data": ("errors given mesh module runtime.comm runtime.host runtime.shards runtime.world", "torch"),
    "wiring": ("api errors given module passes.output_forms runtime", "torch"),
    "frameworks": ("data errors module options runtime.world", "torch accelerate"),
    "": (
        f"{FACTS} {INTERFACE} program show runtime passes testing validation module models costs",
        "",
    ),
}
MAX_FILE_LINES = {"sp/models/": 300, "sp/": 250}  # the first prefix that fits
MAX_FUNCTION_LINES = 50
READS_ENVIRONMENT = {"environ", "environb", "getenv", "getenvb"}
TOUCHES_GROUP_OR_DEVICE = {
    *("init_process_group", "new_group", "init_device_mesh", "DeviceMesh", "get_rank", "get_world_size"),
    *("is_available", "device_count", "current_device", "set_device", "get_device_capability", "cuda"),
}

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def unit_of(path: str) -> str:
    """`sp/passes/rules.py` -> `passes`, `sp/api.py` -> `api`, `sp/__init__.py` -> ``."""
    parts = Path(path).with_suffix("").parts
    return "" if parts == ("sp", "__init__") else parts[1]


def imports(path: str, tree: ast.Module) -> Iterator[tuple[int, str, bool]]:
    """Of every import: its line, its absolute dotted target, and whether only the type checker sees it."""
    package = Path(path).parent.parts
    guards = [n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)]
    typing_only = {id(node) for guard in guards for child in guard.body for node in ast.walk(child)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            targets = [".".join([*base, *filter(None, [node.module]), alias.name]) for alias in node.names]
        else:
            continue
        for target in targets:
            yield node.lineno, target, id(node) in typing_only


def check_arrows(path: str, source: str) -> Iterator[str]:
    """Imports that the table does not allow."""
    unit = unit_of(path)
    if unit not in ARROWS:
        yield f"{path}:1: unit {unit!r} has no row in ARROWS; add one that says what it may import"
        return
    inside, outside = (column.split() for column in ARROWS[unit])
    own = f"sp.{unit}" if unit else "sp"
    allowed = [f"sp.{name}." for name in [unit, *inside] if name]
    for line, target, typing_only in imports(path, ast.parse(source, path)):
        top = target.partition(".")[0]
        refusal = f"{path}:{line}: {own} may not import {target}, only"
        if top == "sp" and not f"{target}.".startswith(tuple(allowed)):
            yield f"{refusal} {inside}; move what both need to a lower unit, or take it as an argument"
        elif top not in {"sp", *outside, *sys.stdlib_module_names} and not typing_only:
            yield f"{refusal} {outside}; move the code to a unit that may, or import it for types only"


def check_sizes(path: str, source: str) -> Iterator[str]:
    """Files and functions that are too long to read at one go."""
    limit = next(lines for prefix, lines in MAX_FILE_LINES.items() if path.startswith(prefix))
    length = len(source.splitlines())
    if length > limit:
        yield f"{path}:{limit + 1}: {length} lines, at most {limit}; split the file by what its parts know"
    for node in ast.walk(ast.parse(source, path)):
        if isinstance(node, FUNCTIONS):
            length = (node.end_lineno or 0) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                yield (
                    f"{path}:{node.lineno}: {node.name} has {length} lines, at most {MAX_FUNCTION_LINES};"
                    " give its steps names of their own"
                )


def check_environment(path: str, source: str) -> Iterator[str]:
    """Reads of environment variables: an option is an argument, never hidden state."""
    for node in ast.walk(ast.parse(source, path)):
        if isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in READS_ENVIRONMENT.intersection(names):
            yield f"{path}:{node.lineno}: reads the environment ({name}); take an argument instead"


def at_import(node: ast.AST) -> Iterator[ast.AST]:
    """What runs when the module is imported: everything but the bodies of functions."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (*FUNCTIONS, ast.Lambda)):
            yield child
            yield from at_import(child)


def check_import_effects(path: str, source: str) -> Iterator[str]:
    """Calls on module level that touch a process group or a device."""
    for node in at_import(ast.parse(source, path)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name.rpartition(".")[2] in TOUCHES_GROUP_OR_DEVICE:
                yield f"{path}:{node.lineno}: calls {name} at import; call it where its result is needed"


CHECKS = [check_arrows, check_sizes, check_environment, check_import_effects]
Check = Callable[[str, str], Iterator[str]]


@pytest.mark.parametrize("check", CHECKS)
def test_tree_holds(check: Check) -> None:
    assert FILES, f"no sources below {ROOT / 'sp'}: this test would prove nothing"
    found = [v for file in FILES for v in check(file.relative_to(ROOT).as_posix(), file.read_text("utf-8"))]
    assert not found, "\n" + "\n".join(found)


def test_table_has_layers() -> None:
    """The arrows make no circle, and what is free of torch imports only what is free of torch."""
    arrows = {unit: [name.partition(".")[0] for name in row[0].split()] for unit, row in ARROWS.items()}
    assert list(TopologicalSorter(arrows).static_order())  # raises CycleError, which names the circle
    free = [unit for unit in ARROWS if unit and not ARROWS[unit][1]]
    assert {"layout", "mask", "plan"} <= set(free)
    for unit in free:
        assert set(arrows[unit]) <= set(free), f"{unit} is free of torch, what it imports is not"


def test_import_touches_no_group_and_no_device() -> None:
    code = (
        "import sp, torch; assert sp.__file__, 'sp/__init__.py is missing';"
        "assert not torch.distributed.is_initialized(); assert not torch.cuda.is_initialized();"
        "import sys; assert not {'sp.show.pictures', 'matplotlib'} & set(sys.modules), 'pictures wait to be asked for'"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


LONG_FUNCTION = "def f():\n" + "    x = 1\n" * 50
PLANTED = [
    (check_arrows, "sp/layout.py", "import torch", "may not import torch"),
    (check_arrows, "sp/plan.py", "def f():\n    import torch.fx", ":2: sp.plan may not import torch.fx"),
    (check_arrows, "sp/plan.py", "from sp.program import Program", "may not import sp.program.Program"),
    (check_arrows, "sp/runtime/ring.py", "from ..passes import rules", "may not import sp.passes.rules"),
    (check_arrows, "sp/runtime/ring.py", "from .. import show", "may not import sp.show"),
    (check_arrows, "sp/passes/rules.py", "from sp.runtime import ring", "may not import sp.runtime.ring"),
    (check_arrows, "sp/passes/rules.py", "import sp.runtime", "may not import sp.runtime"),
    (check_arrows, "sp/costs/work.py", "import torch", "may not import torch"),
    (check_arrows, "sp/costs/work.py", "from sp.show import Report", "may not import sp.show.Report"),
    (check_arrows, "sp/models/gpt.py", "from sp.layout import Run", "may not import sp.layout.Run"),
    (check_arrows, "sp/models/gpt.py", "import transformers", "may not import transformers"),
    (check_arrows, "sp/testing/oracle.py", "import sp.api", "may not import sp.api"),
    (check_arrows, "sp/testing/oracle.py", "from sp import parallelize", "may not import sp.parallelize"),
    (check_arrows, "sp/show/report.py", "import sp", "may not import sp,"),
    (check_arrows, "sp/passes/rules.py", "from sp.show import Report", "may not import sp.show.Report"),
    (check_arrows, "sp/module.py", "from sp.api import parallelize", "may not import sp.api.parallelize"),
    (check_arrows, "sp/executable.py", "from sp.module import ParallelModule", "may not import sp.module"),
    (check_arrows, "sp/runtimes.py", "", "has no row in ARROWS"),
    (check_sizes, "sp/plan.py", "x = 1\n" * 251, "251 lines, at most 250"),
    (check_sizes, "sp/models/gpt.py", "x = 1\n" * 301, "301 lines, at most 300"),
    (check_sizes, "sp/plan.py", LONG_FUNCTION, "f has 51 lines, at most 50"),
    (check_environment, "sp/api.py", "import os\nx = os.environ.get('RANK')", ":2: reads the environment"),
    (check_environment, "sp/api.py", "def f():\n    os.getenv('RANK')", ":2: reads the environment"),
    (check_environment, "sp/api.py", "from os import environ as e", ":1: reads the environment"),
    (check_import_effects, "sp/api.py", "if x:\n    dist.new_group()", ":2: calls dist.new_group"),
    (check_import_effects, "sp/api.py", "class A:\n    x = cuda.is_available()", ":2: calls cuda.is_avail"),
]
HARMLESS = [
    (check_arrows, "sp/layout.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
    (check_arrows, "sp/passes/rules.py", "from sp.runtime import ops\nfrom sp.runtime.ops import shard"),
    (check_arrows, "sp/passes/rules.py", "from . import place\nfrom .place import x"),
    (check_arrows, "sp/passes/rules.py", "from .. import layout\nfrom ..layout import Run"),
    (check_arrows, "sp/passes/__init__.py", "from .rules import x\nfrom ..program import Program"),
    (check_arrows, "sp/__init__.py", "from .api import parallelize\nfrom sp import errors"),
    (check_sizes, "sp/models/gpt.py", "x = 1\n" * 300),
    (check_sizes, "sp/plan.py", LONG_FUNCTION.removesuffix("    x = 1\n")),
    (check_import_effects, "sp/api.py", "def f():\n    dist.init_process_group()"),
]


@pytest.mark.parametrize(("check", "path", "source", "message"), PLANTED)
def test_planted_violation_is_found(check: Check, path: str, source: str, message: str) -> None:
    found = list(check(path, source))
    assert len(found) == 1
    assert found[0].startswith(f"{path}:")
    assert message in found[0]


@pytest.mark.parametrize(("check", "path", "source"), HARMLESS)
def test_harmless_code_passes(check: Check, path: str, source: str) -> None:
    assert list(check(path, source)) == []
