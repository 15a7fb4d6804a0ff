"""Nothing in `sp` runs what others wrote: a walk holds the sources; checkpoints and configurations are tried."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sp
from sp.cli.subject import Wish

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "sp").rglob("*.py"))

# Who unpickles, and what: answers of the processes that it has started itself, over pipes to them.
PICKLES = {"sp/testing/worker.py", "sp/testing/processes.py"}
# Who runs a file: the one that a person names on the command line, as `python file.py` does.
RUNS_FILES = {"sp/cli/reference.py"}
MODULES = {"pickle", "dill", "cloudpickle", "marshal", "shelve", "yaml", "subprocess", "pty", "ctypes", "code"}
BUILTINS = {"eval", "exec", "compile", "__import__", "input"}
CALLS = {
    *("os.system", "os.popen", "os.execv", "os.spawnv", "tempfile.mktemp", "jinja2.Template", "Markup"),
    *("torch.hub.load", "torch.utils.cpp_extension.load", "torch.package.PackageImporter", "dist.rpc.rpc_async"),
}
OBJECTS = {
    *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
    *("send_object_list", "recv_object_list"),
}
FROM_THE_NET = {"from_pretrained", "hf_hub_download", "snapshot_download", "urlopen", "urlretrieve"}


def check_calls(path: str, source: str) -> Iterator[str]:
    """Calls and imports by which what others wrote could be run."""
    for node in ast.walk(ast.parse(source, path)):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names if alias.name.partition(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom):
            found = [node.module] if (node.module or "").partition(".")[0] in MODULES else []
        elif isinstance(node, ast.Call):
            found = [word for word in _dangers(path, node) if word]
        else:
            continue
        for word in found:
            yield f"{path}:{node.lineno}: {word}"


def _dangers(path: str, call: ast.Call) -> Iterator[str | None]:
    name = ast.unparse(call.func)
    last = name.rpartition(".")[2]
    words = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    yield name if name in BUILTINS | CALLS or last in OBJECTS | FROM_THE_NET else None
    yield name if last == "exec_module" and path not in RUNS_FILES else None
    loads = last == "load" and name.startswith("torch.") and words.get("weights_only") != "True"
    yield f"{name} of more than weights" if loads and path not in PICKLES else None
    yield f"{name} with a shell" if words.get("shell", "False") != "False" else None
    yield f"{name} with trust_remote_code" if words.get("trust_remote_code", "False") != "False" else None
    if last in ("from_config", "for_model") and "AutoModel" in name:
        yield f"{name} without trust_remote_code=False" if "trust_remote_code" not in words else None


def test_no_source_runs_what_others_wrote() -> None:
    found = [each for file in FILES for each in check_calls(file.relative_to(ROOT).as_posix(), file.read_text("utf-8"))]
    assert not found, "\n" + "\n".join(found)


PLANTED = {
    "import pickle": "pickle",
    "from yaml import load": "yaml",
    "import subprocess": "subprocess",
    "eval(text)": "eval",
    "def f():\n    exec(text)": "exec",
    "torch.load(path)": "torch.load of more than weights",
    "torch.load(path, weights_only=False)": "torch.load of more than weights",
    "dist.all_gather_object(said, mine)": "dist.all_gather_object",
    "run(command, shell=True)": "run with a shell",
    "AutoModel.from_config(c, trust_remote_code=True)": "with trust_remote_code",
    "AutoModel.from_config(c)": "without trust_remote_code=False",
    "AutoConfig.from_pretrained(name)": "AutoConfig.from_pretrained",
    "tempfile.mktemp()": "tempfile.mktemp",
    "spec.loader.exec_module(m)": "spec.loader.exec_module",
}


@pytest.mark.parametrize("source", PLANTED)
def test_planted_danger_is_found(source: str) -> None:
    (found,) = check_calls("sp/api.py", source)
    assert PLANTED[source] in found


def test_templates_escape_but_what_sp_itself_has_drawn() -> None:
    """`|safe` takes pictures, which are trees of XML, and files of this package; never a name."""
    text = (ROOT / "sp/show/pictures/page/page.html").read_text("utf-8")
    safe = {part.split("|safe")[0].rpartition("{{")[2].strip() for part in text.split("}}") if "|safe" in part}
    drawn = {"panel.parts.tiles", "panel.parts.tokens", "panel.parts.work", 'panel.parts.get("owners", "")'}
    assert safe == {*drawn, "style", "script", "graph.edges", "' tabindex=\"-1\"'"}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e, self.head = nn.Embedding(13, 8), nn.Linear(8, 13)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.e(ids))


class Bomb:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


HOSTILE = '"]; __import__("pathlib").Path({path!r}).touch(); x["'


def test_a_checkpoint_runs_no_code(tmp_path: Path) -> None:
    """Neither a pickle, which sp never opens, nor names, of which none gets into a program's text."""
    sign, file = tmp_path / "sign", tmp_path / "model.pt"
    torch.save({**Model().state_dict(), "e.bomb": Bomb(sign)}, file)
    with pytest.raises(Exception, match=r"[Ww]eights.only"):
        torch.load(file, weights_only=True)
    parallel = sp.parallelize(Model(), compile=False)
    hostile = HOSTILE.format(path=str(sign))
    state = {**Model().state_dict(), hostile: torch.zeros(1), f"e.{hostile}": torch.zeros(1)}
    found = parallel.load_state_dict(state, strict=False)
    assert len(found.unexpected_keys) == 2
    parallel(torch.zeros(1, 6, dtype=torch.int64))
    assert "pathlib" not in parallel.graph_module.code
    assert not sign.exists()


def test_a_configuration_runs_no_code(tmp_path: Path) -> None:
    """`sp inspect config.json` makes the class that transformers has for its type, whatever else the file says."""
    pytest.importorskip("transformers")
    sign = tmp_path / "sign"
    (tmp_path / "evil.py").write_text(f"import pathlib\npathlib.Path({str(sign)!r}).touch()\nclass Evil: pass\n")
    sizes = dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size"), 16)
    facts = {
        **sizes,
        "model_type": "llama",
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
        "auto_map": {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"},
        "attn_implementation": "someone/kernel",
        "_attn_implementation": "someone/kernel",
        "architectures": [HOSTILE.format(path=str(sign))],
        HOSTILE.format(path=str(sign)): 1,
        "_name_or_path": str(tmp_path),
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(facts))
    subject = Wish(str(file), (), batch=1, length=8, meta=True).load()
    assert type(subject.model).__name__ == "LlamaForCausalLM"
    assert subject.model.config._attn_implementation in ("sdpa", "eager", None)
    report = sp.inspect(subject.model, subject.args, subject.kwargs, strategy="striped", world_size=2)
    assert "pathlib" not in report.program.graph_module.code
    assert not sign.exists()
