"""Surveys of the zoo: its textbooks at several sizes, the names of their lines, and what is verified."""

from __future__ import annotations

import gc
import json
import os
import random
import re
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from difflib import SequenceMatcher
from functools import partial
from itertools import zip_longest
from math import prod
from typing import Any, NamedTuple

import torch

import tracer
from tracer import zoo
from tracer.capture import record
from tracer.capture.tensors import same_outputs
from tracer.diagnostics import findings as as_text
from tracer.export.to_html import equation
from tracer.ops import is_layout
from tracer.record import Trace
from tracer.shapes import UNKNOWN
from tracer.shapes.variation import on_meta
from tracer.spec.checkpoints import shapes
from tracer.spec.spec import Model
from tracer.textbook.derivation import KERNEL
from tracer.tracing import PROVE_LATER
from tracer.utils.child_processes import environment, module_command
from tracer.utils.devices import use_one_thread
from tracer.utils.errors import quote, reason, shorten
from tracer.utils.torch_internals import tree_leaves, tree_map_only
from tracer.verify import sizes_of, small
from tracer.verify.checks.outputs import find_unaccounted
from tracer.verify.checks.reference_run import Transparent, seeded_run

# A survey of the libraries' names: each is built and traced in a worker process, and failures have reasons.
#
# A worker takes one name after the other; one that takes too long, or too much memory, is ended and another goes on.
# Nothing is downloaded: weights are seeded random ones, and above `HEAVY_PARAMETERS` parameters a net is run on `meta`.

HEAVY_PARAMETERS = 300_000_000
"""Parameters from which on a net is run without values."""
SECONDS = 120
"""Processor time that one name is given, so that a busy machine does not change what opens."""
WAIT = 1200
"""Seconds that are waited for it altogether."""
MEMORY = 10 * 2**30
"""Bytes that a worker may hold."""
TURNS = 20
"""Names that one worker takes, so that what libraries keep does not pile up."""


class NameOutcome(NamedTuple):
    """Outcome of a name: the number of operations that ran, or the reason for none; `model` is False for an inner
    part. `findings` are those that nobody acknowledged, a sentence each."""

    name: str
    ops: int = 0
    reason: str = ""
    seconds: float = 0.0
    model: bool = True
    findings: tuple[str, ...] = ()


def list_names(library: str) -> list[str]:
    """Return all names of a library, with its prefix. Raise ValueError for an unknown library."""
    source, _ = zoo.source_of(f"{library}:")
    return [f"{library}:{id}" for id in source.names()]


def sample(names: list[str], count: int | None, seed: int = 0) -> list[str]:
    """Return that many of the names, drawn at random; all without a number."""
    return names if count is None else random.Random(seed).sample(names, min(count, len(names)))


def open_name(name: str) -> NameOutcome:
    """Build a model and trace it on its own sample; an exception on the way is the reason."""
    start = time.process_time()
    try:
        net, inputs = _ready(name)
        with torch.no_grad():
            trace = tracer.trace(net, *inputs, prove=False, **inputs.named)
            findings = trace.findings
    except Exception as error:  # a library may raise anything; only what we refuse is of one sentence
        plain = isinstance(error, ValueError)
        message = reason(error) if plain else f"{type(error).__name__}: {reason(error)}"
        message, model = message or type(error).__name__, not isinstance(error, zoo.NoModel)
        return NameOutcome(name, reason=message, seconds=time.process_time() - start, model=model)
    sentences = tuple(f"{finding.kind}: {finding.message}" for finding in findings)
    return NameOutcome(name, ops=len(trace.ops), seconds=time.process_time() - start, findings=sentences)


def _ready(name: str):
    """Prepare the net and its inputs: on `meta` if the net is heavy."""
    spec = zoo.spec_of(name)
    full = spec.defaults
    if sum(map(prod, shapes(spec, full).values())) <= HEAVY_PARAMETERS:
        model = tracer.load(name)
        return model.net, model.inputs()
    net = on_meta(lambda: spec.net(**full)).eval()
    inputs = Model.of(name, spec, net, full, weights="none: on meta").inputs()
    without_values = partial(tree_map_only, torch.Tensor, lambda tensor: tensor.to("meta"))
    return net, replace(inputs, tensors=without_values(inputs.tensors), named=without_values(inputs.named))


def survey(names: list[str], seconds: float = SECONDS) -> Iterator[NameOutcome]:
    """Yield the outcome of each name, in order of completion."""
    worker = None
    for number, name in enumerate(names):
        if worker is None or number % TURNS == 0 or worker.poll() is not None:
            _end(worker)
            worker = _worker(seconds)
        yield _answer(worker, name, seconds)
    _end(worker)


def _worker(seconds: float) -> subprocess.Popen:
    variables = environment(HF_HUB_OFFLINE="1", TRACER_MODEL_GB="100000", PYTHONWARNINGS="ignore")
    command = module_command("tracer.verify.surveys", str(seconds))
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=variables
    )


def _answer(worker: subprocess.Popen, name: str, seconds: float) -> NameOutcome:
    """Return the worker's outcome for a name, or the reason for none."""
    assert worker.stdin and worker.stdout  # `_worker` asked for both
    worker.stdin.write(f"{name}\n".encode())
    worker.stdin.flush()
    ready, _, _ = select.select([worker.stdout], [], [], WAIT)
    if line := worker.stdout.readline() if ready else b"":
        return NameOutcome(*json.loads(line))
    if not ready:
        worker.kill()
        return NameOutcome(name, reason=f"it took more than {WAIT} s", seconds=WAIT)
    if worker.wait() == -getattr(signal, "SIGPROF", 0):
        return NameOutcome(name, reason=f"it took more than {seconds:g} s of processor time", seconds=seconds)
    return NameOutcome(name, reason="its process ended, out of memory or in a crash")


def _end(worker: subprocess.Popen | None) -> None:
    if worker is not None:
        worker.kill()
        worker.communicate()


def names_summary(library: str, outcomes: list[NameOutcome], most: int = 12) -> list[str]:
    """Return how many of a library's names opened, the commonest reasons of the rest, and all findings."""
    ok, models = sum(not outcome.reason for outcome in outcomes), sum(outcome.model for outcome in outcomes)
    lines = [f"{library}: {ok} of {models} opened ({100 * ok / max(1, models):.1f} %)"]
    lines += [f"  {len(outcomes) - models} more are not models by themselves"] if models < len(outcomes) else []
    rest = [outcome for outcome in outcomes if outcome.reason and outcome.model]
    for why, count in Counter(_kind(outcome) for outcome in rest).most_common(most):
        names = [outcome.name for outcome in rest if _kind(outcome) == why]
        more = f" and {len(names) - 4} others" if len(names) > 4 else ""
        lines.append(f"  {count:4}  {shorten(why, 160)}  ({', '.join(names[:4])}{more})")
    lines += [f"  {outcome.name}: {sentence}" for outcome in outcomes for sentence in outcome.findings]
    return lines


def _kind(outcome: NameOutcome) -> str:
    """Return a reason without the name."""
    return outcome.reason.replace(outcome.name.partition(":")[2], "…").replace("'hf:…' ", "")


def _work(seconds: float) -> None:
    """Read names from standard input and print the outcome of each, a line of JSON; end if one takes longer than that
    many seconds of processor time, or more than `MEMORY`, on systems that know such limits."""
    try:
        import resource  # not on Windows

        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    except (ImportError, OSError, ValueError):
        pass
    use_one_thread()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print is not an answer
    for line in sys.stdin:
        with _ended_after(seconds):
            outcome = open_name(line.strip())
        print(json.dumps(outcome), file=out, flush=True)
        gc.collect()  # a net may refer to itself, and then stays until there are many small objects


@contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """End this process, by a signal, should the block take more processor time than that."""
    if not hasattr(signal, "setitimer"):  # Windows
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    _work(float(sys.argv[1]))


# Derived textbooks of many models: small ones, of all kinds, with untrained weights.
#
# Every parameter is moved away from 0 and 1, since a proof on a bias of zeros or a gain of ones says nothing.

FIELDS = {
    "attention": """hf:gpt2 hf:llama hf:mistral hf:qwen2 hf:qwen3 hf:gemma hf:gemma2 hf:phi hf:phi3 hf:falcon hf:bloom
        hf:mpt hf:opt hf:gpt_neox hf:gptj hf:codegen hf:stablelm hf:olmo hf:cohere hf:bert hf:roberta hf:albert
        hf:electra hf:distilbert hf:deberta-v2 hf:xlnet hf:mpnet hf:vit hf:deit hf:beit hf:dinov2 hf:swin hf:segformer
        hf:vit_mae timm:vit_tiny_patch16_224 timm:deit3_small_patch16_224 timm:eva02_tiny_patch14_224
        timm:cait_xxs24_224 timm:xcit_nano_12_p16_224 timm:swin_tiny_patch4_window7_224 timm:pit_ti_224
        torchvision:vit_b_32 torchvision:swin_t""",
    "convolution": """hf:convnext hf:resnet timm:mixer_s32_224 timm:coatnet_nano_rw_224 timm:convnext_atto
        timm:poolformer_s12 torchvision:resnet18 torchvision:convnext_tiny torchvision:efficientnet_b0
        torchvision:mobilenet_v3_small torchvision:densenet121 torchvision:deeplabv3_mobilenet_v3_large""",
    "state space": "hf:mamba hf:falcon_mamba",
    "experts": "hf:mixtral hf:qwen2_moe hf:deepseek_v3",
    "encoder and decoder": "hf:t5 hf:bart hf:pegasus hf:marian",
    "vision and language": "hf:clip hf:siglip hf:blip hf:llava hf:paligemma hf:fuyu",
    "audio": "hf:whisper hf:wav2vec2 hf:hubert hf:speech_to_text",
    "video": "hf:videomae hf:timesformer torchvision:r3d_18 torchvision:mvit_v1_b",
    "time series": "hf:time_series_transformer",
    "detection": "hf:detr torchvision:ssdlite320_mobilenet_v3_large",
}
"""What the command runs, by field: families of transformers each in a small configuration, and names of libraries."""

NAMES = tuple(name for names in FIELDS.values() for name in names.split())

KEPT_BYTES = 4 * 2**30
"""Cap in bytes on what is kept of a run: all of it, also where a video goes through sixteen blocks."""

PARAMETER_STD = 0.05
"""How far parameters are moved, as a standard deviation."""


class ModelOutcome(NamedTuple):
    """Outcome of one model: computing ops and those of them in a step, steps, outputs of forward that no step has,
    verified steps, and those that run PyTorch's own kernel, sizes that are not the same at all probes and those of them
    with a symbol, the largest error, lines that can be set, whether the output was that of the untraced run and nothing
    of the model was changed, the seconds, and the reason of a failure, or "". `findings` are those that nobody
    acknowledged, `intents` counts the others."""

    name: str
    computing: int = 0
    covered: int = 0
    steps: int = 0
    verified: int = 0
    kernels: int = 0
    sizes: int = 0
    solved: int = 0
    error: float = 0.0
    unverified: tuple[str, ...] = ()
    drawn: int = 0
    unchanged: bool = True
    seconds: float = 0.0
    reason: str = ""
    unseen: int = 0
    findings: tuple[str, ...] = ()
    intents: int = 0


def perturb_parameters(net: torch.nn.Module) -> None:
    """Perturb all parameters, and the running variances of norms, by seeded random numbers."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.is_floating_point():
                parameter += PARAMETER_STD * torch.randn(parameter.shape, generator=draw).to(parameter.dtype)
        for name, buffer in net.named_buffers():
            if name.endswith("running_var"):
                buffer += torch.rand(buffer.shape, generator=draw).to(buffer.dtype)


def book(name: str) -> ModelOutcome:
    """Derive and prove the textbook of one model."""
    began = time.perf_counter()
    try:
        model = small(name)
        perturb_parameters(model.net)
        before = {key: value.clone() for key, value in model.net.state_dict().items()}
        with torch.no_grad(), Transparent():
            inputs = model.inputs()
            plain = seeded_run(model.net, *inputs, **inputs.named)
        trace = seeded_run(model.trace, keep=KEPT_BYTES).check()
    except Exception as error:  # whatever a library says of its own model
        return ModelOutcome(name, reason=reason(error))
    after = model.net.state_dict()
    computing = [op for op in trace.ops if not is_layout(op.op)]
    shown = [step for step in trace.steps if not step.recomputed]
    wrong = [step for step in shown if step.verdict != "verified"]
    unverified = [f"{step.id}: {step.replayed or step.note or step.error}" for step in wrong]
    missing = list(find_unaccounted(trace, [*inputs, *inputs.named.values(), *after.values()]))
    missing += [note for note in trace.notes if not trace.steps]
    with torch.no_grad():
        findings = tuple(as_text.sentence(finding, trace) for finding in trace.findings)
    changing = changing_sizes(trace)
    return ModelOutcome(
        name,
        len(computing),
        sum(op.step is not None for op in computing),
        len(shown) + len(missing),
        len(shown) - len(unverified),
        sum(KERNEL in step.note for step in shown),
        len(changing),
        sum(size != UNKNOWN for size in changing),
        max((step.error for step in shown if step.error is not None), default=0.0),
        (*unverified, *missing),
        sum(equation(step.latex).startswith("<math") for step in shown),
        same_outputs(trace.output, plain) and all(torch.equal(after[key], value) for key, value in before.items()),
        time.perf_counter() - began,
        unseen=sum(len(step.unseen) for step in shown),
        findings=findings,
        intents=len(trace.acknowledged_findings),
    )


def changing_sizes(trace: Trace) -> list[str]:
    """Return the sizes that are not known to be the same at all probes: formulas, and `UNKNOWN` if there is none."""
    return [size for size in sizes_of(trace) if not size.isdecimal()]


def line(outcome: ModelOutcome) -> str:
    """Format one model as one line, with what is not verified below it."""
    if outcome.reason:
        return f"{outcome.name}: {outcome.reason}"
    text = (
        f"{outcome.name}: {outcome.verified} of {outcome.steps} steps verified, "
        f"{outcome.covered} of {outcome.computing} ops in steps, {outcome.kernels} by kernel, "
        f"{outcome.solved} of {outcome.sizes} sizes in symbols, error {outcome.error:.1e}, "
        f"{outcome.unseen} operands unseen, {len(outcome.findings)} findings and {outcome.intents} on purpose,"
        f" {outcome.seconds:.0f} s" + ("" if outcome.unchanged else ", output or model CHANGED")
    )
    return "\n    ".join([text, *outcome.unverified, *outcome.findings])


BARS = {
    "ops in steps": ("covered", "computing", 0.99, 1.0),
    "steps verified": ("verified", "steps", 1.0, 1.0),
    "lines that can be set": ("drawn", "steps", 1.0, 1.0),
    "steps by kernel": ("kernels", "steps", 0.0, 0.05),
    "sizes in symbols": ("solved", "sizes", 0.95, 1.0),
}
"""Shares that are expected, each as a part, its whole, and from where to where."""


def _share(outcomes: list[ModelOutcome], part: str, whole: str) -> float:
    total = sum(getattr(outcome, whole) for outcome in outcomes)
    return sum(getattr(outcome, part) for outcome in outcomes) / total if total else 1.0


def zoo_summary(outcomes: list[ModelOutcome]) -> tuple[list[str], bool]:
    """Return the figures of all models and of each field, and whether they are within the bars."""
    ran = [outcome for outcome in outcomes if not outcome.reason]
    same = sum(outcome.unchanged for outcome in ran)
    lines = [f"{len(ran)} of {len(outcomes)} models ran, {same} with the untraced output and an untouched model"]
    holds = len(ran) == len(outcomes) == same
    for name, (part, whole, low, high) in BARS.items():
        value = _share(ran, part, whole)
        holds = holds and low <= value <= high
        lines.append(f"{name}: {value:.1%} (expected {low:.0%} to {high:.0%})")
    for field, names in FIELDS.items():
        own = [outcome for outcome in ran if outcome.name in names.split()]
        if own:
            shares = (f"{name} {_share(own, *bar[:2]):.1%}" for name, bar in BARS.items())
            lines.append(f"{field}, {len(own)} models: {', '.join(shares)}")
    lines.append(f"{sum(outcome.unseen for outcome in ran):,} operands that no check sees")
    findings = sum(len(outcome.findings) for outcome in ran)
    holds = holds and not findings
    lines.append(f"{findings} findings (expected 0), and {sum(outcome.intents for outcome in ran)} on purpose")
    lines.append(f"{sum(outcome.seconds for outcome in ran) / 60:.1f} minutes")
    return lines, holds


# Textbook of a model of the zoo, compared at several sizes: it must not depend on one run.

SIZES = ((2, 9), (1, 4), (4, 16), (3, 5))
"""Batch and length: a usual one, with which the others are compared, one of one input, and squares, whose roots are
numbers that code has in it."""
SIDES = (1.0, 1.5, 2.0, 2.5)
"""At these, the sides of a photo as shares of the model's own, where a run may choose them: none leaves a map of one
cell, in which no axis can be told from another."""
MAX_UNEXPLAINED_SHARE = 0.01
"""Share of lines that may differ for no reason that is listed."""
IN_A_LIST = "B is how many photos forward goes through, one by one, and no size of a tensor"
"""Why a model that takes a list of photos is run with one, and at other sides where it is built for them."""


class Reason(NamedTuple):
    """Reason why lines of a model differ between sizes: a pattern of the message of such a line."""

    model: str
    pattern: str
    why: str


REASONS = (
    Reason(
        "hf:time_series_transformer",
        r"^B = 2 and B = 1: .*scaler",
        "At B = 1 two axes have one place, so the line says by its number which of them is summed over.",
    ),
    Reason(
        "torchvision:ssdlite320_mobilenet_v3_large",
        "It holds at the sizes of this run: ",
        "How many boxes there are is a sum over six maps that has no symbol, and the lines say so.",
    ),
)

Line = tuple[str, str, tuple[str, ...], str]
HELD_REASONS = (
    Reason(
        "torchvision:swin_t",
        "",
        "At another side its code takes another way: it pads a map that 7 does not divide, and shifts no windows where"
        " one covers the map.",
    ),
)
"""Models that are compared at one side of a photo, their own: at others forward runs other ops."""


class TextbookComparison(NamedTuple):
    """Outcome of one model: its number of lines, the number of sizes at which it ran, the lines that differ between
    them without a listed reason, the seconds, the reason why it could not be compared, or "", and the reasons of the
    other differing lines, each once."""

    name: str
    lines: int = 0
    runs: int = 0
    differing: tuple[str, ...] = ()
    seconds: float = 0.0
    reason: str = ""
    reasons: tuple[Reason, ...] = ()


def lines_of(trace: Trace) -> list[Line]:
    """Return the printed parts of each step: its title, equation, symbolic shape and note."""
    return [(step.title, step.latex, step.symbolic, step.note) for step in trace.steps]


def compare(name: str) -> TextbookComparison:
    """Derive the textbook of a model anew at each of the sizes, and compare them line by line."""
    began, textbooks, failed = time.perf_counter(), {}, ""
    for number in range(len(SIZES)):
        try:
            label, lines = _textbook(name, number)
        except Exception as error:  # whatever a library says of its own model at that size
            failed = failed or reason(error)
            continue
        textbooks.setdefault(label, lines)
        if not label:
            failed = failed or IN_A_LIST
            break
    seconds = time.perf_counter() - began
    if len(textbooks) < 2:
        return TextbookComparison(name, reason=failed or "it runs at one size alone", seconds=seconds)
    (first, reference), *others = textbooks.items()
    differing: dict[int, str] = {}
    for label, lines in others:
        for place, difference in _differences(reference, lines):
            differing.setdefault(place, f"{first} and {label}: {difference}")
    left, known = sorted_out(name, differing.values())
    known += tuple(held_out for held_out in HELD_REASONS if held_out.model == name and another_way(small(name)))
    return TextbookComparison(name, len(reference), len(textbooks), left, seconds, reasons=known)


def sorted_out(name: str, differing: Iterable[str]) -> tuple[tuple[str, ...], tuple[Reason, ...]]:
    """Return the messages of lines that differ without a reason, and the reasons of the others."""
    left, known = [], []
    own = [entry for entry in REASONS if entry.model == name]
    for difference in differing:
        reasons = [entry for entry in own if re.search(entry.pattern, difference)]
        known += reasons[:1]
        left += [] if reasons else [difference]
    return tuple(left), tuple(known)


def another_way(model: Model) -> bool:
    """Return whether forward runs other ops at another side of a photo than at the model's own."""
    names = []
    for share in SIDES[:2]:
        sides: dict[str, Any] = {side: round(size * share) for side, size in _own_sides(model).items()}
        inputs = model.inputs(**sides)
        with torch.no_grad():
            names.append([op.name for op in record(model.net, tuple(inputs), inputs.named, cap=0).ops])
    return names[0] != names[1]


def _own_sides(model: Model) -> dict[str, int]:
    """Return height and width of the model's photo if a run may choose them."""
    own = model.inputs().sizes
    return {side: own[side] for side in ("H", "W") if side in own and side in model.spec.runs}


def _textbook(name: str, number: int) -> tuple[str, list[Line]]:
    """Return the textbook of a model at one of the sizes, derived from that run alone, and the sizes in words."""
    model = small(name)
    at = _sizes(model, number)
    if own := {symbol: size for symbol, size in at.items() if symbol not in model.spec.runs}:
        model = tracer.load(name, **{**model.sizes, **own})
    perturb_parameters(model.net)
    chosen = {symbol: size for symbol, size in at.items() if symbol not in own}
    try:
        trace = _trace(model, chosen)
    except Exception:  # a length that the model does not take
        at = {"B": at.get("B", 1)}
        trace = _trace(model, at)
    return ", ".join(f"{symbol} = {size}" for symbol, size in at.items()), lines_of(trace)


def _trace(model: Model, at: dict[str, int]) -> Trace:
    with torch.no_grad():
        return seeded_run(model.trace, keep=KEPT_BYTES, prove=PROVE_LATER, **at)


def _sizes(model: Model, number: int) -> dict[str, Any]:
    """Return those of `SIZES` and `SIDES` that an input of the model decides; for a list of photos, the sides that it
    is built for."""
    (batch, length), own = SIZES[number], model.inputs().sizes
    if len(tree_leaves(tuple(model.inputs(B=2)))) > len(tree_leaves(tuple(model.inputs(B=1)))):
        return {side: round(model.sizes[side] * SIDES[number]) for side in ("H", "W") if side in model.sizes}
    sizes = {"B": batch, "T": length, "T_d": length}
    if not any(held_out.model == model.name for held_out in HELD_REASONS):
        sizes |= {side: round(size * SIDES[number]) for side, size in _own_sides(model).items()}
    return {symbol: sizes[symbol] for symbol in model.spec.runs if symbol in sizes and symbol in own}


def _differences(ours: list[Line], theirs: list[Line]) -> Iterator[tuple[int, str]]:
    """Yield the lines of one textbook that another one lacks, each by its position, and the other's line there."""
    matcher = SequenceMatcher(a=ours, b=theirs, autojunk=False)
    for kind, start, stop, begin, end in matcher.get_opcodes():
        if kind == "equal":
            continue
        for i, (left, right) in enumerate(zip_longest(ours[start:stop], theirs[begin:end])):
            parts = zip_longest(left or (), right or ())
            pairs_text = [f"{quote(a)} / {quote(b)}" for a, b in parts if a != b] if left and right else []
            whole = left or right
            yield (
                start + i if left else len(ours) + begin + i,
                "; ".join(pairs_text) or f"only {'there' if right else 'here'}: {whole[1]}",
            )


def report_line(comparison: TextbookComparison) -> str:
    """Format one model as one line, with the lines that differ below it."""
    if comparison.reason:
        return f"{comparison.name}: {comparison.reason}"
    text = f"{comparison.name}: {len(comparison.differing)} of {comparison.lines} lines differ"
    text += f" at {comparison.runs} sizes, {comparison.seconds:.0f} s"
    return "\n    ".join([text, *comparison.differing])


def stale(comparisons: list[TextbookComparison]) -> list[Reason]:
    """Return the listed reasons that no line of their models has any more."""
    ran = {entry.name for entry in comparisons if not entry.reason}
    had = {known for entry in comparisons for known in entry.reasons}
    return [entry for entry in (*REASONS, *HELD_REASONS) if entry.model in ran and entry not in had]


def summary(comparisons: list[TextbookComparison]) -> tuple[list[str], bool]:
    """Return the share of lines that differ without a listed reason, the reasons of the others, and whether that is
    within the bar; a listed reason that no line has any more is not."""
    ran = [comparison for comparison in comparisons if not comparison.reason]
    total, differing = sum(comparison.lines for comparison in ran), sum(len(comparison.differing) for comparison in ran)
    share, old = differing / total if total else 1.0, stale(comparisons)
    text = f"{differing:,} of {total:,} lines of {len(ran)} of {len(comparisons)} models differ at other sizes"
    lines = [f"{text}: {share:.2%} (expected {MAX_UNEXPLAINED_SHARE:.0%} at most)"]
    for known, count in Counter(known for comparison in ran for known in comparison.reasons).items():
        what = "compared at its own side alone" if known in HELD_REASONS else f"{count} more, for a reason"
        lines.append(f"{known.model}: {what}: {known.why}")
    lines += [f"{entry.name}: not compared: {entry.reason}" for entry in comparisons if entry.reason]
    lines += [f"{entry.model}: stale reason, no line differs so: {entry.why}" for entry in old]
    return lines, share <= MAX_UNEXPLAINED_SHARE and not old
