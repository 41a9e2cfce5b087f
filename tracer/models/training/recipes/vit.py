"""Training of the shipped ViT: CIFAR-10, light augmentation, Muon for the matrices and AdamW for the rest."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tracer.models.training import cifar10, occlusion_eval
from tracer.models.training.cifar10 import Images
from tracer.models.training.optimizers import MuonAndAdamW
from tracer.models.vit import ViT

HELD_OUT = 20
"""One of so many training images is held out, to choose weights by."""

SIZES = {"H": 32, "W": 32, "C": 3, "P": 4, "D": 128, "h": 4, "d_ff": 512, "L": 6, "K": 10}


@dataclass(frozen=True)
class Recipe(MuonAndAdamW):
    """Settings of a run; `train("vit", batch=64)` changes one of them.

    `matrix_rate` and `rate` are the full learning rates of the matrices in the blocks and of all else, `decay` the
    weight decay, `pad` and `hole` are in pixels, `warmup` is in steps.
    """

    decays_rest: ClassVar[bool] = True
    undecayed: ClassVar[tuple[str, ...]] = ("position",)

    sizes: dict[str, int] = field(default_factory=lambda: dict(SIZES))
    epochs: int = 22
    batch: int = 128
    matrix_rate: float = 0.01
    rate: float = 2e-3
    decay: float = 0.05
    smoothing: float = 0.1
    pad: int = 4
    hole: int = 8
    warmup: int = 300
    bf16: bool = True

    def __post_init__(self):
        if self.sizes.keys() != SIZES.keys():
            raise ValueError(f"sizes {', '.join(self.sizes)}: expected {', '.join(SIZES)}")

    def read(self, data: Path, part: str) -> Images:
        """Return the images of a part, "train", "validation" or "test".

        Every twentieth of the training images is one of validation instead. Raise ValueError if their shape isn't that
        of `sizes`.
        """
        images = cifar10.read(data, "test" if part == "test" else "train")
        if part != "test":
            held_out = torch.arange(len(images)) % HELD_OUT == 0
            images = images.where(held_out if part == "validation" else ~held_out)
        shape, expected = list(images.pixels.shape[1:]), [self.sizes[name] for name in "CHW"]
        if shape != expected:
            raise ValueError(f"images of shape {shape} in '{data}': expected [C, H, W] = {expected}")
        return images

    def build(self, seed: int) -> ViT:
        """Return a ViT with its initial weights, the same for the same seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = ViT(**self.sizes)
            H, W, P, D, h = (self.sizes[name] for name in ("H", "W", "P", "D", "h"))
            with torch.no_grad():
                net.position[0] = 0
                net.position[1:] = 0.5 * sinusoids(H // P, W // P, D)
                for name in net.blocks:
                    mimetic(net.get_submodule(name).attention, D=D, h=h)
        return net

    def batch_of(self, images: Images, chosen: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the augmented images and labels of the indices `chosen`, `[B]`: float `[B, C, H, W]`, int64 `[B]`."""
        pixels = cifar10.augment(images.pixels[chosen], pad=self.pad, hole=self.hole, generator=generator)
        return cifar10.normalise(pixels), images.labels[chosen]

    def loss(self, net: nn.Module, batch: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return cross-entropy with smoothed labels (Szegedy et al. 2016, section 7), and the accuracy."""
        pixels, labels = batch
        logits = net(pixels)
        right = (logits.argmax(dim=-1) == labels).float().mean()
        return F.cross_entropy(logits.float(), labels, label_smoothing=self.smoothing), right

    @torch.inference_mode()
    def score(self, net: nn.Module, images: Images) -> dict:
        """Return accuracy, 0 to 1, over all of `images`, in float32 on the CPU.

        It is that of whole photos, and with a quarter of the patches hidden, by attention, by nearness to the centre,
        and by chance, in grey and in the mean colour (`occlusion_eval.hide_patches`).
        """
        right, generator = Counter(), torch.Generator().manual_seed(occlusion_eval.SEED)
        for pixels, labels in zip(images.pixels.split(250), images.labels.split(250), strict=True):
            pixels = cifar10.normalise(pixels)
            with occlusion_eval.looking(net) as attentions:
                answers = {"accuracy": net(pixels)}
            for name, left in occlusion_eval.hide_patches(pixels, attentions[0], self.sizes["P"], generator).items():
                answers[f"accuracy_{name}"] = net(left)
            for name, logits in answers.items():
                right[name] += (logits.argmax(dim=-1) == labels).sum().item()
        figures = {name: round(count / len(images), 6) for name, count in right.items()}
        return figures | {"images": len(images), "hiding_seed": occlusion_eval.SEED}

    def rank(self, figures: dict) -> float:
        """Return the figure by which weights are chosen, higher is better."""
        return figures["accuracy"]

    def card(self, images: Images) -> dict:
        """Return the card's facts on the training `images` and on the input, beside sizes, steps and figures."""
        return {
            "classes": list(cifar10.CLASSES),
            "mean": list(cifar10.MEAN),
            "std": list(cifar10.STD),
            "resize": f"centre crop to a square, then {self.sizes['H']}×{self.sizes['W']} by bicubic with antialias; "
            "pixels from 0 to 1, less the mean, over the std",
            "data": f"CIFAR-10 (Krizhevsky 2009), {len(images):,} training images, random crop, flip and cutout",
            "says": "On {images} test images that it never saw, it is right {accuracy} of the time. Its attention was "
            "tested by hiding a quarter of the patches in grey. Without those that [CLS] attends to most in the last "
            "block, it is right {accuracy_attended_hidden} of the time; without the central ones, "
            "{accuracy_central_hidden}; without randomly chosen ones, {accuracy_any_hidden}. Where the mean colour of "
            "the photo hides them instead, it is right {accuracy_attended_hidden_mean}, "
            "{accuracy_central_hidden_mean} and {accuracy_any_hidden_mean} of the time.",
            "licence": "weights made by this repository, under its licence; CIFAR-10 comes without one: "
            "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        }


def sinusoids(rows: int, columns: int, D: int) -> Tensor:
    """Return sines and cosines of the grid's row in half of the width, of its column in the other.

    The shape is `[rows·columns, D]`. Source: Vaswani et al. 2017, section 3.5, over two axes; a width that is no
    multiple of 4 ends in zeros.
    """
    waves = D // 4
    frequencies = 100.0 ** (-torch.arange(waves) / max(waves, 1))
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    angles = [axis.reshape(-1, 1) * frequencies for axis in (y, x)]  # [N, D/4]
    table = torch.cat([wave(angle) for angle in angles for wave in (torch.sin, torch.cos)], dim=1)
    return F.pad(table, (0, D - 4 * waves))


def mimetic(attention: nn.Module, *, D: int, h: int) -> None:
    """Initialise attention like that of trained ViTs: W_Q W_Kᵀ near +I per head, W_V W_O near −I.

    Trockman and Kolter 2023, Mimetic Initialization of Self-Attention Layers, section 4, with its constants.
    """
    d_k = D // h
    query, key = [], []
    for _ in range(h):
        u, s, v = torch.linalg.svd(0.7 * torch.randn(D, D) / D**0.5 + 0.7 * torch.eye(D))
        query.append(s[:d_k].sqrt()[:, None] * u.T[:d_k])
        key.append(s[:d_k].sqrt()[:, None] * v[:d_k])
    attention.query.weight.copy_(torch.cat(query))
    attention.key.weight.copy_(torch.cat(key))
    u, s, v = torch.linalg.svd(0.4 * torch.randn(D, D) / D**0.5 - 0.4 * torch.eye(D))
    attention.value.weight.copy_(s.sqrt()[:, None] * u.T)
    attention.output.weight.copy_((s.sqrt()[:, None] * v).T)
