"""Applies mistakes one at a time and lets `verify` look for them.

Each is tried in a process of its own, forked from one that has imported what the package needs, but none of the package
itself: the copy of the package with the mistake is then imported as if it were the only one. The models that run the
changed line are verified, the fastest first, until one shows a problem; of the tests of nodes those that run it.
"""

from __future__ import annotations

import ast
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

from tracer.common.parsing import lines, parsed
from tracer.verify.mistakes import ROOT, Mistake
from tracer.verify.mistakes.noting import NODES, TESTS, Noted, Noting, failed

SECONDS, MEMORY = 90, 12 * 2**30
"""What one trial may take at most, of a core and of address space."""

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

    def failures(self, mistake: Mistake) -> str:
        """The first that is found against a mistake in the package that is imported now; empty where there is none."""
        if not self.tests:
            return _failures(self.name, self.sizes)
        line = _begins(mistake.file, mistake.line)
        alone = [test for test, lines in self.tests.items() if line in lines.get(mistake.file, ())]
        return failed(self.name, alone)


def _begins(file: str, line: int) -> int:
    """The line on which the innermost statement around a line begins."""
    statements = [node for node in ast.walk(_tree(file)) if isinstance(node, ast.stmt)]
    around = [node for node in statements if line in lines(node)]
    return max((node.lineno for node in around), default=line)


@lru_cache(maxsize=64)
def _tree(file: str) -> ast.Module:
    return parsed((ROOT / file).read_text(encoding="utf-8"))


@dataclass
class Trial:
    """What became of a mistake: what caught it first, in which model; nothing where it survived."""

    mistake: Mistake
    caught: str = ""
    model: str = ""
    tried: int = 0
    seconds: float = 0.0


def offered() -> list[tuple[str, dict]]:
    """The models that can be verified here, and the tests of nodes where those lie beside the package."""
    from tracer import sources  # in the process that tries it

    installed = [name for name in LIBRARIES if name in sources.examples()]
    tests = [(name, {}) for name in NODES if (TESTS / name).is_file()]
    return [*MODELS, *((name, sources.tiny(name)) for name in installed), *tests]


def prepared(jobs: int = 2, models=None) -> list[Model]:
    """The models without any mistake, the fastest first. ValueError names one that `verify` has something against."""
    found, needed = [], set()
    for module in ("torch", "sympy", "PIL.Image", "safetensors.torch"):
        import_module(module)
    for (name, sizes), answer in _each(offered() if models is None else models, lambda model: _verified(*model), jobs):
        if answer["caught"]:
            raise ValueError(f"without any mistake, at {sizes}: {answer['caught']}")
        lines = {file: set(numbers) for file, numbers in answer["lines"].items()}
        found.append(Model(name, sizes, answer["seconds"], lines, answer["tests"]))
        needed.update(answer["needed"])
    for module in sorted(needed):
        with suppress(Exception):  # what a library made up when it was imported, or what needs another before it
            import_module(module)
    return sorted(found, key=lambda model: model.seconds / (16 if model.tests else 1))  # few tests run any one line


def tried(mistakes: Iterable[Mistake], models: list[Model], jobs: int = 2) -> Iterator[Trial]:
    """Each mistake with what caught it, as they end. ValueError for one that can't be applied."""
    mistakes = list(mistakes)
    for mistake in mistakes:
        mistake.applied()
    chosen = {mistake: [model for model in models if model.runs(mistake)] for mistake in mistakes}
    for mistake, answer in _each(mistakes, lambda mistake: _trial(mistake, chosen[mistake]), jobs):
        yield Trial(mistake, **answer)


def _trial(mistake: Mistake, models: list[Model]) -> dict:
    """Verifies the models with the mistake, until one shows a problem."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        _copied(Path(folder), mistake)
        _forget(folder)
        for number, model in enumerate(models, 1):
            said = model.failures(mistake)
            if said:
                seconds = time.monotonic() - start
                return {"caught": said, "model": model.name, "tried": number, "seconds": seconds}
    return {"tried": len(models), "seconds": time.monotonic() - start}


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
    """A copy of the package in a folder, with one file that has the mistake; all others are links."""
    source, target = ROOT, folder / "tracer"
    for part in Path(mistake.file).parts:
        target.mkdir()
        for entry in source.iterdir():
            if entry.name != part:
                (target / entry.name).symlink_to(entry)
        source, target = source / part, target / part
    target.write_text(mistake.applied(), encoding="utf-8")


def _forget(folder: str) -> None:
    """Lets the package be imported from a folder, as if it had not been before."""
    for name in [name for name in sys.modules if name.split(".")[0] == "tracer"]:
        del sys.modules[name]
    sys.path.insert(0, folder)
    sys.path_importer_cache.clear()
    sys.dont_write_bytecode = True


def _verified(name: str, sizes: dict) -> dict:
    """Verifies a model without any mistake, and notes which lines of the package run."""
    ran: dict[str, set[int]] = {}
    before = {module for module in sys.modules if module.split(".")[0] != "tracer"}
    _forget(str(ROOT.parent))
    sys.meta_path.insert(0, Noting(ran))
    start = time.monotonic()
    noted = Noted(ran)
    said = failed(name, noted=noted) if name in NODES else _failures(name, sizes)
    for own in (noted.imported, *noted.tests.values()):
        for file, numbers in own.items():
            ran[file].update(numbers)
    needed = sorted(
        module
        for module in {*sys.modules} - before
        if module.split(".")[0] not in ("tracer", "__main__") and getattr(sys.modules[module], "__spec__", None)
    )
    lines = {file: sorted(numbers) for file, numbers in ran.items()}
    return {"caught": said, "seconds": time.monotonic() - start, "lines": lines, "tests": noted.tests, "needed": needed}


def _each(tasks: Iterable, work: Callable[[Any], dict], jobs: int) -> Iterator[tuple]:
    """Does the work for each task in a process of its own, `jobs` at a time; (task, answer) as they end.

    A process that ends without an answer, by its bounds or a crash, has answered with that.
    """
    waiting, context = list(tasks), get_context("fork")
    running: dict[Any, tuple] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            task = waiting.pop(0)
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_alone, args=(theirs, work, task))
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


def _alone(pipe, work, task) -> None:
    """Does one task within bounds of time and memory, quietly, and sends its answer."""
    import torch  # in the process that tries it

    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    torch.set_num_threads(1)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, sys.stdout.fileno())
    os.dup2(quiet, sys.stderr.fileno())
    pipe.send_bytes(json.dumps(work(task)).encode())
    pipe.close()
    os._exit(0)
