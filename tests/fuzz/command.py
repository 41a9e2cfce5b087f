"""Command that starts processes which open inputs under limits, and prints the findings."""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
QUIET_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
    "STREAMLIT_LOGGER_LEVEL": "critical",
    "PYTHONDONTWRITEBYTECODE": "1",  # no input may write a file, so what is imported late is not kept
}
WARM_UP_INPUTS = 12
"""How many inputs of each kind a process opens before it counts, so that most pages were drawn once."""
SIGNAL_MESSAGES = {
    signal.SIGPROF: "takes processor time without end",
    signal.SIGALRM: "waits for something without end",
    signal.SIGKILL: "is killed by the system, which ran out of memory",
}


@dataclass
class Tally:
    """Outcomes of the inputs of each kind, and their costs."""

    ended: dict[str, dict[str, int]] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)
    most: dict[str, tuple[float, int]] = field(default_factory=dict)
    memory: dict[str, tuple[int, int]] = field(default_factory=dict)
    wrong: list[dict] = field(default_factory=list)

    def add(self, result: dict) -> None:
        kind, seed = result["kind"], result["seed"]
        counts = self.ended.setdefault(kind, {})
        counts[result["outcome"]] = counts.get(result["outcome"], 0) + 1
        self.cpu[kind] = self.cpu.get(kind, 0) + result["cpu"]
        self.most[kind] = max(self.most.get(kind, (0.0, 0)), (result["cpu"], seed))
        self.memory[kind] = max(self.memory.get(kind, (0, 0)), (result["memory"], seed))
        if result["wrong"]:
            self.wrong.append(result)

    @property
    def count(self) -> int:
        return sum(sum(counts.values()) for counts in self.ended.values())

    def __str__(self) -> str:
        lines = []
        for kind, counts in self.ended.items():
            number = sum(counts.values())
            said = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(counts.items()))
            (seconds, slow), (size, large) = self.most[kind], self.memory[kind]
            lines.append(
                f"{kind:>10}: {number:,} ({said}); {self.cpu[kind] / number * 1e3:.1f} ms of processor time each, at "
                f"most {seconds:.2f} s (seed {slow}); at most {size >> 20} MB more (seed {large})"
            )
        return "\n".join([*lines, f"{self.count:,} inputs, {len(self.wrong)} findings"])


def results(first: int, stop: int, step: int = 1, warm: int = WARM_UP_INPUTS) -> Iterator[dict]:
    """Yield the outcome of the input of every `step`-th seed, in order. A process that an input ends is started anew.

    Each process opens `warm` others of each kind first.
    """
    while first < stop:
        at = None
        with tempfile.TemporaryFile() as log, _start_worker(first, stop, step, warm, log) as process:
            for line in process.stdout:
                if line.startswith("at "):
                    at = int(line[3:])
                elif line.startswith("{"):
                    yield json.loads(line)
                    first, at = first + step, None
            process.wait()
            log.seek(0)
            said = log.read()[-2_000:].decode(errors="replace")
        if first >= stop:
            return
        if at is None:
            raise RuntimeError(f"a worker ended with {process.returncode} before it opened anything: {said}")
        why = SIGNAL_MESSAGES.get(-process.returncode, f"ends the process with status {process.returncode}")
        frames = [line.strip() for line in said.splitlines() if "/tracer/" in line or "/pages/" in line][:3]
        yield _failure_row(at, f"{why} ({' < '.join(frames)})")
        first = at + step


def _failure_row(seed: int, why: str) -> dict:
    return {"seed": seed, "kind": "unknown", "outcome": "failed", "cpu": 0.0, "memory": 0, "wrong": [why]}


def _start_worker(first: int, stop: int, step: int, warm: int, log) -> subprocess.Popen:
    program = f"import sys; sys.path[:0] = {[str(TESTS.parent)]!r}\n"
    program += f"from tests.fuzz import worker; worker.main({first}, {stop}, {step}, {warm})"
    command = [sys.executable, "-c", program]
    options = {"cwd": TESTS.parent, "env": {**os.environ, **QUIET_ENVIRONMENT}, "stdin": subprocess.DEVNULL}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, **options)


def format_failure(result: dict) -> str:
    """Format a finding in a line or two, with the command that reproduces it."""
    seed, wrong = result["seed"], "; ".join(result["wrong"])
    return f"{result['kind']} {seed}: {wrong}\n    python -m tests.fuzz --replay {seed}"


def main() -> int:
    """Open inputs, or one of them again; exit status 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=500, help="how many inputs")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--replay", type=int, metavar="SEED", help="the input of one seed, here, with its traceback")
    options = parser.parse_args()
    if options.replay is not None:
        os.environ.update(QUIET_ENVIRONMENT)
        from tests.fuzz.worker import replay

        return replay(options.replay)
    tally, start = Tally(), time.monotonic()
    stop = options.first + options.count

    def work(job: int) -> None:
        for result in results(options.first + job, stop, options.jobs):
            tally.add(result)
            if result["wrong"]:
                print(format_failure(result), flush=True)
            if tally.count % 1_000 == 0:
                print(f"{tally.count:,} in {time.monotonic() - start:,.0f} s", flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(work, range(options.jobs)))
    print(tally)
    return 1 if tally.wrong else 0
