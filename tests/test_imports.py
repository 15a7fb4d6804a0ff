"""`import sp` is light: the cause is held here, `python -m benchmarks imports` measures the time."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import sp

ROOT = Path(__file__).resolve().parent.parent
# What takes long to import and nobody needs before a model is captured; `sympy` alone is half a second.
HEAVY = (
    *("networkx", "sympy", "tabulate", "transformers", "matplotlib"),
    *("torch.export", "torch._dynamo", "torch._inductor", "torch._functorch", "torch.fx.experimental.symbolic_shapes"),
)


def loaded(*statements: str) -> list[set[str]]:
    """The modules that each statement has loaded, in a fresh process."""
    lines = ["import json, sys", "seen, found = set(sys.modules), []"]
    for statement in statements:
        lines += [statement, "found.append(sorted(set(sys.modules) - seen))", "seen = set(sys.modules)"]
    code = "\n".join([*lines, "print(json.dumps(found))"])
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return [set(names) for names in json.loads(done.stdout)]


def heavy(names: set[str]) -> set[str]:
    return {name for name in names for each in HEAVY if f"{name}.".startswith(f"{each}.")}


def test_import_loads_nothing_heavy() -> None:
    _, ours, used = loaded("import torch", "import sp", "sp.parallelize")
    assert not heavy(ours)
    assert "sp" in ours
    assert len(ours) < 100, "each module takes a third of a millisecond at least"
    assert "sp.api" in used, "what is read is loaded"


def test_every_name_is_where_the_type_checker_finds_it() -> None:
    tree = ast.parse((ROOT / "sp/__init__.py").read_text("utf-8"))
    (guard,) = (node for node in tree.body if isinstance(node, ast.If))
    declared = {
        alias.name: f"{node.module}.{alias.name}"
        for node in guard.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted(declared) == sorted(sp.__all__)
    homes = {name: f"{home}.{name}" for name, home in sp._HOMES.items()}
    assert {**homes, "costs": "sp.costs", "data": "sp.data"} == declared
    for name, path in declared.items():
        assert getattr(sp, name).__class__ is not None, path
        assert name in dir(sp)


def test_modules_are_attributes_and_nothing_else_is() -> None:
    code = "import sp; assert sp.models.Llama and sp.testing.run_ranks and sp.layout.LAYOUTS"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)
    with pytest.raises(AttributeError, match="module 'sp' has no attribute 'paralelize'"):
        _ = sp.paralelize
    assert not hasattr(sp, "__wrapped__")
