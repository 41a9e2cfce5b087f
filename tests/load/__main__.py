"""Command: a lesson on a server that the teacher started before, a cold start, or many photos in one session."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections import Counter
from contextlib import nullcontext

import psutil

from tests.load.lesson import Act, Student, photo
from tests.load.server import Server, calibration, start_server, wait_until_idle, watch_memory

THINKING_SECONDS = (3.0, 5.0)
"""Seconds that a student looks at the screen between two acts, from least to most."""

SLOWEST = 12
"""Number of the slowest acts that are named."""


async def lesson(server: Server, sessions: int, seconds: float, runs: bool = True) -> tuple[list[Act], list]:
    """Return the acts of the students of a class in that time, and the memory (seconds, megabytes) over it."""
    acts: list[Act] = []
    memory: list[tuple[float, float]] = []
    over = time.monotonic() + seconds

    async def attends(number: int) -> None:
        student = Student(number, server.address, runs)
        acts.append(await student.open())
        while True:
            await asyncio.sleep(student.chance.uniform(*THINKING_SECONDS))
            if time.monotonic() > over:
                break
            acts.append(await student.act())
        await student.visitor.close()

    watching = asyncio.create_task(watch_memory(server, memory))
    done = await asyncio.gather(*(attends(number) for number in range(sessions)), return_exceptions=True)
    watching.cancel()
    for error in filter(None, done):
        acts.append(failed_act(error))
    return acts, memory


def failed_act(error: BaseException) -> Act:
    """Return an act that never ended, as an error like any other."""
    from tests.load.visitor import Answer

    return Act("open", False, Answer(problems=[f"{type(error).__name__}: {error}"]))


def report(acts: list[Act], cpu: float, memory: list[tuple[float, float]]) -> list[str]:
    """Return the figures as lines of text: each kind of act, the acts that ended in each minute, then what
    all of them cost the server."""
    lines = [f"{'act':<16}{'count':>7}{'p50 s':>8}{'p95 s':>8}{'most s':>8}{'kB':>8}"]
    groups = {kind: [act for act in acts if act.kind == kind] for kind in dict.fromkeys(act.kind for act in acts)}
    groups["without a run"] = [act for act in acts if not act.run and act.kind != "open"]
    groups["with a run"] = [act for act in acts if act.run]
    groups["all"] = acts
    began = min((act.ended - act.answer.seconds for act in acts), default=0.0)
    for act in acts:
        if act.kind != "open":
            groups.setdefault(f"minute {int((act.ended - began) // 60) + 1}", []).append(act)
    for name, group in groups.items():
        if group:
            took = sorted(act.answer.seconds for act in group)
            size = sum(act.answer.bytes for act in group) / len(group) / 1000
            lines.append(
                f"{name:<16}{len(group):>7}{quantile(took, 0.5):>8.2f}{quantile(took, 0.95):>8.2f}{took[-1]:>8.2f}"
                f"{size:>8.0f}"
            )
    slowest = sorted(acts, key=lambda act: -act.answer.seconds)[:SLOWEST]
    lines += [f"slow: {act.answer.seconds:.1f} s, {act.kind}, {act.place}" for act in slowest if act.place]
    problems = Counter(problem for act in acts for problem in act.answer.problems)
    lines.append(f"server CPU: {cpu:.1f} s, {cpu / max(1, len(acts)):.3f} s for each of {len(acts)} acts")
    if memory:
        lines.append(f"memory, MB: {', '.join(f'{mb:.0f} at {at:.0f} s' for at, mb in thin_out(memory))}")
    lines.append(f"errors: {sum(problems.values())}")
    lines += [f"  {count} × {problem}" for problem, count in problems.most_common(10)]
    return lines


def quantile(ordered: list[float], share: float) -> float:
    """Return the value that a share of the values, in order, do not exceed."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def thin_out(memory: list, most: int = 14) -> list:
    """Return at most that many of the values, the last among them."""
    step = max(1, -(-len(memory) // most))
    return memory[::-step][::-1]


async def photos(server: Server, count: int) -> tuple[list[Act], list]:
    """Run one student who uploads one photo after another; return the memory after each (number, megabytes)."""
    student, memory = Student(0, server.address), []
    acts = [await student.open()]
    for number in range(count):
        place = student.visitor.find("file_uploader", "Your photo")
        acts.append(Act("photo", True, await student.visitor.upload(place, f"{number}.jpg", photo(number))))
        memory.append((number + 1, server.memory()))
    await student.visitor.close()
    return acts, memory


async def cold(server: Server, sessions: int) -> list[Act]:
    """Open the app for everybody at once."""
    students = [Student(number, server.address) for number in range(sessions)]
    acts = await asyncio.gather(*(student.open() for student in students))
    await asyncio.gather(*(student.visitor.close() for student in students))
    return list(acts)


def main() -> int:
    """Run the commands of the command line and print the results; return 1 if there was an error."""
    options = _options()
    if options.address and not options.pid:
        raise SystemExit("--address also needs --pid, the process of that server: its CPU and memory are read")
    print(f"calibration: {calibration():.3f} s before, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}")
    own = psutil.Process()
    began = time.monotonic()
    place = nullcontext(Server(options.address, options.pid)) if options.address else start_server()
    with place as server:
        ready = time.monotonic() - began
        acts = asyncio.run(_play_lesson(options, server, ready))
        _, found, last = server.log().rpartition("Traceback")
        if found:
            print(f"the last error in the server's log:\n{found}{last[-4000:]}")
    spent = own.cpu_times()
    print(f"driver CPU: {spent.user + spent.system:.1f} s in {time.monotonic() - began:.0f} s")
    print(f"calibration: {calibration():.3f} s after, load {os.getloadavg()[0]:.2f}")
    return int(any(act.answer.problems for act in acts))


async def _play_lesson(options, server: Server, ready: float) -> list[Act]:
    before = server.cpu()
    if options.what == "cold":
        began = time.monotonic()
        acts = await cold(server, options.sessions)
        took = time.monotonic() - began
        print(
            f"{options.sessions} sessions, all served {took:.1f} s after the server answered, which took {ready:.1f} s"
        )
        print(*report(acts, server.cpu() - before, [(took, server.memory())]), sep="\n")
        return acts
    if options.what == "photos":
        acts, memory = await photos(server, options.photos)
        print(f"{options.photos} photos in one session; memory after so many photos, not seconds")
        print(*report(acts, server.cpu() - before, memory), sep="\n")
        return acts
    waited = await asyncio.to_thread(wait_until_idle, server)
    before = server.cpu()
    print(f"{options.sessions} sessions for {options.seconds:.0f} s, {waited:.0f} s after the server answered")
    acts, memory = await lesson(server, options.sessions, options.seconds)
    print(*report(acts, server.cpu() - before, memory), sep="\n")
    seconds = max(30.0, options.seconds / 5)
    print(f"\nthe same without texts and photos, which make the model run, for {seconds:.0f} s")
    before = server.cpu()
    plain, memory = await lesson(server, options.sessions, seconds, runs=False)
    print(*report(plain, server.cpu() - before, memory), sep="\n")
    return acts + plain


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="load", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("lesson", "cold", "photos"), default="lesson")
    parser.add_argument("--sessions", type=int, default=30, help="students, of a lesson and of a cold start")
    parser.add_argument("--seconds", type=float, default=600, help="of the lesson")
    parser.add_argument("--photos", type=int, default=200, help="one after another, in one session")
    parser.add_argument("--address", help="of a server that runs already, else one is started")
    parser.add_argument("--pid", type=int, help="the process of that server")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
