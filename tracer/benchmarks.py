"""Cost of tracing, as ratios measured side by side in one run: A B A B …, the median of the pairs, with their
range.

Figures of a busy machine are noise: run it when nothing else runs.
"""

from __future__ import annotations

import ast
import importlib.util
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import tracer
from tracer import models, zoo
from tracer.attention.head_effects import SEEDS
from tracer.attention.lens_answers import lens_answers
from tracer.capture import Recording, record
from tracer.export import to_table
from tracer.inputs.model_inputs import samples
from tracer.models.vit import ViT
from tracer.record import Trace
from tracer.shapes import Solution, solve
from tracer.spec.spec import Model, build_seeded
from tracer.survey.rows import PhotoRows
from tracer.tracing import PROVE_LATER, assemble
from tracer.utils.child_processes import ROOT
from tracer.utils.job_queue import PATIENCE, JobQueue
from tracer.utils.torch_internals import storage_id
from tracer.verify import Transparent

PAIRS = 15
THREADS = 8
VIT_B_16 = {"H": 224, "W": 224, "C": 3, "P": 16, "D": 768, "h": 12, "d_ff": 3072, "L": 12, "K": 1000}
LENGTHS = (257, 1025, 4097)
MAX_LENGTH = 8192
DEPTHS = (11, 112, 560)
"""Blocks of the runs without values: about 1,000, 10,000 and 50,000 ops."""
MB = 2**20


def bench() -> list[dict[str, Any]]:
    """Return all figures: `{"name", "value", "low", "high", "unit", "target", "ok"}`, `ok` None without a target."""
    with torch.no_grad():
        return [
            row
            for measure in (
                _overhead,
                _library,
                _memory,
                _solving,
                _deriving,
                _threads,
                _changing,
                _comparing,
                _looking,
                _torchlens,
                _growth,
                _any_size,
            )
            for row in measure()
        ]


def text(rows: list[dict[str, Any]]) -> str:
    """Return the figures as an aligned table; a missed target is reported in words."""
    words = {True: "met", False: "missed", None: ""}
    return to_table.align(
        [
            {
                "figure": row["name"],
                "value": _number(row["value"]),
                "range": "" if row["low"] is None else f"{_number(row['low'])} to {_number(row['high'])}",
                "unit": row["unit"],
                "target": "" if row["target"] is None else f"at most {_number(row['target'])}",
                "": words[row["ok"]],
            }
            for row in rows
        ]
    )


def _row(name: str, values: list[float], unit: str, target: float | None = None) -> dict[str, Any]:
    value = statistics.median(values)
    low, high = (min(values), max(values)) if len(values) > 1 else (None, None)
    ok = None if target is None else value <= target
    return {"name": name, "value": value, "low": low, "high": high, "unit": unit, "target": target, "ok": ok}


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _seconds(run: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    started = clock()
    run()
    return clock() - started


def _ratios(
    timed: Callable[[], object],
    reference: Callable[[], object],
    pairs: int = PAIRS,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Measure the time of `timed` over that of `reference`, in interleaved pairs, after one run of each that is not
    counted."""
    timed(), reference()
    return [_seconds(timed, clock) / _seconds(reference, clock) for _ in range(pairs)]


def _vit_b_16(**sizes: int) -> tuple[nn.Module, torch.Tensor]:
    return ViT(**VIT_B_16 | sizes).eval(), torch.randn(1, 3, 224, 224)


def _library_vit_b_16() -> tuple[nn.Module, torch.Tensor]:
    spec = zoo.spec_of("torchvision:vit_b_16")
    return build_seeded(spec.net, spec.sizes), torch.randn(1, 3, 224, 224)  # what the weights are takes no time


def _overhead() -> Iterator[dict]:
    net, image = _vit_b_16()
    ratios = _ratios(lambda: tracer.trace(net, image, prove=False), lambda: net(image))
    yield _row("tracing ViT-B/16 over the plain forward", ratios, "× time", 1.10)


def _library() -> Iterator[dict]:
    """Measure torchvision's own ViT-B/16, if it is installed: over its fused fast path, and over the same ops
    unfused."""
    if not zoo.available("torchvision"):
        return
    net, image = _library_vit_b_16()

    def run_without_fast_paths():
        with Transparent():
            net(image)

    for name, plain, target in (
        ("its fast path", lambda: net(image), 1.15),
        ("the opened path", run_without_fast_paths, 1.10),
    ):
        ratios = _ratios(lambda: tracer.trace(net, image, prove=False), plain)
        yield _row(f"tracing torchvision's vit_b_16 over {name}", ratios, "× time", target)
    for what, prove, target in (("tracing", False, 1.08), ("tracing and proving", True, 1.35)):
        traced = partial(tracer.trace, net, image, prove=prove)
        ratios = _ratios(traced, lambda: net(image), clock=time.process_time)
        yield _row(f"{what} torchvision's vit_b_16 over its fast path", ratios, "× CPU time", target)


def _measure_in_a_new_process(function: Callable[..., object], *arguments: int) -> tuple[float, ...]:
    """Return the numbers that a function of this file returns in a process of its own."""
    call = f"{function.__name__}({', '.join(map(str, arguments))})"
    program = f"from {__name__} import {function.__name__}; print({call})"
    text = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    numbers = ast.literal_eval(text)
    return numbers if isinstance(numbers, tuple) else (numbers,)


def _megabytes(function: Callable[..., int], *arguments: int) -> list[float]:
    return [number / MB for number in _measure_in_a_new_process(function, *arguments)]


def _three_times(function: Callable[[], float]) -> list[float]:
    return [number for _ in range(3) for number in _measure_in_a_new_process(function)]


def _memory() -> Iterator[dict]:
    """Measure memory in a process of its own, since the peak of a process never falls."""
    name = "peak memory of tracing ViT-B/16 above the plain forward"
    yield _row(name, _megabytes(measure_trace_memory), "MB", 150)
    (shallow,), (deep,) = (_megabytes(measure_proof_memory, blocks) for blocks in (6, 24))
    yield _row("peak memory of proving 6 blocks of ViT-B/16, none of it kept, above the plain forward", [shallow], "MB")
    yield _row("the same of 24 blocks over 6 (all kept: 4)", [deep / shallow], "×", 1.5)
    name = (
        f"peak memory of deriving 2 masked blocks without values, at {MAX_LENGTH:,} tokens, above {MAX_LENGTH // 4:,}"
    )
    yield _row(name, _megabytes(measure_long_derivation), "MB", 100)


def measure_proof_memory(blocks: int) -> int:
    """Return the bytes by which a verified trace that keeps nothing raises this process' peak memory."""
    run, raised = _trace_and_peak(*_vit_b_16(L=blocks), symbols={"B": 0}, keep=0)
    if any(step.verdict == "not executed" for step in run.steps):
        raise RuntimeError(f"a step of {blocks} blocks was not executed")
    return raised


def measure_trace_memory() -> int:
    """Return the bytes by which tracing raises this process' peak memory above that of the same forward untraced."""
    return _trace_and_peak(*_vit_b_16(), prove=False)[1]


@torch.no_grad()
def _trace_and_peak(net: nn.Module, image: torch.Tensor, **options: Any) -> tuple[Trace, int]:
    """Return a trace, and the bytes by which it raises this process' peak memory above that of plain forwards."""
    for _ in range(2):
        net(image)
    before = _peak()
    return tracer.trace(net, image, **options), _peak() - before


def measure_long_derivation() -> int:
    """Return the bytes by which deriving masked attention of the longest sequence raises this process' peak memory
    above that of a quarter of it, on the device `meta`, where only the derivation allocates any."""
    with torch.device("meta"):
        net = _fused_blocks(2, MAX_LENGTH + 1)
    with torch.no_grad():
        peaks = []
        for length in (MAX_LENGTH // 4, MAX_LENGTH):
            tracer.trace(net, torch.empty(1, length, 64, device="meta"), symbols={"T": 1}, prove=PROVE_LATER)
            peaks.append(_peak())
        return peaks[1] - peaks[0]


def _peak() -> int:
    """Return the peak resident memory of this process in bytes: `VmHWM` if there is one, since Linux passes `ru_maxrss`
    from the parent process."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _any_size() -> Iterator[dict]:
    """Measure runs without values over the number of ops, each in a process of its own."""
    seconds = {}
    for blocks in DEPTHS:
        ops, took, held = _measure_in_a_new_process(measure_deep_trace, blocks)
        seconds[ops] = took
        yield _row(f"a run without values of {ops:,.0f} ops, with symbols, lines and twin", [took], "s of CPU")
        yield _row(f"peak memory of the process that ran these {ops:,.0f} ops", [held / MB], "MB")
    (few, first), *_, (many, last) = seconds.items()
    yield _row(
        f"growth of its time per op, {few:,.0f} to {many:,.0f} ops (linear: 1)", [last / many / (first / few)], "×"
    )
    took, held = _measure_in_a_new_process(measure_long_trace, MAX_LENGTH)
    yield _row(f"a real run of {MAX_LENGTH:,} tokens through 4 blocks, proofs pending", [took], "s of CPU")
    yield _row("peak memory of its process", [held / MB], "MB")


def measure_deep_trace(blocks: int) -> tuple[int, float, int]:
    """Return the number of ops of a run of `llama` without values, its seconds of CPU, and the peak memory of this
    process."""
    config = {**models.shipped_config("llama"), "D": 4096, "h": 32, "h_kv": 8, "T_max": MAX_LENGTH, "L": blocks}
    model = Model.without_weights("llama", models.spec_of("llama"), config, models.card("llama"))
    started = time.process_time()
    trace = model.trace(values=False, T=MAX_LENGTH)
    return len(trace.ops), time.process_time() - started, _peak()


def measure_long_trace(length: int) -> tuple[float, int]:
    """Return the seconds of CPU of tracing real tokens of that number, and this process' peak memory."""
    net = _fused_blocks(4)
    with torch.no_grad():
        trace = partial(tracer.trace, net, torch.randn(1, length, 64), symbols={"T": 1}, prove=PROVE_LATER)
        return _seconds(trace, time.process_time), _peak()


def _solving() -> Iterator[dict]:
    """Measure solving in processes of their own, since solutions are cached."""
    yield _row("solving the symbolic shapes of vit", _three_times(measure_solution), "s", 0.5)


def measure_solution() -> float:
    """Return the seconds of the first solution of a run of vit, with the runs at the probed sizes."""
    model = tracer.load("vit")
    with torch.no_grad():
        recording = record(model.net, tuple(model.inputs()))
    return _seconds(lambda: _solve(model, recording))


def _solve(model: Model, recording: Recording) -> Solution | None:
    probes = [{**model.sizes, **probe} for probe in model.spec.probes]
    return solve(Recording(ops=recording.ops), {"B": 1, **model.sizes}, model.vocabulary, probes)


def _deriving() -> Iterator[dict]:
    """Measure deriving in processes of their own, since solutions and books are cached."""
    name = "deriving and proving vit from its run, 6 blocks of 65 tokens, beyond the trace"
    yield _row(name, _three_times(measure_derivation), "s", 0.5)
    if zoo.available("torchvision"):
        name = "deriving torchvision's vit_b_16, proofs pending, beyond the trace, over the plain forward"
        yield _row(name, _three_times(measure_library_derivation), "× time", 3)


def _changing() -> Iterator[dict]:
    """Measure runs with a changed line: the first of its kind in a new process, and one whose outline is cached."""
    first = _three_times(measure_first_change)
    yield _row("the first changed run of vit of its kind", first, "s", 0.8)
    model, change = tracer.load("vit"), {"block3.attention.weights": "drop_heads(1)"}
    ratios = _ratios(lambda: model.trace(change=change), model.trace)
    yield _row("a changed run of vit over a plain trace, both outlines known", ratios, "× time", 1.1)


def measure_first_change() -> float:
    """Return the seconds of the first changed run of vit, after a plain one."""
    model = tracer.load("vit")
    model.trace()
    return _seconds(lambda: model.trace(change={"block3.attention.weights": "drop_heads(1)"}))


def measure_derivation() -> float:
    """Return the seconds of deriving the book of vit, and proving all of it, once its run is recorded and solved."""
    model = tracer.load("vit")
    with torch.no_grad():
        recording = record(model.net, tuple(model.inputs()), cap=2**30, calls=True)
        sizes, solution = model.vocabulary.complete({"B": 1, **model.sizes}), _solve(model, recording)
        facts = {"model": "vit", "sizes": sizes, "derived": model.spec.derived, "solution": solution}
        return _seconds_of_derivation(model.net, recording, **facts)


def _seconds_of_derivation(net: nn.Module, recording: Recording, **facts: Any) -> float:
    """Return the seconds that a book takes beyond the same trace without one."""
    derived = _seconds(lambda: assemble(net, recording, **facts))
    recording.calls = None
    return derived - _seconds(lambda: assemble(net, recording, **facts))


def measure_library_derivation() -> float:
    """Return the time of deriving the book of vit_b_16 in plain forwards, with every proof left pending."""
    net, image = _library_vit_b_16()
    with torch.no_grad():
        net(image)
        forward = min(_seconds(lambda: net(image)) for _ in range(3))
        recording = record(net, (image,), cap=0, calls=True)
        facts = {"model": "vit_b_16", "sizes": {}, "derived": {}, "solution": None}
        return _seconds_of_derivation(net, recording, prove=PROVE_LATER, **facts) / forward


def _threads() -> Iterator[dict]:
    """Measure runs in threads, all at once, and through the app's queue, with one thread inside each op, as in the
    app."""
    model, line = tracer.load("vit"), JobQueue(2, PATIENCE)

    def at_once():
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda _: model.trace(), range(THREADS)))

    def in_line():
        for task in [line.join(model.trace) for _ in range(THREADS)]:
            while not task.wait(60):
                pass

    def in_a_row():
        for _ in range(THREADS):
            model.trace()

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        all_at_once, in_turns = _ratios(at_once, in_a_row), _ratios(in_line, in_a_row)
    finally:
        torch.set_num_threads(before)
    over = f"over {THREADS} in a row"
    yield _row(f"{THREADS} traces of vit in {THREADS} threads {over}", all_at_once, "× time")
    yield _row(f"{THREADS} traces of vit in the app's line {over}", in_turns, "× time", 1.0)


def _comparing() -> Iterator[dict]:
    """Measure comparing two runs of vit over tracing it once more: its sample beside another photo, where every line
    differs, and beside itself with a head switched off."""
    model = tracer.load("vit")
    first, photo = model.trace(), model.trace(image=samples(model.spec.samples)["dog"]())
    off = model.trace(change={"block3.attention.weights": tracer.changes.drop_heads([1])})
    for name, variant in (("another photo", photo), ("a head switched off", off)):
        ratios = _ratios(partial(tracer.compare, first, variant), model.trace)
        yield _row(f"comparing a run of vit with that of {name}, over a run", ratios, "× time", 0.2)


def _looking() -> Iterator[dict]:
    """Measure the lens over a run, and the rows of one photo of a survey over as many plain runs as they need: with
    each head off, and with patches hidden."""
    model, photo = tracer.load("vit"), samples("photos")["dog"]()
    inputs, trace, rows = model.inputs(photo), model.trace(image=photo), PhotoRows(model)
    ratios = _ratios(lambda: lens_answers(model, inputs, trace), model.trace)
    yield _row("reading the answer of vit after every block, over a run", ratios, "× time")
    heads = sum(row["row"] == "head" for row in rows.measure(photo, "dog"))
    runs = 1 + heads + 2 + SEEDS

    def plain() -> None:
        for _ in range(runs):
            model.net(*inputs)

    ratios = _ratios(lambda: rows.measure(photo, "dog"), plain)
    yield _row(f"surveying one photo by vit over its {runs} plain forwards", ratios, "× time")


def _torchlens() -> Iterator[dict]:
    """Measure the nearest other tracer, if it is installed."""
    if importlib.util.find_spec("torchlens") is None:
        return
    import torchlens  # only to compare with

    net, image = _vit_b_16()
    ratios = _ratios(lambda: torchlens.trace(net, image), lambda: net(image), 5)
    yield _row("TorchLens on the same ViT-B/16 over the plain forward", ratios, "× time")


class FusedBlock(nn.Module):
    """Residual self-attention by PyTorch's fused kernel, `[B, S, D]` in and out. With `longest`, no token sees a later
    one, by a table of that length."""

    def __init__(self, D: int, h: int, longest: int = 0):
        super().__init__()
        self.h, self.packed, self.output = h, nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.register_buffer("seen", torch.ones(longest, longest, dtype=torch.bool).tril() if longest else None)

    def forward(self, x) -> torch.Tensor:
        B, S, D = x.shape
        q, k, v = self.packed(x).view(B, S, 3, self.h, D // self.h).permute(2, 0, 3, 1, 4)
        mask = None if self.seen is None else self.seen[:S, :S].expand(B, self.h, S, S)
        return x + self.output(scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).reshape(B, S, D))


def _fused_blocks(count: int, longest: int = 0) -> nn.Module:
    return nn.Sequential(*(FusedBlock(D=64, h=4, longest=longest) for _ in range(count))).eval()


def _growth() -> Iterator[dict]:
    net = _fused_blocks(4)
    bytes_per_token = [_bytes(tracer.trace(net, torch.randn(1, length, 64))) / length for length in LENGTHS]
    for length, value in zip(LENGTHS, bytes_per_token, strict=True):
        yield _row(f"a trace of fused attention holds, at {length:,} tokens", [value], "bytes/token")
    name = f"growth of bytes per token, {LENGTHS[0]:,} to {LENGTHS[-1]:,} tokens (linear: 1)"
    yield _row(name, [bytes_per_token[-1] / bytes_per_token[0]], "×", 1.1)


def _bytes(trace: Trace) -> int:
    """Return the bytes of the storages that a trace holds, each counted once."""
    tensors = [*trace.values.values(), trace.output]
    return sum({storage_id(tensor.untyped_storage()): tensor.untyped_storage().nbytes() for tensor in tensors}.values())
