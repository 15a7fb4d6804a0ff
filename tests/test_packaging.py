"""What is shipped: the wheel holds the library and nothing else, the sdist what a checkout holds."""

import os
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from packaging.requirements import Requirement

import sp
from tests.documents import ROOT

# The files of the root that belong to a checkout.
ALONE = {
    *("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "Makefile", "README.md", "constraints.txt"),
    *("pyproject.toml", ".editorconfig", ".gitignore", ".pre-commit-config.yaml"),
}
LEFT_OUT = {"__pycache__", "_build", "out", ".hypothesis"}
# A user's own file: what a type checker says of it without the source tree.
USER = """
import sp
from sp.models import Llama, LlamaConfig
reveal_type(sp.parallelize(Llama(LlamaConfig(layers=1)), strategy="ring"))
sp.parallelize(Llama(LlamaConfig(layers=1)), strategy=3)
"""


def run(*arguments: str | Path, cwd: Path, **environment: str) -> str:
    command = [str(argument) for argument in arguments]
    done = subprocess.run(
        command, check=False, cwd=cwd, capture_output=True, text=True, timeout=240, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel, built from the sdist, and the sdist; with the setuptools that is there, hence without a network."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    (wheel,), (source,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, source


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel installed, far from the source tree; torch and the others are this environment's."""
    target = tmp_path_factory.mktemp("site")
    options = ("--no-deps", "--no-index", "--no-compile", "--quiet", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "install", *options, "--target", target, built[0], cwd=target)
    return target


def files(*folders: str) -> set[str]:
    """What lies below these folders of the tree, what runs leave behind aside."""
    found = (path.relative_to(ROOT) for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file())
    return {path.as_posix() for path in found if not LEFT_OUT & set(path.parts)}


def test_the_wheel_holds_the_library_and_nothing_else(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        names = {name for name in wheel.namelist() if not name.endswith("/")}
        entry_points = wheel.read(f"sp_compiler-{sp.__version__}.dist-info/entry_points.txt").decode()
    library = {name for name in names if ".dist-info/" not in name}
    assert library == files("sp")
    assert {"sp/py.typed", "sp/show/pictures/page/page.html"} <= library
    assert {name.rpartition("/")[2] for name in names - library} == {
        *("METADATA", "RECORD", "WHEEL", "LICENSE", "entry_points.txt", "top_level.txt")
    }
    assert entry_points.split() == ["[console_scripts]", "sp", "=", "sp.cli:main"]


def test_the_sdist_holds_what_building_and_testing_need(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as source:
        names = {member.name.partition("/")[2] for member in source.getmembers() if member.isfile()}
    tree = files("sp", "tests", "docs", "examples", "benchmarks", ".ci")
    made = {name for name in names if name.startswith("sp_compiler.egg-info/")} | {"PKG-INFO", "setup.cfg"}
    assert names - made == tree | ALONE


def test_the_metadata_is_valid(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        raw = wheel.read(f"sp_compiler-{sp.__version__}.dist-info/METADATA")
    metadata = Metadata.from_email(raw, validate=True)
    assert str(metadata.version) == sp.__version__
    assert metadata.description_content_type == "text/markdown"
    assert message_from_bytes(raw).get_payload(decode=True) == (ROOT / "README.md").read_bytes()
    needed = {one.name: one for one in metadata.requires_dist or [] if one.marker is None}
    assert needed["torch"] == Requirement("torch>=2.11,<2.15")
    assert not {"pytest", "transformers", "matplotlib"} & set(needed)


@pytest.mark.slow
def test_an_installed_wheel_works_far_from_the_sources(installed: Path, tmp_path: Path) -> None:
    script = (
        "import sp, torch; from sp.models import Llama, LlamaConfig; print(sp.__file__);"
        "ids = torch.zeros(1, 64, dtype=torch.long);"
        "report = sp.inspect(Llama(LlamaConfig(layers=1)), (ids,), {'labels': ids}, world_size=2);"
        "report.to_html('report.html')"
    )
    printed = run(sys.executable, "-c", script, cwd=tmp_path, PYTHONPATH=str(installed))
    assert Path(printed.strip()).is_relative_to(installed)
    assert "<html" in (tmp_path / "report.html").read_text("utf-8")
    command = run(installed / "bin/sp", "--help", cwd=tmp_path, PYTHONPATH=str(installed))
    assert "inspect" in command


@pytest.mark.slow
def test_a_type_checker_sees_the_types_of_the_installed_wheel(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "pyrightconfig.json").write_text(f'{{"extraPaths": ["{installed}"]}}')
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "user.py"]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert 'Type of "sp.parallelize(Llama(LlamaConfig(layers=1)), strategy="ring")" is "ParallelModule"' in done.stdout
    assert 'cannot be assigned to parameter "strategy"' in done.stdout
    assert "1 error" in done.stdout, done.stdout
