"""Every public name has a docstring with an example, docs/api.md prints it, and each example prints what it shows.

An example is a doctest, in the docstring of the name or, of a member, in that of its class.  A constant has none: it is
shown by the module that it is written in.  All examples start from what the first block of docs/api.md makes, each from
objects of its own, in a process group of one rank; `…` stands for anything.
"""

import copy
import doctest
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cached_property
from types import ModuleType
from typing import Any

import pytest
import torch.distributed as dist

import sp
from sp.passes.rule_book import BOOK
from tests.documents import ROOT, blocks

PAGE = ROOT / "docs" / "api.md"
# What people import by name beside `sp` itself.
MODULES = ("costs", "data", "frameworks", "show", "testing", "validation")
# What transformers' Trainer calls, under names and with docstrings that are its own.
HOOKS = re.compile(r"sp\.frameworks\.TrainerMixin\.(get_\w+|evaluation_loop)")
# Seconds each: they start processes, or import transformers.
SLOW = ("run_processes(", "ProcessWorld(", "transformers")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def public() -> dict[str, Any]:
    """Every public function, class and constant by its name, and what docs/api.md prints besides."""
    found = {f"sp.{name}": getattr(sp, name) for name in sp.__all__}
    for name in MODULES:
        module = importlib.import_module(f"sp.{name}")
        found |= {f"sp.{name}.{each}": getattr(module, each) for each in module.__all__}
    printed = re.findall(r"auto(?:class|function):: (\S+)", PAGE.read_text("utf-8"))
    found |= {name: at(name) for name in (one if one.startswith("sp.") else f"sp.{one}" for one in printed)}
    return {name: value for name, value in found.items() if not isinstance(value, ModuleType)}


def at(name: str) -> Any:
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


def members(cls: type) -> Iterator[str]:
    """Its own public methods and properties."""
    kinds = (property, cached_property, classmethod, staticmethod)
    for name, value in vars(cls).items():
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, kinds)):
            yield name


def text_of(name: str, value: Any) -> str:
    """Of a constant its module's, if it speaks of the constant."""
    if inspect.isclass(value) or inspect.isfunction(value):
        return value.__doc__ or ""
    last = name.rpartition(".")[2]
    written = re.compile(rf"^{last}\b[^\n]*=", re.MULTILINE)
    ours = [module for path, module in sys.modules.items() if path.startswith("sp.")]
    homes = [module for module in ours if vars(module).get(last) is value]
    (home,) = (module for module in homes if written.search(inspect.getsource(module)))
    return home.__doc__ or ""


def documented() -> dict[str, str]:
    """Names and their docstrings, members after their classes."""
    found = {}
    for name, value in PUBLIC.items():
        found[name] = text_of(name, value)
        for each in members(value) if inspect.isclass(value) else ():
            found[f"{name}.{each}"] = inspect.getattr_static(value, each).__doc__ or ""
    return {name: text for name, text in found.items() if not HOOKS.fullmatch(name)}


def examples(name: str, text: str) -> list[doctest.Example]:
    found = doctest.DocTestParser().get_examples(inspect.cleandoc(text), name)
    for each in found:
        each.want = each.want.replace("…", "...")
    return found


PUBLIC = public()
NAMES = documented()
EXAMPLES = {name: found for name, text in NAMES.items() if (found := examples(name, text))}


def is_shown(name: str) -> bool:
    """A class by any example of its own, since others may make its objects; all else where it is used by name."""
    if inspect.isclass(PUBLIC.get(name)):
        return name in EXAMPLES
    owner, _, last = name.rpartition(".")
    own, others = EXAMPLES.get(name, []), EXAMPLES.get(owner, [])
    word = re.compile(rf"\b{last}\b")
    return any(word.search(each.source) for each in own) or any(f".{last}" in each.source for each in others)


def test_every_public_name_has_an_example() -> None:
    assert len(NAMES) > 100, "the list would prove nothing"
    without = [name for name in NAMES if not is_shown(name)]
    assert not without, f"docstrings without an example that uses the name: {', '.join(without)}"


def test_every_public_name_is_on_the_page() -> None:
    page = PAGE.read_text("utf-8")
    missing = [name for name in PUBLIC if not re.search(rf"\b{name.rpartition('.')[2]}\b", page)]
    assert not missing, f"docs/api.md says nothing of {', '.join(missing)}"


@pytest.fixture(scope="module")
def beginning() -> Iterator[dict[str, Any]]:
    """What examples start from."""
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    names: dict[str, Any] = {"__name__": "examples"}
    exec(blocks(PAGE, "python")[0], names)
    yield names
    dist.destroy_process_group()


CASES = [
    pytest.param(name, marks=pytest.mark.slow if any(word in NAMES[name] for word in SLOW) else ())
    for name in dict.fromkeys(EXAMPLES)
    if not any(NAMES[name] is NAMES[other] for other in list(EXAMPLES)[: list(EXAMPLES).index(name)])
]


@pytest.mark.parametrize("name", CASES)
def test_examples_print_what_they_show(name, beginning, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(BOOK, "_entries", {})
    names = {**beginning, "model": copy.deepcopy(beginning["model"])}
    test = doctest.DocTest(EXAMPLES[name], names, name, None, None, NAMES[name])
    said: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=said.append, clear_globs=False)
    assert not said, "".join(said)
