"""Training of the shipped masked autoencoder: defect-free surfaces with random patches hidden."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from tracer.inputs import synthetic
from tracer.models.mae import SPEC
from tracer.models.training.train_loop import BaseRecipe
from tracer.spec.preparation import MASKED_MEAN, MASKED_STD, visible_patches
from tracer.spec.results import anomaly_map, patches_of
from tracer.spec.spec import Spec

MIXTURE = {"drawn": 0.45, "brick": 0.35, "grass": 0.1, "gravel": 0.1}
"""The shares of the surfaces that are trained on."""

SEEDS = {"validation": 20_000, "test": 10_000}
"""The first seed of a held-out part's surfaces and of their defects."""


@dataclass(frozen=True)
class Surfaces:
    """Surfaces in grey: `pixels` uint8 `[M, 1, H, W]`, their `names`, and the patches under a defect, `[M, N]`."""

    pixels: Tensor
    names: tuple[str, ...]
    defects: Tensor

    def __len__(self) -> int:
        return len(self.pixels)


@dataclass(frozen=True)
class Recipe(BaseRecipe):
    """Settings of a run; `train("mae", batch=32)` changes one of them.

    `count` surfaces are trained on, `tests` of each name are scored; `least` and `most` are the smallest and largest
    share of patches that a batch hides. `matrix_rate` and `rate` are the full learning rates of the matrices in the
    blocks and of all else, `decay` the weight decay, `warmup` is in steps.
    """

    spec: ClassVar[Spec] = SPEC
    synthetic: ClassVar[bool] = True

    sizes: dict[str, int] = field(default_factory=lambda: dict(SPEC.sizes))
    epochs: int = 15
    batch: int = 64
    count: int = 8192
    tests: int = 60
    least: float = 0.25
    most: float = 0.6
    matrix_rate: float = 0.02
    rate: float = 3e-3
    decay: float = 0.0
    warmup: int = 100
    bf16: bool = False

    def __post_init__(self):
        super().__post_init__()
        if self.sizes["H"] != self.sizes["W"] or self.sizes["C"] != 1:
            raise ValueError(f"sizes {self.sizes}: expected square surfaces in grey, H = W and C = 1")

    def read(self, data: Path | None, part: str) -> Surfaces:
        """Return defect-free surfaces for "train", else surfaces with one defect each, generated without `data`.

        Those of "validation" are other pieces from the regions of "train"; those of "test" come from elsewhere.
        """
        size, side, patches = self.sizes["H"], self.sizes["P"], []
        if part == "train":
            counts = {name: round(share * self.count) for name, share in MIXTURE.items()}
            for name, count in counts.items():
                for seed in range(count):
                    clean = synthetic.surface(name, seed, part=part, size=size)
                    patches.append((name, clean, np.zeros((size, size), dtype=bool)))
        else:
            region = "test" if part == "test" else "train"
            for name in MIXTURE:
                for seed in range(SEEDS[part], SEEDS[part] + self.tests):
                    clean = synthetic.surface(name, seed, part=region, size=size)
                    patches.append((name, *synthetic.damage(clean, seed)))
        names, pixels, masks = zip(*patches, strict=True)
        defects = np.stack([synthetic.patch_mask(mask, side) for mask in masks])
        return Surfaces(torch.from_numpy(np.stack(pixels))[:, None], names, torch.from_numpy(defects))

    def initialise(self, net: nn.Module) -> None:
        """Start positions, of the encoder and of the decoder, as sinusoids."""
        for table in (net.position, net.decoder_position):
            table.copy_(self.grid_positions())

    def batch_of(self, data: Surfaces, chosen: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the surfaces of the indices `chosen`, flipped at random, and their visible patches."""
        pixels = data.pixels[chosen]
        for axis in (-1, -2):
            flipped = torch.rand(len(chosen), generator=generator) < 0.5
            pixels = torch.where(flipped[:, None, None, None], pixels.flip(axis), pixels)
        patches = data.defects.shape[1]
        share = self.least + (self.most - self.least) * torch.rand((), generator=generator).item()
        count = max(1, min(patches - 1, round(patches * (1 - share))))
        return normalise(pixels), visible_patches(len(chosen), patches, count, generator)

    def loss(self, net: nn.Module, batch: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return mean squared error on the hidden patches (He et al. 2022, section 3), and the explained variance."""
        pixels, visible = batch
        target = patches_of(pixels, net.P)
        hidden = torch.ones(target.shape[:2], dtype=torch.bool, device=target.device).scatter(1, visible, False)
        error = (net(pixels, visible) - target)[hidden].square().mean()
        return error, 1 - error.detach() / target[hidden].var()

    @torch.inference_mode()
    def score(self, net: nn.Module, data: Surfaces) -> dict:
        """Return patch AUROC of the anomaly map for each name, all patches of its surfaces together."""
        maps = torch.cat([anomaly_map(net, normalise(pixels)) for pixels in data.pixels.split(50)])
        figures = {}
        for name in dict.fromkeys(data.names):
            own = torch.tensor([texture == name for texture in data.names])
            figures[f"auroc_{name}"] = round(auroc(maps[own].flatten(), data.defects[own].flatten()), 6)
        return figures | {"surfaces": len(data)}

    def rank(self, figures: dict) -> float:
        """Return the figure by which weights are chosen, higher is better."""
        return min(figures["auroc_drawn"], figures["auroc_brick"])

    def card(self, data: Surfaces) -> dict:
        """Return the card's facts on the training surfaces and on the input, beside sizes, steps and figures."""
        return {
            "mean": list(MASKED_MEAN),
            "std": list(MASKED_STD),
            "resize": f"centre crop to a square, then {self.sizes['H']}×{self.sizes['W']} by bicubic, in grey; pixels "
            "from 0 to 1, less the mean, over the std",
            "data": f"{len(data):,} defect-free surfaces: 45 % drawn, the rest cut from scikit-image's brick, grass "
            "and gravel (left 60 % of each; tests are cut from the right 36 %)",
            "measure": "patch AUROC: each test surface has one scratch, stain or dent; a patch is defective where at "
            f"least 10 % of its pixels changed by {synthetic.MIN_CONTRAST} grey levels or more",
            "says": "On surfaces that it never saw, its error is larger on a defective patch than on a sound one in "
            "{auroc_drawn} of pairs on drawn surfaces and {auroc_brick} on brick, but only "
            "in {auroc_grass} on grass and {auroc_gravel} on gravel, where 50 % is chance.",
            "licence": "weights made by this repository, under its licence; the textures are CC0",
        }


def normalise(pixels: Tensor) -> Tensor:
    """Return uint8 pixels as float32 of about zero mean and unit variance."""
    return (pixels.float() / 255 - MASKED_MEAN[0]) / MASKED_STD[0]


def auroc(scores: Tensor, labels: Tensor) -> float:
    """Return the chance that a positive scores higher than a negative, ties half: scores `[M]`, labels bool `[M]`.

    Source: Hanley and McNeil 1982, by ranks. Raise ValueError if one of the two classes is missing.
    """
    positive, negative = scores[labels].double(), scores[~labels].double().sort().values
    if not len(positive) or not len(negative):
        raise ValueError(f"{len(positive)} positives and {len(negative)} negatives, expected at least one of each")
    below = torch.searchsorted(negative, positive, right=False)
    through = torch.searchsorted(negative, positive, right=True)
    return float((below + through).double().mean() / 2 / len(negative))
