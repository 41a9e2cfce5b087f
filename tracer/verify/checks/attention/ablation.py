"""Words of a text with the picture masked in some blocks: the net itself, its blocks masked by hooks."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tracer.attention.masks import close_picture
from tracer.verify.checks.reference_run import PlainRun, array, softmax


def problems(run: PlainRun) -> Iterator[str]:
    """Compare the probability of each word, with no block, the first block and all blocks closed."""
    if not getattr(run.model.spec, "whole", False) or ":" in run.model.name:
        return
    segments = {segment.name: segment for segment in run.inputs.segments}
    if not {"image", "text"} <= segments.keys() or any(segment.part for segment in run.inputs.segments):
        return
    image, text = segments["image"], segments["text"]
    blocks = [name for name, _ in run.model.net.named_children() if name.startswith("block")]
    shares = softmax(array(run.output[0]))  # [T, V]
    words = [*run.inputs[1][0, 1:].tolist(), int(shares[-1].argmax())]
    for layers in ((), (0,), tuple(range(len(blocks)))):
        shown = close_picture(run.model, run.inputs, layers)
        recomputed = softmax(array(_run_masked(run, [blocks[layer] for layer in layers], image, text)[0]))
        for name, expected, best in (("open", shares, shown.best), ("closed", recomputed, shown.instead)):
            row = [expected[place, word] for place, word in enumerate(words)]
            if (
                len(row) != len(getattr(shown, name))
                or not abs(array(torch.tensor(getattr(shown, name))) - row).max() <= 1e-5
            ):
                yield f"with the blocks {layers} closed, the words are said to have the shares {getattr(shown, name)}"
            likely = [expected[place].argmax() for place in range(len(words))]
            same = [[likely[i] == likely[j] for j in range(len(words))] for i in range(len(words))]
            if same != [[a == b for b in best] for a in best]:
                yield f"with the blocks {layers} closed, the likeliest words are said to be {best}"
        if shown.words[:-1] != tuple(run.inputs.words[1:]) or shown.words[-1] != shown.best[-1]:
            yield f"the words that follow are said to be {shown.words}"


def _run_masked(run: PlainRun, blocks: list[str], image, text) -> torch.Tensor:
    """Return the net's output if these blocks don't let words attend to the picture."""

    def close(module, args):
        mask = args[1].clone() if len(args) > 1 and args[1] is not None else torch.zeros(text.stop, text.stop)
        mask[text.start :, image.start : image.stop] = float("-inf")
        return args[0], mask

    hooks = [run.model.net.get_submodule(name).register_forward_pre_hook(close) for name in blocks]
    try:
        with torch.no_grad():
            return run.model.net(*run.inputs)
    finally:
        for hook in hooks:
            hook.remove()
