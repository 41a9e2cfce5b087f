"""Command: each fault in turn, one line for each with the observation."""

import argparse
import inspect
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.faults import commands, visits


def faults() -> dict[str, Callable[[Path], str]]:
    """Return every fault by its name: a function of an empty folder that returns an observation, or raises."""
    return {
        name.replace("_", " "): made
        for module in (commands, visits)
        for name, made in inspect.getmembers(module, inspect.isfunction)
        if made.__module__ == module.__name__ and not name.startswith("_")
    }


def main() -> int:
    """Run the faults; exit with status 1 if one lost more than the run in flight, or was not reported in a sentence."""
    known = faults()
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of: {', '.join(known)}")
    chosen = parser.parse_args().names or list(known)
    failed = 0
    for name in chosen:
        with tempfile.TemporaryDirectory(prefix="fault", ignore_cleanup_errors=True) as folder:
            try:
                seen = f"ok: {known[name](Path(folder))}"
            except Exception as error:
                failed += 1
                seen = f"FAILED: {type(error).__name__}: {' '.join(str(error).split())[:600]}"
        print(f"{name}: {seen}", flush=True)
    print(f"{len(chosen)} faults, {failed} failed")
    return 1 if failed else 0
