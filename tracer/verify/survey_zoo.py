"""Derived textbooks of many models: small ones, of all kinds, with untrained weights.

Every parameter is moved away from 0 and 1, since a proof on a bias of zeros or a gain of ones says nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch

from tracer.capture.tensors.pytree import same_outputs
from tracer.diagnostics.findings import as_text
from tracer.export.to_html import equation
from tracer.ops import is_layout
from tracer.record import Trace
from tracer.shapes import UNKNOWN
from tracer.textbook.derivation import KERNEL
from tracer.utils.error_text import reason
from tracer.verify import seeded_run, small
from tracer.verify.checks.outputs.returned_tensors import find_unaccounted
from tracer.verify.checks.reference_run import Transparent

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
    proven steps, and those that run PyTorch's own kernel, sizes that are not the same at all probes and those of them
    with a symbol, the largest error, lines that can be set, whether the output was that of the untraced run and nothing
    of the model was changed, the seconds, and the reason of a failure, or "". `findings` are those that nobody
    acknowledged, `intents` counts the others."""

    name: str
    computing: int = 0
    covered: int = 0
    steps: int = 0
    proven: int = 0
    kernels: int = 0
    sizes: int = 0
    solved: int = 0
    error: float = 0.0
    unproven: tuple[str, ...] = ()
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
    unproven = [f"{step.id}: {step.replayed or step.note or step.error}" for step in shown if step.verdict != "proven"]
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
        len(shown) - len(unproven),
        sum(KERNEL in step.note for step in shown),
        len(changing),
        sum(size != UNKNOWN for size in changing),
        max((step.error for step in shown if step.error is not None), default=0.0),
        (*unproven, *missing),
        sum(equation(step.latex).startswith("<math") for step in shown),
        same_outputs(trace.output, plain) and all(torch.equal(after[key], value) for key, value in before.items()),
        time.perf_counter() - began,
        unseen=sum(len(step.unseen) for step in shown),
        findings=findings,
        intents=len(trace.acknowledged_findings),
    )


def changing_sizes(trace: Trace) -> list[str]:
    """Return the sizes that are not known to be the same at all probes: formulas, and `UNKNOWN` if there is none."""
    tensors = [tensor for op in trace.ops for tensor in (*op.inputs, *op.outputs)]
    sizes = [size for tensor in tensors for size in tensor.symbolic or (UNKNOWN,) * len(tensor.shape)]
    return [size for size in sizes if not size.isdecimal()]


def books(names: Iterable[str]) -> Iterator[ModelOutcome]:
    """Yield the books of these models, in order."""
    yield from map(book, names)


def line(outcome: ModelOutcome) -> str:
    """Format one model as one line, with what is not proven below it."""
    if outcome.reason:
        return f"{outcome.name}: {outcome.reason}"
    text = (
        f"{outcome.name}: {outcome.proven} of {outcome.steps} steps proven, "
        f"{outcome.covered} of {outcome.computing} ops in steps, {outcome.kernels} by kernel, "
        f"{outcome.solved} of {outcome.sizes} sizes in symbols, error {outcome.error:.1e}, "
        f"{outcome.unseen} operands unseen, {len(outcome.findings)} findings and {outcome.intents} on purpose,"
        f" {outcome.seconds:.0f} s" + ("" if outcome.unchanged else ", output or model CHANGED")
    )
    return "\n".join([text, *(f"    {problem}" for problem in (*outcome.unproven, *outcome.findings))])


BARS = {
    "ops in steps": ("covered", "computing", 0.99, 1.0),
    "steps proven": ("proven", "steps", 1.0, 1.0),
    "lines that can be set": ("drawn", "steps", 1.0, 1.0),
    "steps by kernel": ("kernels", "steps", 0.0, 0.05),
    "sizes in symbols": ("solved", "sizes", 0.95, 1.0),
}
"""Shares that are expected, each as a part, its whole, and from where to where."""


def _share(outcomes: Iterable[ModelOutcome], part: str, whole: str) -> float:
    outcomes = list(outcomes)
    total = sum(getattr(outcome, whole) for outcome in outcomes)
    return sum(getattr(outcome, part) for outcome in outcomes) / total if total else 1.0


def summary(outcomes: list[ModelOutcome]) -> tuple[list[str], bool]:
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
