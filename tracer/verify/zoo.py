"""Derived textbooks of many models: small ones, of all kinds, with weights that nobody trained.

Every parameter is moved away from 0 and 1, since a proof on a bias of zeros or a gain of ones says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch

import tracer
from tracer import sources
from tracer.derive import KERNEL
from tracer.probe import UNKNOWN
from tracer.sources.network import reason
from tracer.symbols.categories import is_layout
from tracer.tracing import AT_HAND

FAMILIES = """gpt2 llama mistral qwen2 qwen3 gemma gemma2 phi phi3 falcon bloom mpt opt gpt_neox gptj codegen stablelm
olmo cohere mamba falcon_mamba mixtral qwen2_moe deepseek_v3 bert roberta albert electra distilbert
deberta-v2 xlnet mpnet t5 bart pegasus marian vit deit beit dinov2 swin convnext resnet segformer vit_mae videomae
timesformer clip siglip blip llava paligemma fuyu whisper wav2vec2 hubert speech_to_text detr
time_series_transformer""".split()
"""Families of transformers, each in a small configuration."""

NAMES = (
    *(f"hf:{family}" for family in FAMILIES),
    *(f"timm:{name}" for name in "vit_tiny_patch16_224 deit3_small_patch16_224 eva02_tiny_patch14_224".split()),
    *(f"timm:{name}" for name in "cait_xxs24_224 xcit_nano_12_p16_224 swin_tiny_patch4_window7_224".split()),
    *(f"timm:{name}" for name in "mixer_s32_224 coatnet_nano_rw_224 convnext_atto pit_ti_224 poolformer_s12".split()),
    *(f"torchvision:{name}" for name in "vit_b_32 swin_t resnet18 convnext_tiny efficientnet_b0".split()),
    *(f"torchvision:{name}" for name in "mobilenet_v3_small densenet121 deeplabv3_mobilenet_v3_large".split()),
    *(f"torchvision:{name}" for name in "r3d_18 mvit_v1_b ssdlite320_mobilenet_v3_large".split()),
)
"""What the command runs: attention, convolution, state spaces, experts, two stacks, pictures with text, sound, video,
time series, boxes."""

MOVED = 0.05
"""How far parameters are moved, as a standard deviation."""


class Book(NamedTuple):
    """What came of one model: computing ops and those of them in a step, steps and those proven, those that run
    PyTorch's own kernel, sizes and those with a symbol, the largest error, and why it failed, or ""."""

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
    reason: str = ""


def moved(net: torch.nn.Module) -> None:
    """Moves all parameters, and the running variances of norms, by seeded random numbers."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.is_floating_point():
                parameter += MOVED * torch.randn(parameter.shape, generator=draw).to(parameter.dtype)
        for name, buffer in net.named_buffers():
            if name.endswith("running_var"):
                buffer += torch.rand(buffer.shape, generator=draw).to(buffer.dtype)


def book(name: str) -> Book:
    """Derives and proves the textbook of one model."""
    try:
        model = tracer.load(name, **(sources.tiny(name) if name in sources.examples() else {}))
        moved(model.net)
        trace = model.trace(keep=AT_HAND)
    except Exception as error:  # whatever a library says of its own model
        return Book(name, reason=reason(error))
    computing = [op for op in trace.ops if not is_layout(op.op)]
    shown = [step for step in trace.steps if not step.recomputed]
    unproven = [f"{step.id}: {step.note or step.error}" for step in shown if step.verdict != "proven"]
    sizes = [size for op in trace.ops for one in (*op.inputs, *op.outputs) for size in one.symbolic or ()]
    return Book(
        name,
        len(computing),
        sum(op.step is not None for op in computing),
        len(shown),
        len(shown) - len(unproven),
        sum(KERNEL in step.note for step in shown),
        len(sizes),
        sum(size != UNKNOWN for size in sizes),
        max((step.error for step in shown if step.error is not None), default=0.0),
        tuple(unproven),
    )


def books(names: Iterable[str]) -> Iterator[Book]:
    """The books of these models, one after the other."""
    yield from map(book, names)


def line(found: Book) -> str:
    """One model in one line, and what is not proven below it."""
    if found.reason:
        return f"{found.name}: {found.reason}"
    said = (
        f"{found.name}: {found.proven} of {found.steps} steps proven, {found.covered} of {found.computing} ops in"
        f" steps, {found.kernels} by kernel, {found.solved} of {found.sizes} sizes in symbols, error {found.error:.1e}"
    )
    return "\n".join([said, *(f"    {one}" for one in found.unproven)])


def summary(found: list[Book]) -> tuple[list[str], bool]:
    """The figures of all models, and whether they are within the bars."""
    ran = [one for one in found if not one.reason]

    def share(part: str, whole: str) -> float:
        total = sum(getattr(one, whole) for one in ran)
        return sum(getattr(one, part) for one in ran) / total if total else 1.0

    bars = [
        ("ops in steps", share("covered", "computing"), 0.99, 1.0),
        ("steps proven", share("proven", "steps"), 1.0, 1.0),
        ("steps by kernel", share("kernels", "steps"), 0.0, 0.05),
        ("sizes in symbols", share("solved", "sizes"), 0.95, 1.0),
    ]
    said = [f"{len(ran)} of {len(found)} models"]
    said += [f"{name}: {value:.1%} (expected {low:.0%} to {high:.0%})" for name, value, low, high in bars]
    return said, len(ran) == len(found) and all(low <= value <= high for _, value, low, high in bars)
