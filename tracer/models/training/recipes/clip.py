"""Training of the shipped CLIP: drawn scenes against their captions, some pairs of colour and shape held out."""

from dataclasses import dataclass, field
from itertools import product
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tracer.inputs.synthetic import COLOURS, SHAPES, SIZES, VOCABULARY, Scenes
from tracer.models.clip import SPEC
from tracer.models.training import data as scenes
from tracer.models.training.train_loop import SceneRecipe
from tracer.spec.preparation import encode_sentences
from tracer.spec.spec import Spec

PAIRS = tuple(f"a {colour} {shape}" for colour, shape in product(COLOURS, SHAPES))
"""A sentence for every pair of colour and shape."""


def held_out(colour: Any, shape: Any) -> Any:
    """Return whether a pair, by the numbers of its words, is never drawn in training: one for each colour."""
    return shape == colour % len(SHAPES)


@dataclass(frozen=True)
class Unseen:
    """Test data: single objects of pairs `new` and `known` to training, and scenes of `two` objects."""

    new: Scenes
    known: Scenes
    two: Scenes


@dataclass(frozen=True)
class Recipe(SceneRecipe):
    """Settings of a run; `train("clip", batch=32)` changes one of them.

    A pass (epoch) has `count` scenes, all new; `tests` unseen scenes of each kind are scored. `matrix_rate` and `rate`
    are the full learning rates of the matrices in the blocks and of all else, `decay` the weight decay, `warmup` is
    in steps.
    """

    spec: ClassVar[Spec] = SPEC

    sizes: dict[str, int] = field(default_factory=lambda: dict(SPEC.sizes))
    epochs: int = 18
    tests: int = 300
    bf16: bool = False

    def __post_init__(self):
        super().__post_init__()
        if self.sizes["V"] != len(VOCABULARY):
            raise ValueError(f"V={self.sizes['V']}: captions of scenes have V = {len(VOCABULARY)} words")

    def unseen(self, part: str) -> Unseen:
        """Return scenes of one object, of pairs new to training or not, and of two."""
        return Unseen(
            new=scenes.held_out(self.tests, part, salt=1, counts=(1,), allowed=held_out),
            known=scenes.held_out(self.tests, part, salt=2, counts=(1,), allowed=in_training),
            two=scenes.held_out(self.tests, part, salt=3, counts=(2,), allowed=in_training),
        )

    def initialise(self, net: nn.Module) -> None:
        """Start positions of patches as sinusoids."""
        net.image.position[1:] = self.grid_positions()

    def batch_of(self, data: scenes.SceneStream, chosen: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Return new scenes of one or (a third) two objects, `[B, C, H, W]`, captions `[K, T]`, and pairs, `[B]`.

        Every second batch leaves out the words for sizes. Equal captions are one.
        """
        batch = scenes.draw(generator, len(chosen), counts=(1, 1, 2), allowed=in_training)
        captions = batch.captions()
        if torch.randint(2, (), generator=generator):
            captions = [without_sizes(caption) for caption in captions]
        sentences = list(dict.fromkeys(captions))
        own = torch.tensor([sentences.index(caption) for caption in captions])
        return scenes.pixels(batch), encode_sentences(sentences, VOCABULARY), own

    def loss(self, net: nn.Module, batch: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return symmetric cross-entropy (Radford et al. 2021, figure 3), and the share of correctly matched scenes."""
        pixels, tokens, own = batch
        logits = net(pixels, tokens).float()
        fits = F.one_hot(own, len(tokens)).float()  # [B, K]
        of_image = F.cross_entropy(logits, own)
        of_text = F.cross_entropy(logits.T, (fits / fits.sum(dim=0)).T)
        return (of_image + of_text) / 2, (logits.argmax(dim=-1) == own).float().mean()

    @torch.inference_mode()
    def score(self, net: nn.Module, data: Unseen) -> dict:
        """Return shares, 0 to 1, of scenes with the correct sentence.

        They are of single objects among all pairs, pairs in training and not; and of scenes of two objects, whose
        caption competes with itself with the colours exchanged.
        """
        differ = np.flatnonzero(data.two.colour[:, 0] != data.two.colour[:, 1])
        pixels, right = scenes.pixels(data.two), 0
        for index in differ.tolist():
            scene = data.two[index]
            first, second = (thing.colour for thing in scene.things)
            swapped = scene.but(0, colour=second).but(1, colour=first)
            tokens = encode_sentences([scene.caption, swapped.caption], VOCABULARY)
            right += net(pixels[index : index + 1], tokens)[0].argmax().item() == 0
        return {
            "accuracy_unseen_pairs": among_pairs(net, data.new),
            "accuracy_seen_pairs": among_pairs(net, data.known),
            "accuracy_colours_exchanged": round(right / len(differ), 6),
            "scenes": len(data.new) + len(data.known) + len(differ),
        }

    def rank(self, figures: dict) -> float:
        """Return the figure by which weights are chosen, higher is better."""
        return figures["accuracy_unseen_pairs"]

    def card(self, data: scenes.SceneStream) -> dict:
        """Return the card's facts on the training scenes and on the input, beside sizes, steps and figures."""
        numbers = product(range(len(COLOURS)), range(len(SHAPES)))
        missing = [pair for pair, (colour, shape) in zip(PAIRS, numbers, strict=True) if held_out(colour, shape)]
        return {
            "vocabulary": list(VOCABULARY),
            **scenes.SCENE_CARD,
            "resize": "centre crop to a square, then 64×64 by bicubic; pixels from 0 to 1, less the mean, over the std",
            "data": f"drawn scenes of one or two objects with captions, {len(data):,} new ones in each epoch",
            "never_drawn": missing,
            "measure": f"single objects among all {len(PAIRS)} sentences 'a COLOUR SHAPE'; two objects: the caption "
            "against itself with the colours exchanged",
            "says": "Of objects whose colour and shape it never saw together, it gives {accuracy_unseen_pairs} the "
            "right one of 30 sentences; of objects whose pair it knows, {accuracy_seen_pairs}.",
            "licence": "weights made by this repository, under its licence",
        }


def in_training(colour: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """Return whether training draws a pair."""
    return ~held_out(colour, shape)


def without_sizes(caption: str) -> str:
    """Return a caption without its words for sizes."""
    return " ".join(word for word in caption.split() if word not in SIZES)


def among_pairs(net: nn.Module, pairs: Scenes) -> float:
    """Return the share of single objects for which their own pair fits best among all."""
    own = torch.from_numpy(pairs.colour[:, 0] * len(SHAPES) + pairs.shape[:, 0])
    tokens = encode_sentences(PAIRS, VOCABULARY)
    best = torch.cat([net(pixels, tokens).argmax(dim=-1) for pixels in scenes.pixels(pairs).split(100)])
    return round((best == own).float().mean().item(), 6)
