"""Training of the shipped vit-text: the captions of drawn scenes, word by word."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tracer.inputs.synthetic import MAX_SHAPES, MAX_WORDS, VOCABULARY, Scenes
from tracer.models.training import data as scenes
from tracer.models.training.data import IGNORE_INDEX, captions
from tracer.models.training.evaluation import pointing
from tracer.models.training.train_loop import SceneRecipe
from tracer.models.vit_text import SPEC
from tracer.spec.spec import Spec

NAMES = ("one object", "two objects", "three objects")


@dataclass(frozen=True)
class Recipe(SceneRecipe):
    """Settings of a run; `train("vit-text", batch=32)` changes one of them.

    A pass (epoch) has `count` scenes, all new; `tests` unseen scenes of one, of two and of three objects are scored.
    `matrix_rate` and `rate` are the full learning rates of the matrices in the blocks and of all else, `decay` the
    weight decay, `warmup` is in steps; `mask`, `tied`, `types` and `bias` are the model's options.
    """

    spec: ClassVar[Spec] = SPEC

    sizes: dict[str, int] = field(default_factory=lambda: dict(SPEC.sizes))
    epochs: int = 33
    mask: str = "causal"
    tied: bool = True
    types: bool = False
    bias: bool = True
    bf16: bool = True

    def __post_init__(self):
        super().__post_init__()
        least = {"V": len(VOCABULARY), "T_max": MAX_WORDS + 1}
        if any(self.sizes[name] < number for name, number in least.items()):
            sizes = {name: self.sizes[name] for name in least}
            raise ValueError(f"sizes {sizes}: captions of scenes need at least {least}")

    def unseen(self, part: str) -> list[Scenes]:
        """Return scenes of one, of two and of three objects."""
        return [scenes.held_out(self.tests, part, salt=number, counts=(number,)) for number in range(1, MAX_SHAPES + 1)]

    def initialise(self, net: nn.Module) -> None:
        """Start positions of patches as sinusoids."""
        net.image_positions.copy_(self.grid_positions())

    def batch_of(self, data: scenes.SceneStream, chosen: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Return new scenes, float `[B, C, H, W]`, their captions `[B, T]`, and the words to predict, `[B, T]`."""
        batch = scenes.draw(generator, len(chosen))
        return scenes.pixels(batch), *captions(batch)

    def loss(self, net: nn.Module, batch: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return cross-entropy of every next word, and the share of captions that are right from end to end."""
        pixels, tokens, targets = batch
        logits = net(pixels, tokens).float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten()), exact(logits, targets).float().mean()

    @torch.inference_mode()
    def score(self, net: nn.Module, batches: list[Scenes]) -> dict:
        """Return the share of exact greedy captions by number of objects, and that of attention on the named object.

        For the latter see `pointing`. A greedy caption is right just if, after each true beginning, the best word is
        the true one: so one forward with the true words decides it.
        """
        shares = []
        for some in batches:
            right = 0
            for first in range(0, len(some), 100):
                part = some[first : first + 100]
                tokens, targets = captions(part)
                right += exact(net(scenes.pixels(part), tokens), targets).sum().item()
            shares.append(right / len(some))
        figures = {"one or two objects": round(sum(shares[:2]) / 2, 6)}
        figures |= {name: round(share, 6) for name, share in zip(NAMES, shares, strict=True)}
        return figures | {"scenes": sum(map(len, batches))} | pointing(net, batches[:2])

    def rank(self, figures: dict) -> tuple[float, float]:
        """Return the figures by which weights are chosen, higher is better: one or two objects, then three."""
        return figures["one or two objects"], figures[NAMES[-1]]

    def card(self, data: scenes.SceneStream) -> dict:
        """Return the card's facts on the training scenes and on the input, beside sizes, steps and figures."""
        return {
            "options": self.options,
            "vocabulary": list(VOCABULARY),
            **scenes.SCENE_CARD,
            "data": f"drawn scenes and their captions, {len(data):,} new ones in each epoch",
            "says": "On {scenes} drawn scenes that it never saw, its caption is right for {one object} of those with"
            " one object, {two objects} with two and {three objects} with three.",
            "licence": "weights made by this repository from its own drawings, under its licence",
        }


def exact(logits: Tensor, targets: Tensor) -> Tensor:
    """Return whether each caption is right from end to end, bool `[B]`."""
    return ((logits.argmax(dim=-1) == targets) | (targets == IGNORE_INDEX)).all(dim=1)
