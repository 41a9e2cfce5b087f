"""Training of the shipped ViT on CIFAR-10, by a convolutional teacher; some batches show half of the patches.

Muon updates the matrices, AdamW the rest.
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tracer.models.training import data as cifar10
from tracer.models.training import evaluation, train_loop
from tracer.models.training.data import Images
from tracer.models.training.train_loop import BaseRecipe
from tracer.models.vit import SPEC
from tracer.spec.spec import Spec

HELD_OUT = 20
"""One of so many training images is held out, to choose weights by."""


@dataclass(frozen=True)
class Recipe(BaseRecipe):
    """Settings of a run; `train("vit", batch=64)` changes one of them.

    `matrix_rate` and `rate` are the full learning rates of the matrices in the blocks and of all else, `decay` the
    weight decay, `pad` and `hole` are in pixels, `warmup` is in steps. The teacher is trained for `teacher_epochs`, 0
    for none. Targets are its probabilities at `temperature` with the weight `trust`, and labels otherwise. `mixup` is
    the share of batches whose images are mixed in pairs (Zhang et al. 2018), `whole` the share of batches with all
    patches, and `mining` the share of these, where nothing is mixed, on which [CLS] learns what to attend to
    (`occlusion_eval.attention_mining`).
    """

    spec: ClassVar[Spec] = SPEC
    decays_rest: ClassVar[bool] = True
    undecayed: ClassVar[tuple[str, ...]] = ("position",)

    sizes: dict[str, int] = field(default_factory=lambda: dict(SPEC.sizes))
    epochs: int = 60
    batch: int = 128
    matrix_rate: float = 0.01
    rate: float = 2e-3
    decay: float = 0.05
    smoothing: float = 0.1
    pad: int = 4
    hole: int = 8
    warmup: int = 300
    teacher_epochs: int = 24
    temperature: float = 2.0
    trust: float = 0.5
    whole: float = 0.25
    mining: float = 0.5
    mixup: float = 0.0
    bf16: bool = False

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

    def initialise(self, net: nn.Module) -> None:
        """Start positions as sinusoids, and attention like that of trained ViTs."""
        net.position[0] = 0
        net.position[1:] = self.grid_positions()
        for name in net.blocks:
            mimetic(net.get_submodule(name).attention, D=self.sizes["D"], h=self.sizes["h"])

    def teach(self, images: Images, held_out: Images, *, seed: int, file: Path) -> Images:
        """Return the images with a teacher, whose weights `file` keeps (`teacher.teach`)."""
        if not self.teacher_epochs:
            return images
        recipe = train_loop.Teacher(epochs=self.teacher_epochs, batch=self.batch, pad=self.pad, bf16=self.bf16)
        return train_loop.teach(recipe, images, held_out, seed=seed, file=file)

    def batch_of(self, images: Images, chosen: Tensor, generator: torch.Generator) -> list[Tensor]:
        """Return the augmented images of the indices `chosen`, `[B]`, and what is expected of them.

        That is float `[B, C, H, W]`, labels int64 `[B]`, target probabilities `[B, K]`, the tokens that stay, CLS and
        some patches in their order, int64 `[B, N_v+1]`, and whether attention is mined, bool `[]`.
        """
        labels = images.labels[chosen]
        targets = F.one_hot(labels, self.sizes["K"]) * (1 - self.smoothing) + self.smoothing / self.sizes["K"]
        pixels = cifar10.augment(images.pixels[chosen], pad=self.pad, hole=self.hole, generator=generator)
        pixels = cifar10.normalise(pixels)
        mixes = torch.rand((), generator=generator) < self.mixup
        if mixes:
            share = torch.rand(len(chosen), 1, generator=generator) / 2  # of another image: the label stays likely
            pixels = pixels.lerp(pixels.flip(0), share.view(-1, 1, 1, 1))
            targets = targets.lerp(targets.flip(0), share)
        if isinstance(images, train_loop.DistillationImages):
            targets = targets.lerp((images.answers(pixels) / self.temperature).softmax(dim=-1), self.trust)
        N = self.sizes["H"] * self.sizes["W"] // self.sizes["P"] ** 2
        visible = N if torch.rand((), generator=generator) < self.whole else N // 2
        order = torch.rand(len(chosen), N, generator=generator).argsort(dim=1)[:, :visible]
        kept = F.pad(order.sort(dim=1).values + 1, (1, 0))
        mines = (torch.rand((), generator=generator) < self.mining) & torch.tensor(visible == N) & ~mixes
        return [pixels, labels, targets, kept, mines]

    def loss(self, net: nn.Module, batch: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return cross-entropy with the target probabilities, with attention mining where the batch says so, and the
        accuracy."""
        pixels, labels, targets, kept, mines = batch
        with evaluation.looking(net) as attentions:
            logits = net(pixels, kept)
        loss = F.cross_entropy(logits.float(), targets)
        if mines:
            loss = loss + evaluation.attention_mining(net, pixels, labels, attentions[0], self.sizes["P"])
        return loss, (logits.argmax(dim=-1) == labels).float().mean()

    @torch.inference_mode()
    def score(self, net: nn.Module, images: Images) -> dict:
        """Return accuracy, 0 to 1, over all of `images`, in float32 on the CPU.

        It is that of whole photos, and with a quarter of the patches hidden, by attention, by nearness to the centre,
        and by chance, in grey and in the mean colour (`occlusion_eval.hide_patches`).
        """
        right, generator = Counter(), torch.Generator().manual_seed(evaluation.SEED)
        for pixels, labels in zip(images.pixels.split(250), images.labels.split(250), strict=True):
            pixels = cifar10.normalise(pixels)
            with evaluation.looking(net) as attentions:
                answers = {"accuracy": net(pixels)}
            for name, left in evaluation.hide_patches(pixels, attentions[0], self.sizes["P"], generator).items():
                answers[f"accuracy_{name}"] = net(left)
            for name, logits in answers.items():
                right[name] += (logits.argmax(dim=-1) == labels).sum().item()
        figures = {name: round(count / len(images), 6) for name, count in right.items()}
        return figures | {"images": len(images), "hiding_seed": evaluation.SEED}

    def rank(self, figures: dict) -> float:
        """Return the figure by which weights are chosen, higher is better."""
        return figures["accuracy"]

    def _methods(self) -> list[str]:
        """Return what is done to images and targets, in words."""
        mined = self.whole * self.mining * (1 - self.mixup)
        methods = {
            "random crop and flip": True,
            f"cutout of {self.hole} pixels": self.hole,
            f"half of the patches left out of {1 - self.whole:.0%} of the batches": self.whole < 1,
            f"images mixed in pairs in {self.mixup:.0%} of the batches (Zhang et al. 2018)": self.mixup,
            f"attention mining in {mined:.1%} of the batches (Li et al. 2018)": self.mining,
            "the answers of a convolutional network as targets, beside the labels": self.teacher_epochs,
        }
        return [text for text, applies in methods.items() if applies]

    def card(self, images: Images) -> dict:
        """Return the card's facts on the training `images` and on the input, beside sizes, steps and figures."""
        return {
            "classes": list(cifar10.CLASSES),
            "mean": list(cifar10.MEAN),
            "std": list(cifar10.STD),
            "resize": f"centre crop to a square, then {self.sizes['H']}×{self.sizes['W']} by bicubic with antialias; "
            "pixels from 0 to 1, less the mean, over the std",
            "data": f"CIFAR-10 (Krizhevsky 2009), {len(images):,} training images: {', '.join(self._methods())}",
            "says": "On {images} test images that it never saw, it is right {accuracy} of the time. Its attention was "
            "tested by hiding a quarter of the patches in grey. Without those that [CLS] attends to most in the last "
            "block, it is right {accuracy_attended_hidden} of the time; without the central ones, "
            "{accuracy_central_hidden}; without randomly chosen ones, {accuracy_any_hidden}. Where the mean colour of "
            "the photo hides them instead, it is right {accuracy_attended_hidden_mean}, "
            "{accuracy_central_hidden_mean} and {accuracy_any_hidden_mean} of the time.",
            "licence": "weights made by this repository, under its licence; CIFAR-10 comes without one: "
            "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        }


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
