"""Training loop of every recipe.

The random draws of a step depend on the seed and the step alone, so a stopped run continues as if it had not been
stopped."""

import copy
import json
import pickle
import sys
import time
from collections.abc import Callable, Collection, Sequence, Sized
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from tracer.inputs.synthetic import SIDE
from tracer.models.training import data
from tracer.models.training.data import Images
from tracer.spec.spec import Spec
from tracer.utils import files
from tracer.utils.errors import quote

# What recipes share: initial weights, and optimizers, Muon for the matrices of the blocks and AdamW for all else.


class BaseRecipe:
    """Common part of all recipes: a model of their `spec`, and optimizers with the rates of both.

    `matrix_rate` and `decay` are those of Muon, `rate` that of AdamW. `decays_rest`: the matrices outside blocks have
    the weight decay too; vectors, and the parameters named in `undecayed`, have none. `synthetic` recipes draw their
    examples.
    """

    spec: ClassVar[Spec]
    synthetic: ClassVar[bool] = False
    decays_rest: ClassVar[bool] = False
    undecayed: ClassVar[Collection[str]] = ()
    sizes: dict[str, int]
    matrix_rate: float
    rate: float
    decay: float
    bf16: bool

    def __post_init__(self):
        if self.sizes.keys() != self.spec.sizes.keys():
            raise ValueError(f"sizes {', '.join(self.sizes)}: expected {', '.join(self.spec.sizes)}")

    @property
    def options(self) -> dict[str, Any]:
        """Settings that are options of the model."""
        return {name: getattr(self, name) for name in self.spec.options if hasattr(self, name)}

    def build(self, seed: int) -> nn.Module:
        """Return the net with its initial weights, the same for the same seed."""
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            net = self.spec.net(**self.sizes, **self.options)
            self.initialise(net)
        return net

    def initialise(self, net: nn.Module) -> None:
        """Set the weights that do not start as the net draws them, in place."""

    def grid_positions(self) -> Tensor:
        """Return the vectors with which positions of patches start: sinusoids, `[N, D]`."""
        H, W, P, D = (self.sizes[name] for name in ("H", "W", "P", "D"))
        return 0.5 * sinusoids(H // P, W // P, D)

    def optimizers(self, net: nn.Module) -> list[torch.optim.Optimizer]:
        """Return Muon (Jordan 2024) for the matrices of the blocks, and AdamW for all else.

        Without `bf16`, the updates of Muon are computed in float32.
        """
        matrices, rest, vectors = [], [], []
        for name, parameter in net.named_parameters():
            bare = parameter.ndim < 2 or name in self.undecayed
            (vectors if bare else matrices if "block" in name else rest).append(parameter)
        groups = [
            {"params": rest, "weight_decay": self.decay if self.decays_rest else 0.0},
            {"params": vectors, "weight_decay": 0.0},
        ]
        return [
            (torch.optim.Muon if self.bf16 else Float32Muon)(matrices, lr=self.matrix_rate, weight_decay=self.decay),
            torch.optim.AdamW(groups, lr=self.rate, betas=(0.9, 0.98)),
        ]


@dataclass(frozen=True)
class SceneRecipe(BaseRecipe):
    """Common part of recipes on drawn scenes: a pass (epoch) has `count` scenes, all new; `tests` unseen scenes of each
    kind are scored."""

    synthetic: ClassVar[bool] = True

    sizes: dict[str, int] = field(default_factory=dict)
    epochs: int = 0
    batch: int = 64
    count: int = 6400
    tests: int = 500
    matrix_rate: float = 0.01
    rate: float = 2e-3
    decay: float = 0.01
    warmup: int = 100

    def __post_init__(self):
        super().__post_init__()
        sides = {name: self.sizes[name] for name in "HWC"}
        if sides != {"H": SIDE, "W": SIDE, "C": 3}:
            raise ValueError(f"sizes {sides}: scenes are drawn with H = W = {SIDE} and C = 3")

    def read(self, source: None, part: str) -> Any:
        """Return the scenes of a pass for "train", else unseen scenes; there is no `source` to read."""
        return data.SceneStream(self.count) if part == "train" else self.unseen(part)

    def unseen(self, part: str) -> Any:
        """Return the scenes of a part, "validation" or "test"."""
        raise NotImplementedError


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


class Float32Muon(torch.optim.Optimizer):
    """Muon like `torch.optim.Muon`, with the updates in float32 and those of equal shapes computed together.

    PyTorch's computes in bfloat16, which takes longer than the rest of a step on a processor without instructions for
    it. Source: Jordan 2024, Muon: An optimizer for hidden layers in neural networks.
    """

    MOMENTUM = 0.95
    COEFFICIENTS = (3.4445, -4.7750, 2.0315)
    ITERATIONS = 5

    def __init__(self, params: list[nn.Parameter], *, lr: float, weight_decay: float):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update the matrices by their gradients; there is no `closure`."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = {}
            for parameter in group["params"]:
                by_shape.setdefault(parameter.shape, []).append(parameter)
            for (rows, columns), matrices in by_shape.items():
                updates = self._orthogonalise(torch.stack([self._momentum(matrix) for matrix in matrices]))
                rate = group["lr"] * max(1, rows / columns) ** 0.5
                for matrix, update in zip(matrices, updates, strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=rate)

    def _momentum(self, matrix: nn.Parameter) -> torch.Tensor:
        """Return the gradient with Nesterov momentum, the shape of `matrix`."""
        state = self.state[matrix]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(matrix)
        average = state["momentum_buffer"].lerp_(matrix.grad, 1 - self.MOMENTUM)
        return matrix.grad.lerp(average, self.MOMENTUM)

    def _orthogonalise(self, matrices: torch.Tensor) -> torch.Tensor:
        """Return `[M, rows, columns]` with singular values near 1, by five quintic Newton–Schulz iterations."""
        if matrices.shape[1] > matrices.shape[2]:
            return self._orthogonalise(matrices.mT).mT
        x = matrices / matrices.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
        a, b, c = self.COEFFICIENTS
        for _ in range(self.ITERATIONS):
            gram = x @ x.mT
            x = a * x + (b * gram + c * gram @ gram) @ x
        return x


STABLE = 0.4
AVERAGE = 0.998


def device() -> torch.device:
    """Return the accelerator if there is one, else the CPU."""
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def factor(step: int, steps: int, warmup: int) -> float:
    """Return the factor of the learning rate: a linear warm-up, a plateau, a linear fall to 0 at the end.

    Warmup, stable, decay (Hägele et al. 2024, section 3). Up to the fall it doesn't depend on `steps`, so a
    run can be made longer or shorter on the way.
    """
    return min(1.0, (step + 1) / warmup, (1 - step / steps) / (1 - STABLE))


def indices(count: int, batch: int, seed: int, step: int) -> Tensor:
    """Return indices of the examples of a step, `[batch]`: each epoch is a new permutation, whose remainder is left
    out."""
    epoch, position = divmod(step, count // batch)
    order = torch.randperm(count, generator=generator(seed, epoch))
    return order[position * batch : (position + 1) * batch]


def fit(
    recipe: Any,
    net: nn.Module,
    data: Sized,
    *,
    run: dict,
    state: dict,
    checkpoint: Path,
    report: Callable[[nn.Module, int, float], None],
) -> None:
    """Train `net` in place for `run["epochs"]` passes over `data`.

    `run` holds the seed and the epochs and is kept in `checkpoint`, which is written after each epoch, whole or not at
    all, and removed at the end; `state` is the content of an earlier checkpoint, or empty. After each epoch `report` is
    called with the moving average of the weights as a module, the step and the seconds so far. Raise ValueError if the
    data don't fill one batch.
    """
    where, seed = device(), run["seed"]
    per_epoch = len(data) // recipe.batch
    if not per_epoch:
        raise ValueError(f"{len(data)} examples don't fill one batch of {recipe.batch}: expected at least one batch")
    steps, step, seconds = run["epochs"] * per_epoch, 0, 0.0
    net.to(where)
    average = copy.deepcopy(net).requires_grad_(False)
    optimizers = recipe.optimizers(net)
    rates = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    if state:
        net.load_state_dict(state["net"])
        average.load_state_dict(state["average"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        step, seconds = state["step"], state["seconds"]
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    started = time.monotonic() - seconds
    shown = ProgressFigures()
    if step == steps:  # it was stopped after its last step, and before it was reported
        report(average, step, seconds)
    with tqdm(total=steps, initial=step, unit="step", desc="train", smoothing=0.02) as bar:
        while step < steps:
            scale = factor(step, steps, recipe.warmup)
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = scale * rate
            examples = recipe.batch_of(data, indices(len(data), recipe.batch, seed, step), generator(seed, step))
            with torch.autocast(where.type, torch.bfloat16, enabled=recipe.bf16):
                loss, accuracy = recipe.loss(net, [part.to(where) for part in examples])
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            step += 1
            weight = max(1 - AVERAGE, 10 / (step + 10))
            for mean, value in zip(average.parameters(), net.parameters(), strict=True):
                mean.lerp_(value.detach(), weight)
            for mean, value in zip(average.buffers(), net.buffers(), strict=True):
                mean.copy_(value)
            bar.update()
            if step % 10 == 0 or step == steps:
                bar.set_postfix(shown.after(loss=loss.item(), accuracy=accuracy.item()), lr=f"{groups[0]['lr']:.1e}")
            if step % per_epoch == 0:
                seconds = time.monotonic() - started
                _save(
                    checkpoint,
                    run
                    | {"net": net.state_dict(), "average": average.state_dict(), "step": step, "seconds": seconds}
                    | {"optimizers": [optimizer.state_dict() for optimizer in optimizers]},
                )
                report(average, step, seconds)
    checkpoint.unlink(missing_ok=True)


class ProgressFigures:
    """Moving averages of the figures on the progress bar."""

    def __init__(self):
        self.figures: dict[str, float] = {}

    def after(self, **figures: float) -> dict[str, str]:
        """Return the averages as text, after one more value of each."""
        for name, value in figures.items():
            self.figures[name] = 0.9 * self.figures.get(name, value) + 0.1 * value
        return {name: f"{value:.3f}" for name, value in self.figures.items()}


def log(line: str) -> None:
    """Print a line above the progress bar, on standard error like the bar."""
    tqdm.write(line, file=sys.stderr)


def generator(seed: int, position: int) -> torch.Generator:
    """Return a generator of its own for each seed and position; PyTorch's on the CPU reads only 32 bits of a seed."""
    return torch.Generator().manual_seed((seed * 0x9E3779B1 + position) % 2**32)


def read_checkpoint(file: Path, run: dict, same: Sequence[str]) -> dict:
    """Return the content of a checkpoint, empty if there is none.

    Raise ValueError for one that can't be read, or of another run: it differs in one of the facts named in `same`.
    """
    if not file.exists():
        return {}
    try:
        state = torch.load(file, map_location=device(), weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise ValueError(f"can't read the checkpoint {quote(file)}: remove it to start anew") from error
    for key in same:
        if state[key] != run[key]:
            raise ValueError(
                f"{quote(file)} is of a run with {key} {state[key]}, not {run[key]}: remove it to start anew"
            )
    return state


def _save(path: Path, state: dict) -> None:
    torch.save(state, buffer := BytesIO())
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, buffer.getvalue())


# Distillation: a convolutional network that is trained first, and whose answers a recipe learns (Hinton et al. 2015).
#
# The student sees what the teacher sees: the teacher answers each augmented image, mixed images too (Beyer et al. 2022,
# Knowledge distillation: A good teacher is patient and consistent).

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
            return residual_network(self.width, len(data.CLASSES)).to(memory_format=torch.channels_last)

    def optimizers(self, net: nn.Module) -> list[torch.optim.Optimizer]:
        """Return one optimizer, with weight decay on matrices and kernels only."""
        groups = [
            {"params": [p for p in net.parameters() if p.ndim > 1], "weight_decay": self.decay},
            {"params": [p for p in net.parameters() if p.ndim < 2], "weight_decay": 0.0},
        ]
        return [torch.optim.SGD(groups, lr=self.rate, momentum=0.9, nesterov=True)]

    def batch_of(self, images: Images, chosen: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the augmented images and labels of the indices `chosen`, `[B]`: float `[B, C, H, W]`, int64 `[B]`."""
        pixels = data.augment(images.pixels[chosen], pad=self.pad, hole=self.hole, generator=generator)
        return data.normalise(pixels).to(memory_format=torch.channels_last), images.labels[chosen]

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
                net.to(device()).eval()
                return DistillationImages(images.pixels, images.labels, net, recipe.bf16)
    run = {"seed": seed, "epochs": recipe.epochs, "facts": facts}
    checkpoint = file.with_suffix(".checkpoint")
    state = read_checkpoint(checkpoint, run, ("facts",))
    last = recipe.epochs * (len(images) // recipe.batch)

    def report(average: nn.Module, step: int, seconds: float) -> None:
        net = copy.deepcopy(average).cpu()
        _fit_statistics(net, images, seed)
        logits = torch.cat([_logits(net, data.normalise(batch)) for batch in held_out.pixels.split(250)])
        right = (logits.argmax(dim=-1) == held_out.labels).float().mean().item()
        log(f"teacher, step {step}, {seconds:.0f} s: accuracy {right:.4f}")
        if step == last:
            weights = {name: value.contiguous() for name, value in net.state_dict().items()}
            files.write(file, save(weights, metadata={"facts": facts}))

    fit(recipe, recipe.build(seed), images, run=run, state=state, checkpoint=checkpoint, report=report)
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
    chosen = torch.randperm(len(images), generator=generator(seed, 0))[:SAMPLE]
    batches = (data.normalise(batch) for batch in images.pixels[chosen].split(250))
    torch.optim.swa_utils.update_bn((batch.to(memory_format=torch.channels_last) for batch in batches), net)
    net.eval()


@torch.inference_mode()
def _logits(net: nn.Module, pixels: Tensor, bf16: bool = False) -> Tensor:
    """Return the logits of normalised images, `[B, C, H, W]`: float32 `[B, K]`, on the CPU."""
    where = next(net.parameters()).device
    with torch.autocast(where.type, torch.bfloat16, enabled=bf16):
        logits = net(pixels.to(where, memory_format=torch.channels_last))
    return logits.float().cpu()
