"""Runner that applies mutants one at a time and lets `verify` look for them.

Each is tried in a process of its own, forked from one that has imported what the package needs, but none of the package
itself: the copy of the package with the mutation is then imported as if it were the only one. The models that run the
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

from tests.mutation import ROOT, Mutant
from tests.mutation.coverage import NODE_TESTS, CoveragePlugin, InstrumentingFinder, first_failure
from tests.mutation.nearest_tests import TESTS, find_tests, is_verified
from tracer.utils.files import lines, parse

SECONDS, MEMORY = 90, 12 * 2**30
"""What one trial may take at most, of a core beyond what it takes without a mutation, and of address space."""

MAX_SECONDS = 900
"""Seconds that verifying a model or running a file of tests may take without a mutation, or browser tests with one."""

COPIED_PATHS = ("tracer", "pages", "tests", "app.py", "pyproject.toml", ".streamlit")
"""What of the project is in the copy with a mutation."""

TINY_SIZES = {"D": 12, "h": 2, "d_ff": 10, "L": 2}
IMAGE = {"H": 12, "W": 8, "P": 4}
MODELS: tuple[tuple[str, dict], ...] = (
    ("vit", {**IMAGE, **TINY_SIZES, "K": 3}),
    ("nanogpt", {**TINY_SIZES, "V": 30, "T_max": 60}),
    ("vit-text", {**IMAGE, **TINY_SIZES, "V": 19}),
    ("segmenter", {**IMAGE, **TINY_SIZES, "K": 3}),
    ("mae", {**IMAGE, **TINY_SIZES, "L_dec": 1}),
    ("clip", {**IMAGE, **TINY_SIZES, "D_e": 6}),
    ("transformer", {**TINY_SIZES, "R": 3, "positions": "relative", "mask": "causal"}),
    ("transformer", {**TINY_SIZES, "positions": "learned"}),
    ("transformer", {}),
    ("nanogpt", {**TINY_SIZES, "gelu": "tanh", "tied": False, "bias": False, "mask": "bidirectional"}),
    ("vit-text", {**IMAGE, **TINY_SIZES, "mask": "prefix", "types": True, "tied": False, "bias": False}),
    ("vit-text", {**IMAGE, **TINY_SIZES, "mask": "bidirectional"}),
    ("llama", {**TINY_SIZES, "h_kv": 1, "tied": False}),
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
    """Target that the harness verifies, a model or a file of tests: its duration, and the statements that it runs, by
    file and first line; of tests also those of each alone."""

    name: str
    sizes: dict
    seconds: float = 0.0
    lines: dict[str, set[int]] = field(default_factory=dict)
    tests: dict[str, dict[str, list[int]]] = field(default_factory=dict)

    def runs(self, mutant: Mutant) -> bool:
        """Return whether the target runs the line of a mutant, or reads the card that has it."""
        if not mutant.file.endswith(".py"):
            return Path(mutant.file).stem == self.name and not self.sizes
        return _statement_start(mutant.file, mutant.line) in self.lines.get(mutant.file, ())

    def failures(self, mutant: Mutant, folder: Path) -> str:
        """Return the first problem that is found in a copy with a mutation; empty where there is none."""
        if not self.tests:
            return _first_failure(self.name, self.sizes)
        line = _statement_start(mutant.file, mutant.line)
        if _shares_fixtures(self.name) or not _in_function(
            mutant.file, line
        ):  # the first test that needs it runs it for all
            return first_failure(self.name, folder=folder / "tests")
        alone = [test for test, lines in self.tests.items() if line in lines.get(mutant.file, ())]
        return first_failure(self.name, alone, folder=folder / "tests")

    def considers(self, mutant: Mutant) -> bool:
        """Return whether the target may run the line of a mutant, as far as is known before it runs."""
        if not self.name.endswith(".py"):
            return is_verified(mutant.file) if mutant.file.endswith(".py") else self.runs(mutant)
        return self.name in find_tests(mutant.file) or (self.name in NODE_TESTS and is_verified(mutant.file))


def _statement_start(file: str, line: int) -> int:
    """Return the line on which the innermost statement around a line begins."""
    statements = [node for node in ast.walk(_tree(file)) if isinstance(node, ast.stmt)]
    around = [node for node in statements if line in lines(node)]
    return max((node.lineno for node in around), default=line)


def _shares_fixtures(test: str) -> bool:
    """Return whether the tests of a file share cached results."""
    text = (TESTS / test).read_text(encoding="utf-8")
    return 'scope="module"' in text or "cache" in text


def _in_function(file: str, line: int) -> bool:
    """Return whether a line runs when a function is called, and not when the file is imported."""
    functions = (node for node in ast.walk(_tree(file)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return any(line in range(node.body[0].lineno, (node.end_lineno or 0) + 1) for node in functions)


@lru_cache(maxsize=64)
def _tree(file: str) -> ast.Module:
    return parse((ROOT / file).read_text(encoding="utf-8"))


@dataclass
class Trial:
    """Outcome of a mutant: the first check that caught it, and in which model; nothing where it survived."""

    mutant: Mutant
    caught: str = ""
    model: str = ""
    tried: int = 0
    seconds: float = 0.0


def list_checks(mutants: Iterable[Mutant]) -> list[Model]:
    """Return the models that can be verified here and the test files that guard the changed files, in the order of
    trial."""
    from tracer import zoo  # in the process that tries it

    installed = [Model(name, zoo.tiny(name)) for name in LIBRARIES if name in zoo.examples()]
    nearest = dict.fromkeys(name for mutant in mutants for name in find_tests(mutant.file))
    tests = [Model(name, {}) for name in dict.fromkeys((*nearest, *NODE_TESTS)) if (TESTS / name).is_file()]
    small, shipped = (
        [Model(*model) for model in MODELS if model[1]],
        [Model(*model) for model in MODELS if not model[1]],
    )
    return [*small, *tests, *installed, *shipped]


def try_mutants(mutants: Iterable[Mutant], models: Iterable[Model] | None = None, jobs: int = 2) -> Iterator[Trial]:
    """Yield each mutant with the check that caught it, those that survive last. Raise ValueError for one that can't be
    applied, or for a model with a problem even without any mutation."""
    mutants = list(mutants)
    for mutant in mutants:
        mutant.apply()
    for module in ("torch", "sympy", "PIL.Image", "safetensors.torch"):
        import_module(module)
    pending = {mutant: Trial(mutant) for mutant in mutants if not mutant.tests}
    waiting = list(list_checks(pending) if models is None else models)
    while pending and waiting:
        ready = [model for model in waiting if any(map(model.considers, pending))][:jobs]
        waiting = waiting[waiting.index(ready[-1]) + 1 :] if ready else []
        prepare(ready, jobs)
        for model in ready:
            asked = [mutant for mutant in pending if model.considers(mutant) and model.runs(mutant)]
            for mutant, answer in _run_in_processes(asked, partial(_trial, model), jobs, SECONDS + 2 * model.seconds):
                trial = pending[mutant]
                trial.tried, trial.seconds = trial.tried + 1, trial.seconds + answer.get("seconds", 0.0)
                if answer["caught"]:
                    trial.caught, trial.model = answer["caught"], model.name
                    yield pending.pop(mutant)
    yield from pending.values()
    yield from _in_browser(mutant for mutant in mutants if mutant.tests)


def prepare(models: list[Model], jobs: int = 2) -> None:
    """Verify models without any mutation and note the statements that they run. Raise ValueError with the name of one
    that has a problem."""
    needed: set[str] = set()
    for model, answer in _run_in_processes(models, _verify_original, jobs, MAX_SECONDS):
        if answer["caught"]:
            raise ValueError(f"without any mutation, at {model.sizes}: {answer['caught']}")
        model.lines = {file: set(numbers) for file, numbers in answer["lines"].items()}
        model.seconds, model.tests = answer["seconds"], answer["tests"]
        needed.update(answer["needed"])
    for module in sorted(needed):
        with suppress(Exception):  # what a library made up when it was imported, or what needs another before it
            import_module(module)


def _trial(model: Model, mutant: Mutant) -> dict:
    """Verify a model with the mutation."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        _copy_project(Path(folder), mutant)
        _unload_project(folder)
        return {"caught": model.failures(mutant, Path(folder)), "seconds": time.monotonic() - start}


def _in_browser(mutants: Iterable[Mutant]) -> Iterator[Trial]:
    """Yield mutants that name the browser tests that have to see them, one at a time. Raise ValueError where such a
    test fails without a mutation, or does not run."""
    clean: set[tuple[str, ...]] = set()
    for mutant in mutants:
        if mutant.tests not in clean:
            problem = _browser_failure(mutant._replace(new=mutant.old))
            if problem:
                raise ValueError(f"without any mutation: {problem}")
            clean.add(mutant.tests)
        start = time.monotonic()
        caught = _browser_failure(mutant)
        yield Trial(mutant, caught, mutant.tests[0] if caught else "", len(mutant.tests), time.monotonic() - start)


def _browser_failure(mutant: Mutant) -> str:
    """Return the first of a mutant's own tests that fails on a copy of the project; empty where all pass."""
    with tempfile.TemporaryDirectory() as folder:
        linked, whole = Path(folder) / "linked", Path(folder) / "whole"
        _copy_project(linked, mutant)
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
        named = [f"tests/{test}" for test in mutant.tests]
        done = subprocess.run(
            [*command, *named], cwd=whole, capture_output=True, text=True, timeout=MAX_SECONDS, check=False
        )
    lines = done.stdout.splitlines()
    if done.returncode == 1:
        failures = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
        return f"{mutant.tests[0]}: {failures[0] if failures else lines[-1]}"
    if done.returncode or any(line.startswith("SKIPPED") for line in lines):
        raise ValueError(f"{', '.join(mutant.tests)} did not run: {([*lines, *done.stderr.splitlines()] or [''])[-1]}")
    return ""


def _first_failure(name: str, sizes: dict) -> str:
    """Return the first problem that `verify` finds in a model, also an error; empty where all is verified."""
    try:
        import tracer  # in the process that tries it
        from tracer import verify  # in the process that tries it

        report = verify.report(tracer.load(name, **sizes))
        said = [*report.get("problems", ()), *verify.failures(report)]
        return f"{name}: {said[0].removeprefix(f'{name}: ')}" if said else ""
    except Exception as error:  # whatever a mutation makes of the code
        return f"{name}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _copy_project(folder: Path, mutant: Mutant) -> None:
    """Copy the project into a folder, with one file that has the mutant; all others are links."""
    source, target = ROOT, folder
    for part in Path(mutant.file).parts:
        target.mkdir(exist_ok=True)
        for entry in source.iterdir():
            if entry.name != part and (source != ROOT or entry.name in COPIED_PATHS):
                (target / entry.name).symlink_to(entry)
        source, target = source / part, target / part
    target.write_text(mutant.apply(), encoding="utf-8")


def _unload_project(folder: str) -> None:
    """Let the project be imported from a folder, as if it had not been before."""
    for name in [name for name in sys.modules if _is_own(name)]:
        del sys.modules[name]
    sys.path.insert(0, folder)
    sys.path_importer_cache.clear()
    sys.dont_write_bytecode = True


def _is_own(module: str) -> bool:
    """Return whether a module is the project's, and not this harness, which stays loaded."""
    own = module.split(".")[0] in ("tracer", "pages", "tests", "app")
    return own and module != "tests" and not module.startswith("tests.mutation")


def _verify_original(model: Model) -> dict:
    """Verify a model without any mutation, and note which lines of the package run."""
    ran: dict[str, set[int]] = {}
    before = {module for module in sys.modules if not _is_own(module)}
    _unload_project(str(ROOT))
    sys.meta_path.insert(0, InstrumentingFinder(ran))
    start = time.monotonic()
    noted = CoveragePlugin(ran)
    test = model.name.endswith(".py")
    said = first_failure(model.name, noted=noted) if test else _first_failure(model.name, model.sizes)
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


def _run_in_processes(tasks: Iterable, work: Callable[[Any], dict], jobs: int, seconds: float) -> Iterator[tuple]:
    """Run the work for each task in a process of its own, `jobs` at a time; yield (task, answer) as they end.

    Each may take so many seconds of a core.

    A process that ends without an answer, by its bounds or a crash, has answered with that.
    """
    waiting, context = list(tasks), get_context("fork")
    running: dict[Any, tuple] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            task = waiting.pop(0)
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_run_task, args=(theirs, work, task, int(seconds)))
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


def _run_task(pipe, work, task, seconds: int) -> None:
    """Do one task within bounds of time and memory, quietly, and send its answer."""
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
