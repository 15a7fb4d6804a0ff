"""What is typed wrong on the command line: words, the exit code, and what stderr says.  FOLDER is that of `FILES`."""

from __future__ import annotations

LLAMA = "sp.models:Llama"
NOT_ONE = "is not in the range x>=1"
NO_TOKENS = "is no number of tokens; write 4096, 128k or 1M"
NO_RANKS = "is no number of ranks; write 8, or 2x4"
NO_STRATEGY = "there is no strategy 'bogus'; needed: one of"

FILES = {
    "bad.json": "{not json",
    "list.json": "[1]",
    "none.json": "{}",
    "odd.json": '{"model_type": "llama", "hidden_size": "wide"}',
    "binary.json": b"\xff\xfe\x00",
    "syntax.py": "def f(:\n",
    "raises.py": "raise RuntimeError('no')\n",
    "exits.py": "import sys\nsys.exit(3)\n",
    "models.py": """
import torch
from torch import nn

class Plain(nn.Linear):
    pass

def fails():
    raise ValueError("no such thing")

def nothing():
    return None

empty = ()
four = (Plain(4, 4), (torch.zeros(1, 8, 4),), {}, 3)
no_args = (Plain(4, 4), 3)
no_kwargs = (Plain(4, 4), (torch.zeros(1, 8, 4),), 3)
no_loss = (nn.Linear(4, 4), (torch.zeros(1, 8, 4),))
whole_numbers = (nn.Embedding(4, 4), (torch.zeros(1, 8, dtype=torch.long),))
""",
}
FOLDERS = ("dir.json", "dir.py")

Typed = tuple[tuple[str, ...], int, str]


def inspect(reference: str, says: str, *options: str, code: int = 2) -> Typed:
    return ("inspect", reference, *options), code, says


REFERENCES = [
    inspect("nofile.json", "nofile.json cannot be read: [Errno 2] No such file"),
    inspect("FOLDER/bad.json", "bad.json cannot be read: Expecting property name"),
    inspect("FOLDER/binary.json", "binary.json cannot be read: 'utf-8' codec"),
    inspect("FOLDER/dir.json", "dir.json cannot be read: [Errno 21] Is a directory"),
    inspect("FOLDER/list.json", "list.json holds a list, no configuration"),
    inspect("FOLDER/none.json", "is no model type of transformers"),
    inspect("FOLDER/odd.json", "hf:llama cannot be made: "),
    inspect("FOLDER/no.py:m", "no.py:m is not found: [Errno 2] No such file"),
    inspect("FOLDER/dir.py:m", "dir.py:m is not found: [Errno 21] Is a directory"),
    inspect("FOLDER/syntax.py:m", "syntax.py:m cannot be loaded: SyntaxError: invalid syntax (syntax.py, line 1)"),
    inspect("FOLDER/raises.py:m", "raises.py:m cannot be loaded: RuntimeError: no at raises.py:1"),
    inspect("FOLDER/exits.py:m", "exits.py:m cannot be loaded: SystemExit: 3 at exits.py:2"),
    inspect("FOLDER/models.py", "models.py names no model"),
    inspect("FOLDER/models.py:", "models.py: names no model"),
    inspect("FOLDER/models.py:fails", "cannot be made: ValueError: no such thing at models.py:9"),
    inspect("FOLDER/models.py:nothing", "is a NoneType, no nn.Module"),
    inspect("FOLDER/models.py:empty", "is a NoneType, no nn.Module"),
    inspect("FOLDER/models.py:four", "brings (tuple, dict, int) with the model, not (args, kwargs)"),
    inspect("FOLDER/models.py:no_args", "brings (int) with the model, not (args, kwargs)"),
    inspect("FOLDER/models.py:no_kwargs", "brings (tuple, int) with the model, not (args, kwargs)"),
    inspect(":Llama", ":Llama names no model"),
    inspect("", "names no model"),
    inspect(".x:Llama", "cannot be loaded: TypeError"),
    inspect("sp..models:Llama", "is not found: No module named"),
    inspect("hf:", "is no model type of transformers"),
    (("bench", "nofile.json"), 2, "nofile.json cannot be read"),
    (("check", "FOLDER/bad.json"), 2, "bad.json cannot be read"),
    (("plan", "FOLDER/list.json", "--length", "1k"), 2, "holds a list"),
]
SETTINGS = [
    inspect(LLAMA, "cannot be made: ValueError: layers must be at least 1, got -1", "--set", "layers=-1"),
    inspect(LLAMA, "cannot be made: ValueError: heads must be at least 1, got 0", "--set", "heads=0"),
    inspect(LLAMA, "must be a multiple of", "--set", "heads=3"),
    inspect(LLAMA, "cannot be configured: '<' not supported", "--set", "width=wide"),
    inspect("hf:llama", "hf:llama cannot be made: ", "--set", "hidden_size=wide"),
    inspect("hf:llama", "hf:llama cannot be made: ZeroDivisionError", "--set", "num_attention_heads=0"),
    inspect("hf:llama", "hf:llama cannot be made: ", "--set", "num_attention_heads=7"),
]
NUMBERS = [
    inspect(LLAMA, NOT_ONE, "--batch", "0"),
    inspect(LLAMA, NOT_ONE, "--batch", "-1"),
    inspect(LLAMA, "'x' is not a valid integer", "--batch", "x"),
    inspect(LLAMA, NO_TOKENS, "--length", "-5"),
    inspect(LLAMA, NO_TOKENS, "--length", "1.5k"),
    inspect(LLAMA, NO_RANKS, "--world", "-2"),
    (("plan", LLAMA), 2, "Missing option '--length'"),
    (("plan", LLAMA, "--length", "0"), 2, NO_TOKENS),
    (("plan", LLAMA, "--length", "1k", "--world", "0"), 2, NO_RANKS),
    (("plan", LLAMA, "--length", "1k", "--batch", "0"), 2, NOT_ONE),
    (("check", LLAMA, "--lengths", "0"), 2, NO_TOKENS),
    (("check", LLAMA, "--lengths", "x"), 2, NO_TOKENS),
    (("check", LLAMA, "--world", "0"), 2, NO_RANKS),
    (("check", LLAMA, "--batch", "0"), 2, NOT_ONE),
    (("demo", "--world", "0"), 2, NOT_ONE),
    (("demo", "--world", "2x2"), 2, "'2x2' is not a valid integer"),
    (("demo", "--steps", "0"), 2, NOT_ONE),
    (("demo", "--length", "-8"), 2, NO_TOKENS),
    (("bench", LLAMA, "--world", "0"), 2, NOT_ONE),
    (("bench", LLAMA, "--repeats", "0"), 2, NOT_ONE),
    (("bench", LLAMA, "--batch", "0"), 2, NOT_ONE),
    (("bench", "hf:llama"), 2, "the model is run on this machine's CPU"),
]
NAMES = [
    inspect(LLAMA, "the mesh has 2 axes", "--world", "2x2"),
    inspect(LLAMA, "the mesh has 1 axis", "--strategy", "usp"),
    inspect(LLAMA, "there is no strategy ''", "--strategy", ""),
    inspect(LLAMA, "there is no machine 'abacus'", "--machine", "abacus"),
    inspect(LLAMA, "'all' is not one of", "--show", "all"),
    inspect(LLAMA, "'all' is not one of", "--picture", "all"),
    inspect(LLAMA, "is a directory", "--html", "FOLDER"),
    inspect(LLAMA, "No such option", "--bogus"),
    (("inspect",), 2, "Missing argument 'MODEL'"),
    (("inspekt", LLAMA), 2, "No such command 'inspekt'"),
    (("plan", LLAMA, "--length", "1k", "--strategy", "bogus"), 2, NO_STRATEGY),
    (("check", LLAMA, "--strategy", "bogus"), 2, NO_STRATEGY),
    (("check", LLAMA, "--strategy", "auto"), 2, "there is nothing to check of 'auto'"),
    (("demo", "extra"), 2, "unexpected extra argument"),
    (("completion",), 2, "Missing argument"),
    (("completion", "powershell"), 2, "'powershell' is not one of"),
]
QUICK = [*REFERENCES, *SETTINGS, *NUMBERS, *NAMES]
SHORT = ("--no-compile", "--repeats", "1", "--length", "32")
# A capture, or ranks in processes of their own.
SLOW = [
    inspect(LLAMA, "for a sequence of 1 tokens", "--length", "1"),
    inspect(LLAMA, "Could not open file '/no/such/x.svg'", "--svg", "/no/such/x.svg", code=1),
    inspect(LLAMA, "Not a directory", "--html", "FOLDER/models.py/x.html", code=1),
    (("plan", LLAMA, "--length", "2", "--world", "8"), 2, "2 tokens for 8 ranks"),
    (("check", LLAMA, "--lengths", "2", "--world", "4"), 2, "cannot be tried on 4 ranks"),
    (("demo", "--strategy", "bogus", "--steps", "1", "--length", "64"), 2, NO_STRATEGY),
    (("demo", "--strategy", "usp", "--steps", "1", "--length", "64"), 2, "the mesh has 1 axis"),
    (("demo", "--steps", "1", "--length", "1"), 2, "1 tokens cannot be spread over 2 ranks"),
    (("bench", LLAMA, *SHORT, "--strategy", "bogus"), 2, NO_STRATEGY),
    (("bench", LLAMA, *SHORT, "--strategy", "usp"), 2, "the mesh has 1 axis"),
]
