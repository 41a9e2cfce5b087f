"""Rows of one photo: one of the photo, one for each head, and one of the hiding test."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tracer.attention import places
from tracer.attention.answer_probabilities import choice_probabilities
from tracer.attention.head_effects import HeadProbe, HeadSwitchboard, effects, head_sites
from tracer.attention.hiding_test import SEEDS
from tracer.attention.survey.photo_source import Photo
from tracer.changes import hide
from tracer.inputs.hidden_patches import HIDDEN_SHARE
from tracer.inputs.images import MEAN, STD, open_photo
from tracer.inputs.model_inputs import Inputs
from tracer.models.shared.spec import Model
from tracer.record import Trace

MAX_LOSSLESS_BYTES = 32 * 2**10
"""Bytes of a photo as the model sees it up to which the survey stores it as it is."""
THUMBNAIL = 320
"""Pixels of the longer side of a larger one, as JPEG."""


class PhotoRows:
    """Rows of photos of one model, for the heads of a tower, the first by default. The first readable photo is traced
    once, for the lines of the heads."""

    def __init__(self, model: Model, part: str | None = None):
        self.model, self.part = model, part
        self._board: HeadSwitchboard | None = None
        self._trace: Trace | None = None

    def of(self, photo: Photo) -> list[dict[str, Any]]:
        """Return the rows of a photo; for an unreadable one, a row that says why."""
        problem, image = photo.problem, None
        if not problem:
            try:
                image = open_photo(photo.data)
            except ValueError as error:
                problem = str(error)
        if image is None:
            label = None if photo.label is None else str(photo.label)
            return [{"photo": photo.name, "label": label, "row": "unreadable", "problem": problem}]
        return self.measure(image, photo.name, photo.label)

    def measure(self, image: Image.Image, name: str, label: str | int | None = None) -> list[dict[str, Any]]:
        """Return the rows of an opened photo; its label is the name or the index of a class, or None."""
        common: dict[str, Any] = {"photo": name, "label": None if label is None else str(label)}
        inputs = self.model.inputs(image)
        if self._board is None or self._trace is None:
            self._trace = self.model.trace(image, prove=False)
            self._board = HeadSwitchboard(self.model, inputs, head_sites(self._trace, self.part))
        probe, names = self._board.probe(inputs), self._choices()
        number = _number(label, names)
        if probe.probabilities is not None and probe.probabilities.dim() == 2:
            first = probe.probabilities[0]
            best = int(first.argmax())
            common |= {"answer": names[best] if best < len(names) else str(best), "probability": float(first[best])}
            common |= {"loss": _loss(first, number)}
        hiding = self._hiding(inputs, probe)
        return [
            {**common, "row": "photo", "picture": self._picture(image, inputs)},
            *self._heads(common, probe, number),
            *([{**common, **hiding}] if hiding else []),
        ]

    def _picture(self, image: Image.Image, inputs: Inputs) -> bytes:
        """Encode the photo as the model sees it, where that is small and a run on it is the same; else the photo,
        downscaled."""
        file = io.BytesIO()
        if (crop := inputs.crop) is not None:
            view = image.resize((crop.width, crop.height), Image.Resampling.BICUBIC, box=crop.box)
            view.save(file, "PNG", optimize=True)
            if file.tell() <= MAX_LOSSLESS_BYTES and all(map(torch.equal, self.model.inputs(view), inputs)):
                return file.getvalue()
        file = io.BytesIO()
        small = image.copy()
        small.thumbnail((THUMBNAIL, THUMBNAIL))
        small.save(file, "JPEG", quality=90)
        return file.getvalue()

    def _choices(self) -> list[str]:
        assert self._trace is not None
        return [str(name) for name in self._trace.result.get("classes", ())]

    def _heads(self, common: dict[str, Any], probe: HeadProbe, label: int | None) -> list[dict[str, Any]]:
        head_effects, rows = effects(probe), []
        for at, (layer, head) in enumerate(probe.heads, start=1):
            cell = head_effects.layers.index(layer), head
            numbers = {
                name: _none_for_nan(float(getattr(head_effects, name)[cell]))
                for name in ("distance", "entropy", "special")
            }
            row = {**common, "row": "head", "layer": layer, "head": head, **numbers}
            row["change" if head_effects.points else "output_change"] = _none_for_nan(float(head_effects.change[cell]))
            if head_effects.points:
                row["flips"] = bool(head_effects.flips[cell])
            if label is not None and probe.probabilities is not None and common.get("loss") is not None:
                row["loss_change"] = (_loss(probe.probabilities[at], label) or 0.0) - common["loss"]
            rows.append(row)
        return rows

    @torch.no_grad()
    def _hiding(self, inputs: Inputs, probe: HeadProbe) -> dict[str, Any]:
        """Return the changes of the answer's probability with a quarter of the patches grey: those that CLS attends to
        most in the last block, as many at random, and as many in the centre; nothing without CLS and one answer."""
        trace = self._trace
        assert trace is not None
        patches, shares = places(trace), probe.probabilities
        cls = next((segment.start for segment in trace.segments if segment.name == "CLS"), None)
        if cls is None or not patches or shares is None or shares.dim() != 2 or trace.picture is None:
            return {}
        last = max(probe.weights)
        row = probe.weights[last].reshape(-1, *probe.weights[last].shape[-2:])[:, cls].mean(0)
        order = sorted(patches, key=patches.__getitem__)
        attention = row[order].numpy()
        rows, columns, count = trace.picture.rows, trace.picture.columns, len(order) // HIDDEN_SHARE
        y, x = ((np.arange(side) + 0.5) / side - 0.5 for side in (rows, columns))
        centre = -np.maximum(np.abs(y)[:, None], np.abs(x)).ravel()
        ranks = [attention, centre, *(np.random.default_rng(seed).random(len(order)) for seed in range(SEEDS))]
        chosen = [np.argsort(-rank, kind="stable")[:count].tolist() for rank in ranks]
        points = 100 * (self._answers(inputs, chosen, int(shares[0].argmax())) - float(shares[0].max()))
        return {
            "row": "hiding",
            "hidden": count,
            "attended": float(points[0]),
            "centre": float(points[1]),
            "random": float(points[2:].mean()),
            "random_std": float(points[2:].std(correction=1)),
        }

    def _answers(self, inputs: Inputs, hidden: list[list[int]], answer: int) -> Tensor:
        """Return the probability of an answer with these patches grey, `[choices of patches]`."""
        model = self.model
        sizes = model.vocabulary.complete({**inputs.sizes, **model.sizes})
        card = model.card or {}
        normalisation = {"mean": card.get("mean", MEAN), "std": card.get("std", STD)}
        many = [hide(patches, "grey").change(inputs, sizes, normalisation) for patches in hidden]
        batch = replace(inputs, tensors=tuple(map(torch.cat, zip(*many, strict=True))))
        shares = choice_probabilities(str(self._trace.result["kind"]), model.net(*batch, **batch.named))  # type: ignore[union-attr]
        assert shares is not None
        return shares[:, answer]


def _number(label: str | int | None, names: list[str]) -> int | None:
    """Return the number of a label's class, None for one that is not a class."""
    if isinstance(label, str):
        return names.index(label) if label in names else None
    return label if label is not None and 0 <= label < len(names) else None


def _loss(probabilities: Tensor, label: int | None) -> float | None:
    """Return the cross-entropy in nats, None without a label."""
    return None if label is None else -float(probabilities[label].clamp_min(1e-300).log())


def _none_for_nan(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
