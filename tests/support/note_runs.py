"""Small runs of the notes' statements, cached for all tests, and torchvision's whole model."""

from functools import cache

import torch

import tracer
from tracer import models
from tracer.inputs.model_inputs import samples
from tracer.lessons.notes.measurement import RUNS, ModelRun, provider, small
from tracer.lessons.notes.torchvision_block_counts import block
from tracer.tracing import counterfactual
from tracer.zoo.torchvision_models import import_torchvision


def _provide_run(name):
    """Return a model and its run: the small one of the notes, else the shipped one."""
    if name in RUNS:
        return small(name)
    model = tracer.load(name)
    return model, model.trace(prove=False)


run = provider(_provide_run)


def at_hand(name: str) -> ModelRun:
    """Return the app's run: of the shipped model on its first sample, or the small one."""
    run = RUNS[name]
    if not run.shipped:
        return small(name)
    model = tracer.load(run.model, **dict(run.options))
    opened = next(iter(samples(models.samples(run.model)).values()), None)
    return model, counterfactual.check(model.trace(**({"image": opened()} if opened else {})))


@cache
def whole():
    """Return the ops of torchvision's whole vit_b_16 at batch 2, with the module that each ran in."""
    net = import_torchvision().models.vit_b_16(weights=None).eval()
    with torch.no_grad():
        return tracer.trace(net, torch.randn(2, 3, 224, 224), prove=False).ops


def same_blocks() -> bool:
    """Return whether the model has 12 blocks, which all run the ops of the one that the rows are looked up in."""

    def outline(ops):
        return [(op.op, [x.shape for x in op.inputs], [x.shape for x in op.outputs]) for op in ops]

    one = outline(block(run("torchvision")[1].ops))
    blocks = [outline(block(whole(), layer)) for layer in range(13)]
    return blocks == [one] * 12 + [[]]
