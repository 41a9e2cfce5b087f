"""Applies mistakes one at a time and lets `verify` look for them.

Each is tried in a process of its own, forked from one that has imported what the package needs, but none of the package
itself: the copy of the package with the mistake is then imported as if it were the only one. The models that run the
changed line are verified until one shows a problem; then the tests that run it, of the nodes of equations and of what
is nearest to the file (`nearest.py`). What names browser tests is tried by those, with an app of its own.
"""

from __future__ import annotations

import ast
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib import import_module
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

from tests.mutation import ROOT, Mistake
from tests.mutation.coverage import NODES, Noted, Noting, failed
from tests.mutation.nearest_tests import TESTS, guards, verified
from tracer.utils.python_source import lines, parse

SECONDS, MEMORY = 90, 12 * 2**30
"""What one trial may take at most, of a core beyond what it takes without a mistake, and of address space."""

SLOWEST = 900
"""Seconds that verifying a model or running a file of tests may take without a mistake, or browser tests with one."""

COPIED = ("tracer", "pages", "tests", "app.py", "pyproject.toml", ".streamlit")
"""What of the project is in the copy with a mistake."""

SMALL = {"D": 12, "h": 2, "d_ff": 10, "L": 2}
IMAGE = {"H": 12, "W": 8, "P": 4}
MODELS: tuple[tuple[str, dict], ...] = (
    ("vit", {**IMAGE, **SMALL, "K": 3}),
    ("nanogpt", {**SMALL, "V": 30, "T_max": 60}),
    ("vit-text", {**IMAGE, **SMALL, "V": 19}),
    ("segmenter", {**IMAGE, **SMALL, "K": 3}),
    ("mae", {**IMAGE, **SMALL, "L_dec": 1}),
    ("clip", {**IMAGE, **SMALL, "D_e": 6}),
    ("transformer", {**SMALL, "R": 3, "positions": "relative", "mask": "causal"}),
    ("transformer", {**SMALL, "positions": "learned"}),
    ("transformer", {}),
    ("nanogpt", {**SMALL, "gelu": "tanh", "tied": False, "bias": False, "mask": "bidirectional"}),
    ("vit-text", {**IMAGE, **SMALL, "mask": "prefix", "types": True, "tied": False, "bias": False}),
    ("vit-text", {**IMAGE, **SMALL, "mask": "bidirectional"}),
    ("llama", {**SMALL, "h_kv": 1, "tied": False}),
    ("vit-note", {**IMAGE, "D": 12, "d_k": 5, "d_ff": 10, "L": 2}),
    ("vit", {}),
    ("nanogpt", {}),
    ("llama", {}),
    ("vit-text", {}),
    ("segmenter", {}),
    ("mae", {}),
    ("clip", {}),
)
"""What is verified: our models small, with every option, and as they are shipped."""

LIBRARIES = ("torchvision:vit_b_16", "hf:llama", "hf:bert")
"""Models of libraries that are verified too, small, where they are installed: of packed products, fused attention,
rotary positions and other norms."""


@dataclass
class Model:
    """What the harness verifies, a model or a file of tests: how long that takes, and the statements that it runs, by
    file and the line on which they begin; of tests also those of each alone."""

    name: str
    sizes: dict
    seconds: float = 0.0
    lines: dict[str, set[int]] = field(default_factory=dict)
    tests: dict[str, dict[str, list[int]]] = field(default_factory=dict)

    def runs(self, mistake: Mistake) -> bool:
        """Whether it runs the line of a mistake, or reads the card that has it."""
        if not mistake.file.endswith(".py"):
            return Path(mistake.file).stem == self.name and not self.sizes
        return _begins(mistake.file, mistake.line) in self.lines.get(mistake.file, ())

    def failures(self, mistake: Mistake, folder: Path) -> str:
        """Return the first problem that is found in a copy of the project with a mistake; empty where there is none."""
        if not self.tests:
            return _failures(self.name, self.sizes)
        line = _begins(mistake.file, mistake.line)
        if _shared(self.name) or not _in_function(mistake.file, line):  # the first test that needs it runs it for all
            return failed(self.name, folder=folder / "tests")
        alone = [test for test, lines in self.tests.items() if line in lines.get(mistake.file, ())]
        return failed(self.name, alone, folder=folder / "tests")

    def considers(self, mistake: Mistake) -> bool:
        """Whether it may run the line of a mistake, as far as can be told before it was run."""
        if not self.name.endswith(".py"):
            return verified(mistake.file) if mistake.file.endswith(".py") else self.runs(mistake)
        return self.name in guards(mistake.file) or (self.name in NODES and verified(mistake.file))


def _begins(file: str, line: int) -> int:
    """The line on which the innermost statement around a line begins."""
    statements = [node for node in ast.walk(_tree(file)) if isinstance(node, ast.stmt)]
    around = [node for node in statements if line in lines(node)]
    return max((node.lineno for node in around), default=line)


def _shared(test: str) -> bool:
    """Whether the tests of a file share what is computed once."""
    text = (TESTS / test).read_text(encoding="utf-8")
    return 'scope="module"' in text or "cache" in text


def _in_function(file: str, line: int) -> bool:
    """Whether a line runs when a function is called, and not when the file is imported."""
    functions = (node for node in ast.walk(_tree(file)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return any(line in range(node.body[0].lineno, (node.end_lineno or 0) + 1) for node in functions)


@lru_cache(maxsize=64)
def _tree(file: str) -> ast.Module:
    return parse((ROOT / file).read_text(encoding="utf-8"))


@dataclass
class Trial:
    """What became of a mistake: what caught it first, in which model; nothing where it survived."""

    mistake: Mistake
    caught: str = ""
    model: str = ""
    tried: int = 0
    seconds: float = 0.0


def offered(mistakes: Iterable[Mistake]) -> list[Model]:
    """The models that can be verified here and the test files that guard what is changed, in the order of trial."""
    from tracer import zoo  # in the process that tries it

    installed = [Model(name, zoo.tiny(name)) for name in LIBRARIES if name in zoo.examples()]
    nearest = dict.fromkeys(name for mistake in mistakes for name in guards(mistake.file))
    tests = [Model(name, {}) for name in dict.fromkeys((*nearest, *NODES)) if (TESTS / name).is_file()]
    small, shipped = (
        [Model(*model) for model in MODELS if model[1]],
        [Model(*model) for model in MODELS if not model[1]],
    )
    return [*small, *tests, *installed, *shipped]


def tried(mistakes: Iterable[Mistake], models: Iterable[Model] | None = None, jobs: int = 2) -> Iterator[Trial]:
    """Each mistake with what caught it, those that survive last. ValueError for one that can't be applied, or for a
    model that `verify` has something against without any mistake."""
    mistakes = list(mistakes)
    for mistake in mistakes:
        mistake.applied()
    for module in ("torch", "sympy", "PIL.Image", "safetensors.torch"):
        import_module(module)
    pending = {mistake: Trial(mistake) for mistake in mistakes if not mistake.tests}
    waiting = list(offered(pending) if models is None else models)
    while pending and waiting:
        ready = [model for model in waiting if any(map(model.considers, pending))][:jobs]
        waiting = waiting[waiting.index(ready[-1]) + 1 :] if ready else []
        prepare(ready, jobs)
        for model in ready:
            asked = [mistake for mistake in pending if model.considers(mistake) and model.runs(mistake)]
            for mistake, answer in _each(asked, partial(_trial, model), jobs, SECONDS + 2 * model.seconds):
                trial = pending[mistake]
                trial.tried, trial.seconds = trial.tried + 1, trial.seconds + answer.get("seconds", 0.0)
                if answer["caught"]:
                    trial.caught, trial.model = answer["caught"], model.name
                    yield pending.pop(mistake)
    yield from pending.values()
    yield from _in_browser(mistake for mistake in mistakes if mistake.tests)


def prepare(models: list[Model], jobs: int = 2) -> None:
    """Verifies models without any mistake and notes what they run. ValueError names one that has a problem."""
    needed: set[str] = set()
    for model, answer in _each(models, _verified, jobs, SLOWEST):
        if answer["caught"]:
            raise ValueError(f"without any mistake, at {model.sizes}: {answer['caught']}")
        model.lines = {file: set(numbers) for file, numbers in answer["lines"].items()}
        model.seconds, model.tests = answer["seconds"], answer["tests"]
        needed.update(answer["needed"])
    for module in sorted(needed):
        with suppress(Exception):  # what a library made up when it was imported, or what needs another before it
            import_module(module)


def _trial(model: Model, mistake: Mistake) -> dict:
    """Verifies a model with the mistake."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        _copied(Path(folder), mistake)
        _forget(folder)
        return {"caught": model.failures(mistake, Path(folder)), "seconds": time.monotonic() - start}


def _in_browser(mistakes: Iterable[Mistake]) -> Iterator[Trial]:
    """Mistakes that name the browser tests that have to see them, one at a time. ValueError where such a test fails
    without a mistake, or does not run."""
    clean: set[tuple[str, ...]] = set()
    for mistake in mistakes:
        if mistake.tests not in clean:
            problem = _browser_failure(mistake._replace(new=mistake.old))
            if problem:
                raise ValueError(f"without any mistake: {problem}")
            clean.add(mistake.tests)
        start = time.monotonic()
        caught = _browser_failure(mistake)
        yield Trial(mistake, caught, mistake.tests[0] if caught else "", len(mistake.tests), time.monotonic() - start)


def _browser_failure(mistake: Mistake) -> str:
    """The first of a mistake's own tests that fails on a copy of the project; empty where all pass."""
    with tempfile.TemporaryDirectory() as folder:
        linked, whole = Path(folder) / "linked", Path(folder) / "whole"
        _copied(linked, mistake)
        shutil.copytree(linked, whole, ignore=shutil.ignore_patterns("__pycache__"))  # the app follows links, if any
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-m",
            "sweep or not sweep",
            "-x",
            "-q",
            "-rfEs",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
        ]
        named = [f"tests/{test}" for test in mistake.tests]
        done = subprocess.run(
            [*command, *named], cwd=whole, capture_output=True, text=True, timeout=SLOWEST, check=False
        )
    lines = done.stdout.splitlines()
    if done.returncode == 1:
        failures = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
        return f"{mistake.tests[0]}: {failures[0] if failures else lines[-1]}"
    if done.returncode or any(line.startswith("SKIPPED") for line in lines):
        raise ValueError(f"{', '.join(mistake.tests)} did not run: {([*lines, *done.stderr.splitlines()] or [''])[-1]}")
    return ""


def _failures(name: str, sizes: dict) -> str:
    """The first that `verify` has against a model, an error too; empty where all is proven."""
    try:
        import tracer  # in the process that tries it
        from tracer import verify  # in the process that tries it

        report = verify.report(tracer.load(name, **sizes))
        said = [*report.get("problems", ()), *verify.failures(report)]
        return f"{name}: {said[0].removeprefix(f'{name}: ')}" if said else ""
    except Exception as error:  # whatever a mistake makes of the code
        return f"{name}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _copied(folder: Path, mistake: Mistake) -> None:
    """A copy of the project in a folder, with one file that has the mistake; all others are links."""
    source, target = ROOT, folder
    for part in Path(mistake.file).parts:
        target.mkdir(exist_ok=True)
        for entry in source.iterdir():
            if entry.name != part and (source != ROOT or entry.name in COPIED):
                (target / entry.name).symlink_to(entry)
        source, target = source / part, target / part
    target.write_text(mistake.applied(), encoding="utf-8")


def _forget(folder: str) -> None:
    """Let the project be imported from a folder, as if it had not been before."""
    for name in [name for name in sys.modules if _is_own(name)]:
        del sys.modules[name]
    sys.path.insert(0, folder)
    sys.path_importer_cache.clear()
    sys.dont_write_bytecode = True


def _is_own(module: str) -> bool:
    """Return whether a module is the project's, and not this harness, which goes on as it is."""
    own = module.split(".")[0] in ("tracer", "pages", "tests", "app")
    return own and module != "tests" and not module.startswith("tests.mutation")


def _verified(model: Model) -> dict:
    """Verifies a model without any mistake, and notes which lines of the package run."""
    ran: dict[str, set[int]] = {}
    before = {module for module in sys.modules if not _is_own(module)}
    _forget(str(ROOT))
    sys.meta_path.insert(0, Noting(ran))
    start = time.monotonic()
    noted = Noted(ran)
    test = model.name.endswith(".py")
    said = failed(model.name, noted=noted) if test else _failures(model.name, model.sizes)
    for own in (noted.imported, *noted.tests.values()):
        for file, numbers in own.items():
            ran[file].update(numbers)
    needed = sorted(
        module
        for module in {*sys.modules} - before
        if module != "__main__" and not _is_own(module) and getattr(sys.modules[module], "__spec__", None)
    )
    lines = {file: sorted(numbers) for file, numbers in ran.items()}
    return {"caught": said, "seconds": time.monotonic() - start, "lines": lines, "tests": noted.tests, "needed": needed}


def _each(tasks: Iterable, work: Callable[[Any], dict], jobs: int, seconds: float) -> Iterator[tuple]:
    """Does the work for each task in a process of its own, `jobs` at a time; (task, answer) as they end.

    Each may take so many seconds of a core.

    A process that ends without an answer, by its bounds or a crash, has answered with that.
    """
    waiting, context = list(tasks), get_context("fork")
    running: dict[Any, tuple] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            task = waiting.pop(0)
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_alone, args=(theirs, work, task, int(seconds)))
            process.start()
            theirs.close()
            running[ours] = task, process
        ready: list[Any] = connection.wait(list(running))
        for ours in ready:
            task, process = running.pop(ours)
            try:
                answer = json.loads(ours.recv_bytes())
            except EOFError:
                process.join()
                answer = {"caught": f"the process ended with status {process.exitcode}"}
            ours.close()
            process.join()
            yield task, answer


def _alone(pipe, work, task, seconds: int) -> None:
    """Does one task within bounds of time and memory, quietly, and sends its answer."""
    import torch  # in the process that tries it

    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    torch.set_num_threads(1)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, sys.stdout.fileno())
    os.dup2(quiet, sys.stderr.fileno())
    pipe.send_bytes(json.dumps(work(task)).encode())
    pipe.close()
    os._exit(0)
