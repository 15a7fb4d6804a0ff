"""docs/errors.md: every message that a person may see, as the sources word it.

`python -m tests.catalogue` (`make errors`) writes the page anew; tests/test_catalogue.py holds it, and that some test
reads each of the messages."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATH = ROOT / "docs" / "errors.md"
HEADER = """# The error catalogue

Every error of `sp` is an `sp.SpError`, which is a `ValueError`. It says what was found, what was needed, and what to
do; `…` stands for names and numbers of your own. A refused model (`UnsupportedModelError`) lists all of its reasons at
once, each with the node, your source line and a remedy. An error of one rank is raised on every rank of the group,
before any data is exchanged. That each of them is read by a test is a test itself.

Written by `make errors`; do not edit.
"""
GAP = "…"
# name of the class → (title, what it is about), in the order of the page
KINDS = {
    "StrategyError": ("StrategyError", "A strategy, mesh or option that does not exist or does not fit this world."),
    "InputError": ("InputError", "Arguments of a call that cannot be spread over this world."),
    "RankMismatchError": ("RankMismatchError", "Ranks of one group that disagree; raised on all of them."),
    "RankLostError": ("RankLostError", "A rank that died, failed or is late; raised on all others that wait for it."),
    "UnsupportedModelError": ("UnsupportedModelError", "A model that cannot be captured or transformed exactly."),
    "Refused": ("Reasons of an UnsupportedModelError", "What one node of a model does that cannot be proven exact."),
    "RefusedChangeError": ("Reasons: changes in place", "What one line of a model changes that others can see."),
    "RuleError": ("RuleError", "A placement rule that is not read, not true, or one too many."),
    "ValidationError": (
        "ValidationError",
        "A transformed program that fails, or computes something else.",
    ),
    "SpError": ("SpError", "What is asked of a parallelized model at the wrong time or place."),
}


@dataclass(frozen=True, order=True)
class Message:
    """kind: a key of KINDS.  Texts have GAP for what differs from case to case."""

    kind: str
    found: str
    needed: str
    remedy: str
    place: str


def messages() -> list[Message]:
    """Those of all sources, alike ones once."""
    found = {}
    for path in sorted((ROOT / "sp").rglob("*.py")):
        for message in _of(path):
            found.setdefault((message.kind, message.found, message.needed, message.remedy), message)
    return sorted(found.values())


def _of(path: Path) -> Iterator[Message]:
    tree = ast.parse(path.read_text("utf-8"))
    scopes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    constants = _texts(tree.body)
    for scope in scopes:
        names = constants | _texts(scope.body)
        for node in ast.walk(scope):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS and node.args:
                words = {each.arg: each.value for each in node.keywords}
                # `Refused(why, remedy)`; errors name all but what was found
                remedy = words.get("remedy", node.args[1] if len(node.args) > 1 else None)
                found, needed, remedy = (_text(value, names) for value in (node.args[0], words.get("needed"), remedy))
                yield Message(node.func.id, found, needed, remedy, f"{path.relative_to(ROOT)}:{node.lineno}")


def _texts(body: Iterable[ast.stmt]) -> dict[str, str]:
    """What is assigned to names in these statements, where it is text."""
    found: dict[str, str] = {}
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                text = _text(node.value, {})
                if text.strip(GAP + " "):
                    found[node.targets[0].id] = text
    return found


def _text(node: ast.expr | None, names: dict[str, str]) -> str:
    """The literal parts, GAP between them."""
    match node:
        case None:
            return ""
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part, names) for part in parts)
        case ast.FormattedValue(value=ast.Name(id=name)) if name in names and name.isupper():
            return names[name]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left, names) + _text(right, names)
        case ast.IfExp(body=one, orelse=other):
            return _text(one, names) or _text(other, names)
        case ast.Name(id=name):
            return names.get(name, GAP)
        case _:
            return GAP


def page() -> str:
    known = messages()
    parts = [HEADER]
    for kind, (title, about) in KINDS.items():
        rows = [_row(message) for message in known if message.kind == kind and len(message.found.strip(GAP + " ")) > 3]
        if rows:
            parts.append(f"\n## {title}\n\n{about}\n\n| found | needed, and what to do |\n|---|---|\n{''.join(rows)}")
    return "".join(parts)


def _row(message: Message) -> str:
    remedy = message.remedy.strip(GAP + " ")
    words = [message.needed, f"*{remedy}*" if remedy else ""]
    cells = (message.found, "; ".join(word for word in words if word.strip(GAP + " ")) or "–")
    return f"| {' | '.join(_escaped(cell) for cell in cells)} |\n"


def _escaped(text: str) -> str:
    return re.sub(rf"{GAP}(\s*{GAP})+", GAP, " ".join(text.split())).replace("|", "\\|").replace("<", "&lt;")


def fragments(message: Message) -> list[str]:
    """What of its wording is fixed, the longest first."""
    pieces = [piece.strip() for piece in re.split(rf"{GAP}|\n", message.found)]
    return sorted((piece for piece in pieces if len(piece) > 3), key=len, reverse=True)


def read_by_tests() -> list[str]:
    """All string literals of the tests, as they are matched."""
    found: set[str] = set()
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.update(re.split(r"\.\*|\.\+|\n|\{", node.value.replace("\\", "")))
    return [text.strip() for text in found if len(text.strip()) >= 8]


def unread(known: Iterable[Message], literals: Iterable[str]) -> list[Message]:
    """Messages of which no literal is a part, nor has one as its part."""
    texts = list(literals)
    return [
        message
        for message in known
        if fragments(message)
        and not any(text in piece or piece in text for piece in fragments(message) for text in texts)
    ]


if __name__ == "__main__":
    sys.exit(f"{PATH.relative_to(ROOT)}: {PATH.write_text(page(), 'utf-8')} characters")
