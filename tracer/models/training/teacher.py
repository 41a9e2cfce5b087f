"""Distillation: a convolutional network that is trained first, and whose answers a recipe learns (Hinton et al. 2015).

The student sees what the teacher sees: the teacher answers each augmented image, mixed images too (Beyer et al. 2022,
Knowledge distillation: A good teacher is patient and consistent).
"""

import copy
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn import functional as F

from tracer.models.training import cifar10, train_loop
from tracer.models.training.cifar10 import Images
from tracer.utils import atomic_write

SAMPLE = 10_000
"""So many images set the statistics of batch norms."""


@dataclass(frozen=True)
class DistillationImages(Images):
    """Labelled images beside the network that teaches what they show; it computes in bfloat16 where `bf16` is set."""

    teacher: nn.Module
    bf16: bool

    def answers(self, pixels: Tensor) -> Tensor:
        """Return the teacher's logits of normalised images, `[B, C, H, W]`: float32 `[B, K]`, on the CPU."""
        return _logits(self.teacher, pixels, self.bf16)


@dataclass(frozen=True)
class Teacher:
    """Recipe of the teacher: stochastic gradient descent with momentum; `pad` and `hole` are in pixels."""

    epochs: int
    pad: int
    hole: int = 8
    width: int = 32
    batch: int = 128
    rate: float = 0.1
    decay: float = 5e-4
    warmup: int = 400
    bf16: bool = False

    def build(self, seed: int) -> nn.Module:
        """Return a small residual network with its initial weights, the same for the same seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return residual_network(self.width, len(cifar10.CLASSES)).to(memory_format=torch.channels_last)

    def optimizers(self, net: nn.Module) -> list[torch.optim.Optimizer]:
        """Return one optimizer, with weight decay on matrices and kernels only."""
        groups = [
            {"params": [p for p in net.parameters() if p.ndim > 1], "weight_decay": self.decay},
            {"params": [p for p in net.parameters() if p.ndim < 2], "weight_decay": 0.0},
        ]
        return [torch.optim.SGD(groups, lr=self.rate, momentum=0.9, nesterov=True)]

    def batch_of(self, images: Images, chosen: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the augmented images and labels of the indices `chosen`, `[B]`: float `[B, C, H, W]`, int64 `[B]`."""
        pixels = cifar10.augment(images.pixels[chosen], pad=self.pad, hole=self.hole, generator=generator)
        return cifar10.normalise(pixels).to(memory_format=torch.channels_last), images.labels[chosen]

    def loss(self, net: nn.Module, batch: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return cross-entropy and the accuracy."""
        pixels, labels = batch
        logits = net(pixels)
        return F.cross_entropy(logits.float(), labels), (logits.argmax(dim=-1) == labels).float().mean()


def teach(recipe: Teacher, images: Images, held_out: Images, *, seed: int, file: Path) -> DistillationImages:
    """Return `images` with a teacher, which is trained if `file` holds no such one.

    `file` keeps its weights; training goes on from a checkpoint beside it. `held_out` measures the teacher, and is used
    for nothing else. Raise ValueError for a checkpoint that can't be read, or of another teacher.
    """
    facts = json.dumps(asdict(recipe) | {"seed": seed, "images": len(images)}, sort_keys=True)
    if file.exists():
        with safe_open(file, "pt") as stored:
            if stored.metadata()["facts"] == facts:
                net = recipe.build(seed)
                net.load_state_dict(load_file(file))
                net.to(train_loop.device()).eval()
                return DistillationImages(images.pixels, images.labels, net, recipe.bf16)
    run = {"seed": seed, "epochs": recipe.epochs, "facts": facts}
    checkpoint = file.with_suffix(".checkpoint")
    state = train_loop.read_checkpoint(checkpoint, run, ("facts",))
    last = recipe.epochs * (len(images) // recipe.batch)

    def report(average: nn.Module, step: int, seconds: float) -> None:
        net = copy.deepcopy(average).cpu()
        _fit_statistics(net, images, seed)
        logits = torch.cat([_logits(net, cifar10.normalise(batch)) for batch in held_out.pixels.split(250)])
        right = (logits.argmax(dim=-1) == held_out.labels).float().mean().item()
        train_loop.log(f"teacher, step {step}, {seconds:.0f} s: accuracy {right:.4f}")
        if step == last:
            weights = {name: value.contiguous() for name, value in net.state_dict().items()}
            atomic_write.write(file, save(weights, metadata={"facts": facts}))

    train_loop.fit(recipe, recipe.build(seed), images, run=run, state=state, checkpoint=checkpoint, report=report)
    return teach(recipe, images, held_out, seed=seed, file=file)


def residual_network(width: int, K: int) -> nn.Module:
    """Return a network of eight convolutions and two residual paths for `[B, 3, H, W]`; it returns logits `[B, K]`.

    That of Page 2018, How to train your ResNet, at another width.
    """
    return nn.Sequential(
        _convolution(3, width),
        _convolution(width, 2 * width),
        nn.MaxPool2d(2),
        Residual(2 * width),
        _convolution(2 * width, 4 * width),
        nn.MaxPool2d(2),
        _convolution(4 * width, 8 * width),
        nn.MaxPool2d(2),
        Residual(8 * width),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(8 * width, K),
    )


class Residual(nn.Module):
    """Two convolutions whose output is added to their input, `[B, channels, H, W]`."""

    def __init__(self, channels: int):
        super().__init__()
        self.convolutions = nn.Sequential(_convolution(channels, channels), _convolution(channels, channels))

    def forward(self, x) -> Tensor:
        return x + self.convolutions(x)


def _convolution(channels: int, out: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU())


def _fit_statistics(net: nn.Module, images: Images, seed: int) -> None:
    """Set the statistics of batch norms to those of `images`: averaged weights have others than the trained ones."""
    chosen = torch.randperm(len(images), generator=train_loop.generator(seed, 0))[:SAMPLE]
    batches = (cifar10.normalise(batch) for batch in images.pixels[chosen].split(250))
    torch.optim.swa_utils.update_bn((batch.to(memory_format=torch.channels_last) for batch in batches), net)
    net.eval()


@torch.inference_mode()
def _logits(net: nn.Module, pixels: Tensor, bf16: bool = False) -> Tensor:
    """Return the logits of normalised images, `[B, C, H, W]`: float32 `[B, K]`, on the CPU."""
    where = next(net.parameters()).device
    with torch.autocast(where.type, torch.bfloat16, enabled=bf16):
        logits = net(pixels.to(where, memory_format=torch.channels_last))
    return logits.float().cpu()
