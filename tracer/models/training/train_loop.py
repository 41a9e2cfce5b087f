"""Training loop of every recipe.

The random draws of a step depend on the seed and the step alone, so a stopped run continues as if it had not been
stopped.
"""

import copy
import pickle
import sys
import time
from collections.abc import Callable, Sequence, Sized
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from tracer.utils import atomic_write
from tracer.utils.error_text import quote

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
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    rates = [group["lr"] for group in groups]
    if state:
        net.load_state_dict(state["net"])
        average.load_state_dict(state["average"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        step, seconds = state["step"], state["seconds"]
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
    atomic_write.write(path, buffer.getvalue())
