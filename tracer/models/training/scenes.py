"""Drawn scenes as training data, generated anew for every step."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tracer.inputs.synthetic import scenes
from tracer.inputs.synthetic.scenes import VOCABULARY, Scenes
from tracer.inputs.tokenizers import Words
from tracer.models.shared.preparation.captioning_inputs import BEGIN, END

SEEDS = {"validation": 2**40, "test": 2**41}
"""The seeds of scenes that are held out; steps of training draw theirs from 31 bits."""

IGNORE_INDEX = -100
"""The target where there is no word to predict; cross-entropy leaves it out."""
MEAN, STD = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class SceneStream:
    """Number of scenes of one pass over the data; each step draws its own."""

    number: int

    def __len__(self) -> int:
        return self.number


def draw(generator: torch.Generator, number: int, **choice) -> Scenes:
    """Return `number` new scenes, fixed by the generator; `choice` as for `tracer.inputs.synthetic.scenes.draw`."""
    seed = torch.randint(2**31, (), generator=generator).item()
    return scenes.draw(np.random.default_rng(seed), number, **choice)


def held_out(number: int, part: str, *, salt: int = 0, **choice) -> Scenes:
    """Return the scenes of a part, "validation" or "test", the same each time; training draws none of them."""
    return scenes.draw(np.random.default_rng((SEEDS[part], salt)), number, **choice)


def pixels(scenes: Scenes) -> Tensor:
    """Return the pictures as models take them: float32 `[B, 3, 64, 64]`, normalised by `MEAN` and `STD`."""
    values = torch.from_numpy(scenes.pixels()).permute(0, 3, 1, 2).float() / 255
    return (values - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]


def check_sizes(sizes: dict[str, int], expected: dict[str, int]) -> None:
    """Raise ValueError unless `sizes` has the keys of `expected`, and takes scenes: 64×64 pixels in colour."""
    if sizes.keys() != expected.keys():
        raise ValueError(f"sizes {', '.join(sizes)}: expected {', '.join(expected)}")
    sides = {name: sizes[name] for name in "HWC"}
    if sides != {"H": scenes.SIDE, "W": scenes.SIDE, "C": 3}:
        raise ValueError(f"sizes {sides}: scenes are drawn with H = W = {scenes.SIDE} and C = 3")


def captions(scenes: Scenes) -> tuple[Tensor, Tensor]:
    """Return the input tokens, `[B, T]`, and the target after each, `[B, T]`; T fits the longest caption."""
    known = Words(VOCABULARY)
    rows = [known.encode(caption) for caption in scenes.captions()]
    T = max(map(len, rows)) + 1
    tokens = [[BEGIN, *row] + [END] * (T - 1 - len(row)) for row in rows]
    targets = [[*row, END] + [IGNORE_INDEX] * (T - 1 - len(row)) for row in rows]
    return torch.tensor(tokens), torch.tensor(targets)
