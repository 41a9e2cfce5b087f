"""Training of the shipped segmenter: cross-entropy on the pixel classes of drawn scenes."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tracer.inputs.synthetic import CLASSES, Scenes
from tracer.models.segmenter import SPEC
from tracer.models.training import data as scenes
from tracer.models.training.train_loop import SceneRecipe
from tracer.spec.spec import Spec


@dataclass(frozen=True)
class Recipe(SceneRecipe):
    """Settings of a run; `train("segmenter", batch=32)` changes one of them.

    A pass (epoch) has `count` scenes, all new; `tests` unseen scenes are scored. `matrix_rate` and `rate` are the
    full learning rates of the matrices in the blocks and of all else, `decay` the weight decay, `warmup` is in steps.
    """

    spec: ClassVar[Spec] = SPEC

    sizes: dict[str, int] = field(default_factory=lambda: dict(SPEC.sizes))
    epochs: int = 9
    warmup: int = 50
    bf16: bool = True

    def __post_init__(self):
        super().__post_init__()
        if self.sizes["K"] != len(CLASSES):
            raise ValueError(f"K={self.sizes['K']}: pixels of scenes have K = {len(CLASSES)} classes")

    def unseen(self, part: str) -> Scenes:
        """Return scenes of any number of objects."""
        return scenes.held_out(self.tests, part)

    def initialise(self, net: nn.Module) -> None:
        """Start positions of patches as sinusoids."""
        net.position[1:] = self.grid_positions()

    def batch_of(self, data: scenes.SceneStream, chosen: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return new scenes, float `[B, C, H, W]`, and the class of every pixel, int64 `[B, H, W]`."""
        batch = scenes.draw(generator, len(chosen))
        return scenes.pixels(batch), torch.from_numpy(batch.classes()).long()

    def loss(self, net: nn.Module, batch: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return cross-entropy over all pixels, and the share of correct pixels on shapes."""
        pixels, labels = batch
        logits = net(pixels).float()
        there = labels > 0
        right = (logits.argmax(dim=-1) == labels)[there].float().mean()
        return F.cross_entropy(logits.flatten(0, 2), labels.flatten()), right

    @torch.inference_mode()
    def score(self, net: nn.Module, batch: Scenes) -> dict:
        """Return intersection over union, 0 to 1, of each class over all pixels of the scenes, and the mean."""
        pixels, labels = scenes.pixels(batch), torch.from_numpy(batch.classes()).long()
        pairs = torch.zeros(len(CLASSES) ** 2, dtype=torch.long)
        for some, true in zip(pixels.split(100), labels.split(100), strict=True):
            predicted = net(some).argmax(dim=-1)
            pairs += (true * len(CLASSES) + predicted).flatten().bincount(minlength=len(pairs))
        table = pairs.view(len(CLASSES), -1).double()
        both = table.diagonal()
        shares = both / (table.sum(0) + table.sum(1) - both).clamp(min=1)
        by_class = {name: round(share, 4) for name, share in zip(CLASSES, shares.tolist(), strict=True)}
        return {"iou": round(shares.mean().item(), 6), "iou by class": by_class, "scenes": len(batch)}

    def rank(self, figures: dict) -> float:
        """Return the figure by which weights are chosen, higher is better."""
        return figures["iou"]

    def card(self, data: scenes.SceneStream) -> dict:
        """Return the card's facts on the training scenes and on the input, beside sizes, steps and figures."""
        return {
            "classes": list(CLASSES),
            **scenes.SCENE_CARD,
            "data": f"drawn scenes, {len(data):,} new ones in each epoch",
            "says": "On {scenes} drawn scenes that it never saw, the overlap of the predicted and the true area is "
            "{iou} of their union (mean over the classes).",
            "licence": "weights made by this repository from its own drawings, under its licence",
        }
