"""Process that opens inputs, one after another, under limits, and reports the outcome of each on standard output.

A line `at SEED` before, a line of JSON after. Where an input takes too much processor time the process ends in the
middle of it: the line before is then the last.
"""

import faulthandler
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from random import Random

from tests.fuzz import addresses, checkpoints, photos, saved_runs, sounds

KINDS = {
    "saved run": (saved_runs, 35),
    "photo": (photos, 52),
    "sound": (sounds, 8),
    "checkpoint": (checkpoints, 4),
    "address": (addresses, 1),
}
"""What is opened, and how many of a hundred inputs are of that kind."""
CPU = 2.0
"""Seconds of processor time that an input may take, over all threads; at `KILL` the process ends."""
KILL = 6.0
WAIT = 180.0
"""Seconds on the clock after which the process ends: the input waits for something that does not come."""
MEMORY = 300 << 20
"""Bytes that an input may take while it is opened and shown, beyond what the process held before."""
ROOM = 3 << 30
"""Bytes of addresses beyond those of the warm process, so that a fault here can't fill the machine."""
SENTENCE = 400
"""Characters of a refusal."""

FORBIDDEN = ("os.system", "os.exec", "os.fork", "os.forkpty", "os.spawn", "os.posix_spawn", "subprocess.Popen",
             "socket.connect", "socket.getaddrinfo", "pickle.find_class", "ctypes.dlopen", "os.remove", "os.rename",
             "os.rmdir", "shutil.rmtree", "os.chmod", "os.truncate", "code.__new__")  # fmt: skip
"""Audit events of Python that no input may cause; files are watched beside them."""


class Watch:
    """A watch on Python's acts that no input may cause: running a program, asking the network, unpickling a class, or
    opening a file other than its own and the program's."""

    def __init__(self, own: Path):
        self.on, self.seen, self.own = False, [], own
        python = {sys.prefix, sys.base_prefix, os.path.realpath(sys.prefix), str(Path(os.__file__).parent)}
        self.readable = (str(own), str(Path(__file__).parents[2]), *python, "/proc/", "/sys/", "/dev/", "/usr/")
        self.writable = (str(own), os.devnull)
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple) -> None:
        if not self.on:
            return
        if event in FORBIDDEN:
            paths = [str(path) for path in arguments if isinstance(path, (str, os.PathLike))]
            if not paths or not all(self._own(path) for path in paths):
                self.seen.append(f"{event} {arguments!r:.120}")
        elif event == "open" and isinstance(arguments[0], (str, bytes)):
            path, mode, flags = os.fsdecode(arguments[0]), arguments[1], arguments[2]
            writes = set(mode or "") & set("wax+") or flags & (os.O_WRONLY | os.O_RDWR)
            if not os.path.realpath(path).startswith(self.writable if writes else self.readable):
                self.seen.append(f"open {path!r:.120} {'to write' if writes else 'to read'}")

    def _own(self, path: str) -> bool:
        return os.path.realpath(path).startswith(self.writable)


def kind_of(seed: int) -> str:
    """Return the kind of the input of a seed."""
    return Random(f"kind {seed}").choices(list(KINDS), [share for _, share in KINDS.values()])[0]


def try_seed(seed: int, watch: Watch, kill: float = KILL) -> dict:
    """Open and show the input of a seed; return how it ended, and what was wrong."""
    kind = kind_of(seed)
    module, chance = KINDS[kind][0], Random(seed)
    try:
        given = module.make_input(chance, watch.own)
        before, start = _peak(anew=True), time.process_time()
        signal.setitimer(signal.ITIMER_PROF, kill)
        signal.setitimer(signal.ITIMER_REAL, WAIT)
        watch.on, watch.seen = True, []
        outcome, wrong = _open_and_show(module, given, chance)
        watch.on = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        seconds, more = time.process_time() - start, _peak() - before
    finally:
        watch.on = False
        for left in watch.own.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    wrong += [f"does what no file may: {event}" for event in dict.fromkeys(watch.seen)]
    if seconds > CPU:
        wrong.append(f"takes {seconds:.1f} s of processor time, expected at most {CPU:g}")
    if more > MEMORY:
        wrong.append(f"takes {more >> 20} MB, expected at most {MEMORY >> 20}")
    return {"seed": seed, "kind": kind, "outcome": outcome, "cpu": seconds, "memory": max(more, 0), "wrong": wrong}


def _open_and_show(module, given, chance: Random) -> tuple[str, list[str]]:
    """ "shown" or "refused", and what was wrong with that."""
    try:
        found = module.open_input(given, chance)
    except ValueError as error:
        return "refused", [*_sentence(str(error)), *_memory_problems(error)]
    except BaseException as error:
        return "failed", [f"opening: {_where(error)}"]
    try:
        module.show_input(found, chance)
    except BaseException as error:
        return "failed", [f"showing: {_where(error)}"]
    return "shown", []


def _sentence(text: str) -> list[str]:
    if len(text) > SENTENCE:
        return [f"is refused in {len(text):,} characters: {text[:80]!r}"]
    if "\n" in text or "Traceback" in text or not text.strip():
        return [f"is not refused in one sentence: {text[:200]!r}"]
    return []


def _memory_problems(error: BaseException | None) -> list[str]:
    """Return inputs that were refused only for lack of memory: they would be accepted where there is more."""
    while error is not None:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            return [f"asks for more memory than there is: {_where(error)}"]
        error = error.__cause__ or error.__context__
    return []


def _where(error: BaseException) -> str:
    """Return an exception in one line: its message, and where in the project it was raised."""
    lines = [line for line in traceback.extract_tb(error.__traceback__) if ".venv" not in line.filename]
    place = f" ({Path(lines[-1].filename).name}:{lines[-1].lineno})" if lines else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}{place}"


def _peak(anew: bool = False) -> int:
    """Return the peak of the process's memory in bytes; since the last call with `anew`."""
    if anew:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def main(first: int, stop: int, step: int, warm: int) -> None:
    """Open the inputs of the seeds `first`, `first + step` … below `stop`, after `warm` others of each kind."""
    said = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="fuzz") as own:
        watch = Watch(Path(own))
        _warm(watch, warm)
        said.write("warm\n")
        resource.setrlimit(resource.RLIMIT_AS, (_addresses() + ROOM, resource.RLIM_INFINITY))
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 20, resource.RLIM_INFINITY))
        for number in (signal.SIGPROF, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
            faulthandler.register(number, chain=True)
        for seed in range(first, stop, step):
            said.write(f"at {seed}\n")
            said.write(json.dumps(try_seed(seed, watch)) + "\n")


def replay(seed: int) -> int:
    """Open the input of one seed again, with the traceback of what is wrong; a file is left where it can be read."""
    module, chance, folder = KINDS[kind_of(seed)][0], Random(seed), Path(tempfile.mkdtemp(prefix="replay"))
    given = module.make_input(chance, folder)
    if isinstance(given, bytes):
        (folder / "input").write_bytes(given)
    print(f"{kind_of(seed)} {seed}, in {folder}: {repr(given)[:400]}")
    try:
        found = module.open_input(given, chance)
    except ValueError as error:
        print(f"refused: {error}")
        return 0
    print(f"opened: {repr(found)[:400]}")
    module.show_input(found, chance)
    return 0


def _warm(watch: Watch, count: int) -> None:
    """Open inputs of each kind before anything is counted: imports and caches are not one input's."""
    seeds = dict.fromkeys(KINDS, count)
    for seed in range(10**9, 10**9 + 10_000):
        if seeds[kind_of(seed)]:
            seeds[kind_of(seed)] -= 1
            try_seed(seed, watch, kill=10 * KILL)


def _addresses() -> int:
    """Return the bytes of addresses that the process has."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
