"""Package as a tool sees it from outside: its public names, its types, and its requirements."""

import ast
import os
import re
import subprocess
import sys
import tomllib
import venv
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest

import tracer
from tests.support.serving import ROOT
from tracer.utils.errors import EXTRAS

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OUTSIDE = """import tracer

run: tracer.Trace = tracer.load("vit").trace()
print(run.stepz)
print(tracer.laod)
tracer.inputs.images.open_photo(1)
"""
WITH_THE_LIBRARY_ALONE = """
import sys

sys.modules.update(dict.fromkeys(FORBIDDEN))
import torch, tracer
from tracer import cli

net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
run = tracer.trace(net, torch.randn(3, 8), symbols={"B": 0})
assert [step.verdict for step in run.steps] == ["verified"] * 3, run.steps
run = tracer.load("vit").trace()
assert {step.verdict for step in run.steps} <= {"verified", "recomputed"}
assert "<math" in run._repr_html_()
run.save("run.safetensors")
assert tracer.open("run.safetensors").steps[0].symbolic == run.steps[0].symbolic
try:
    run.table()
except ModuleNotFoundError as error:
    print(error)
assert cli.main(["trace", "transformer", "--format", "csv", "--out", "run.csv"]) == 0
assert cli.main(["handout", "run.safetensors"]) == 2
assert cli.main(["train", "vit"]) == 2
assert cli.main(["app"]) == 2
"""


def test_completion_offers_the_public_names_alone():
    assert dir(tracer) == sorted([*tracer.__all__, "__version__"])
    assert {"load", "open", "trace", "Trace", "inputs"} <= set(dir(tracer))
    assert all(getattr(tracer, name) is not None for name in dir(tracer))


def test_type_checkers_see_the_names_that_a_program_gets():
    tree = ast.parse(Path(tracer.__file__).read_text(encoding="utf-8"))
    (checked,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = {alias.name: node.module for node in checked.body for alias in node.names}
    assert imports == {"changes": "tracer", "inputs": "tracer", **tracer._MODULES}
    assert sorted(imports) == sorted(tracer.__all__)


def test_a_type_checker_finds_a_misspelt_attribute_from_outside(tmp_path):
    """mypy takes the types of an installed package only where it has a `py.typed`."""
    venv.create(tmp_path / "env", symlinks=True)
    (site,) = (tmp_path / "env").glob("lib/*/site-packages")
    (site / "tracer").symlink_to(ROOT / "tracer")
    (tmp_path / "outside.py").write_text(OUTSIDE)
    python = f"--python-executable={tmp_path / 'env' / 'bin' / 'python'}"
    mypy = [sys.executable, "-m", "mypy", python, "--ignore-missing-imports", "--cache-dir=cache", "outside.py"]
    done = subprocess.run(mypy, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    errors = re.findall(r"^outside\.py:(\d+): error: .*\[([\w-]+)\]$", done.stdout, flags=re.MULTILINE)
    assert errors == [("4", "attr-defined"), ("5", "attr-defined"), ("6", "arg-type")], done.stdout + done.stderr


def normalise(requirement: str) -> str:
    """Return the name of the package that a requirement asks for, as registries compare names."""
    return re.sub("[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()


def dependency_closure(requirements: list[str]) -> set[str]:
    """Return the packages that are installed along with these, extras left out."""
    closure, waiting = set(), [normalise(each) for each in requirements]
    while waiting:
        if (name := waiting.pop()) in closure:
            continue
        closure.add(name)
        try:
            further = requires(name) or []
        except PackageNotFoundError:  # for another platform or Python
            continue
        waiting += [normalise(each) for each in further if "extra ==" not in each]
    return closure


def test_a_trace_needs_what_the_package_requires_and_no_more(tmp_path):
    closure = dependency_closure(PROJECT["dependencies"])
    providers = packages_distributions()
    forbidden = {
        module for module, owners in providers.items() if not {normalise(owner) for owner in owners} & closure
    } - {"tracer", "_distutils_hack"}
    assert {"pandas", "plotly", "streamlit", "tokenizers", "tqdm"} <= forbidden
    program = f"FORBIDDEN = {forbidden!r}\n{WITH_THE_LIBRARY_ALONE}"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    install = "which is not installed: pip install 'tensor-tracer[{}]'"
    assert done.stdout.splitlines() == [f"trace.table() needs pandas, {install.format('tables')}"]
    assert done.stderr.splitlines() == [
        f"tracer: this command needs plotly, {install.format('figures')}",
        f"tracer: this command needs tqdm, {install.format('train')}",
        f"tracer: the app needs streamlit, {install.format('app')}",
    ]


@pytest.mark.parametrize("package", EXTRAS)
def test_each_extra_has_the_package_that_a_sentence_names(package):
    extras = PROJECT["optional-dependencies"]
    assert package in map(normalise, extras[EXTRAS[package]])
    assert package not in map(normalise, PROJECT["dependencies"])


def numbers(version: str) -> tuple[int, ...]:
    """Return a version as numbers that compare."""
    return tuple(map(int, version.split(".")))


def test_pinned_versions_are_within_the_stated_bounds():
    pinned = (ROOT / "requirements.txt").read_text() + (ROOT / "tests" / "requirements.txt").read_text()
    versions = dict(re.findall(r"^([\w-]+)==([\d.]+)", pinned, flags=re.MULTILINE))
    stated = [
        *PROJECT["dependencies"],
        *(each for extra in PROJECT["optional-dependencies"].values() for each in extra),
    ]
    checked = 0
    for requirement in stated:
        for sign, bound in re.findall(r"(>=|<)([\d.]+)", requirement):
            version = numbers(versions[normalise(requirement)])
            checked += 1
            assert version >= numbers(bound) if sign == ">=" else version < numbers(bound), requirement
    assert checked >= 15
    assert any(normalise(each) == "torch" and "<" in each for each in PROJECT["dependencies"])
    assert any(each.startswith("streamlit") and "<" in each for each in PROJECT["optional-dependencies"]["app"])
