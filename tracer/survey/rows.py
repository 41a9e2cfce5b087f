"""Rows of a survey: photos in an order that stays, and what each head does on each of them."""

from __future__ import annotations

import io
import json
import logging
import socket
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tracer.attention import places
from tracer.attention.head_effects import (
    SEEDS,
    HeadProbe,
    HeadSwitchboard,
    choice_probabilities,
    effects,
    head_sites,
    nearest_to_centre,
)
from tracer.changes import hide
from tracer.changes.of_inputs import HIDDEN_SHARE
from tracer.inputs.images import open_photo
from tracer.inputs.model_inputs import Inputs
from tracer.models import load
from tracer.record import Trace
from tracer.spec.spec import Model
from tracer.survey.result import Photo, PhotoSource, encode, name_digest, open_source
from tracer.utils.errors import quote, reason, shorten
from tracer.utils.lazy_import import lazy_import

ray = lazy_import("ray")


# Rows of one photo: one of the photo, one for each head, and one of the hiding test.

MAX_LOSSLESS_BYTES = 32 * 2**10
"""Bytes of a photo as the model sees it up to which the survey stores it as it is."""
THUMBNAIL = 320
"""Pixels of the longer side of a larger one, as JPEG."""


class PhotoRows:
    """Rows of photos of one model, for the heads of a tower, the first by default. The first readable photo is traced
    once, for the lines of the heads."""

    def __init__(self, model: Model, part: str | None = None):
        self.model, self.part = model, part
        self._traced: tuple[Trace, HeadSwitchboard] | None = None

    def file(self, source: PhotoSource, part: range, facts: str) -> bytes:
        """Return the rows of some photos of a survey with these `facts`, as a Parquet file."""
        return encode([row for photo in source.read(part) for row in self.of(photo)], facts)

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
        if self._traced is None:
            trace = self.model.trace(image, prove=False)
            self._traced = trace, HeadSwitchboard(self.model, inputs, head_sites(trace, self.part))
        trace, board = self._traced
        probe, names = board.probe(inputs), [str(name) for name in trace.result.get("classes", ())]
        number = _number(label, names)
        if probe.probabilities is not None and probe.probabilities.dim() == 2:
            first = probe.probabilities[0]
            best = int(first.argmax())
            common |= {"answer": names[best] if best < len(names) else str(best), "probability": float(first[best])}
            common |= {"loss": _loss(first, number)}
        hiding = self._hiding(trace, inputs, probe)
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

    def _heads(self, common: dict[str, Any], probe: HeadProbe, label: int | None) -> list[dict[str, Any]]:
        head_effects, rows = effects(probe), []
        for at, (layer, head) in enumerate(probe.heads, start=1):
            cell = head_effects.layers.index(layer), head
            names = ("distance", "entropy", "special")
            numbers = {name: _none_for_nan(getattr(head_effects, name)[cell]) for name in names}
            row = {**common, "row": "head", "layer": layer, "head": head, **numbers}
            row["change" if head_effects.points else "output_change"] = _none_for_nan(head_effects.change[cell])
            if head_effects.points:
                row["flips"] = bool(head_effects.flips[cell])
            if label is not None and probe.probabilities is not None and common.get("loss") is not None:
                row["loss_change"] = (_loss(probe.probabilities[at], label) or 0.0) - common["loss"]
            rows.append(row)
        return rows

    @torch.no_grad()
    def _hiding(self, trace: Trace, inputs: Inputs, probe: HeadProbe) -> dict[str, Any]:
        """Return the changes of the answer's probability with a quarter of the patches grey: those that CLS attends to
        most in the last block, as many at random, and as many in the centre; nothing without CLS and one answer."""
        patches, shares = places(trace), probe.probabilities
        cls = next((segment.start for segment in trace.segments if segment.name == "CLS"), None)
        if cls is None or not patches or shares is None or shares.dim() != 2 or trace.picture is None:
            return {}
        last = max(probe.weights)
        row = probe.weights[last].reshape(-1, *probe.weights[last].shape[-2:])[:, cls].mean(0)
        order = sorted(patches, key=patches.__getitem__)
        attention = row[order].numpy()
        rows, columns, count = trace.picture.rows, trace.picture.columns, len(order) // HIDDEN_SHARE
        ranks = [attention, *(np.random.default_rng(seed).random(len(order)) for seed in range(SEEDS))]
        chosen = [np.argsort(-rank, kind="stable")[:count].tolist() for rank in ranks]
        chosen.insert(1, list(nearest_to_centre(rows, columns)[:count]))
        hidden = self._shares(str(trace.result["kind"]), inputs, chosen)[:, int(shares[0].argmax())]
        points = 100 * (hidden - float(shares[0].max()))
        return {
            "row": "hiding",
            "hidden": count,
            "attended": float(points[0]),
            "centre": float(points[1]),
            "random": float(points[2:].mean()),
            "random_std": float(points[2:].std(correction=1)),
        }

    def _shares(self, kind: str, inputs: Inputs, hidden: list[list[int]]) -> Tensor:
        """Return the probabilities of answers of this kind with these patches grey, `[choices of patches, answers]`."""
        many = [self.model.change_inputs(inputs, [hide(patches, "grey")]) for patches in hidden]
        batch = replace(inputs, tensors=tuple(map(torch.cat, zip(*many, strict=True))))
        shares = choice_probabilities(kind, self.model.net(*batch, **batch.named))
        assert shares is not None
        return shares


def _number(label: str | int | None, names: list[str]) -> int | None:
    """Return the number of a label's class, None for one that is not a class."""
    if isinstance(label, str):
        return names.index(label) if label in names else None
    return label if label is not None and 0 <= label < len(names) else None


def _loss(probabilities: Tensor, label: int | None) -> float | None:
    """Return the cross-entropy in nats, None without a label."""
    return None if label is None else -float(probabilities[label].clamp_min(1e-300).log())


def _none_for_nan(value: Any) -> float | None:
    return None if np.isnan(float(value)) else float(value)


# Parts of a survey on a Ray cluster, by Ray Data: each actor holds one copy of the model.
#
# An actor that dies, alone or with its machine, is started again elsewhere, and Ray Data gives its parts to others.

PATIENCE = 10
"""Seconds in which a cluster has to answer."""


class SurveyActor:
    """One copy of the model, which computes whole parts; `facts` are those of the survey.

    ValueError in one sentence where this machine has other weights, or other photos at the path.
    """

    def __init__(self, name: str, data: str, facts: str):
        self.facts, expected = facts, json.loads(facts)
        self.source, model = open_source(data), load(name)
        if model.weights != expected["weights"]:
            raise ValueError(f"a worker has other weights of {quote(name)}: {model.weights}")
        if name_digest(self.source) != expected["names"]:
            raise ValueError(f"a worker has other photos at {quote(data)}, expected the same on every machine")
        self.rows = PhotoRows(model)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list]:
        """Return the Parquet file of each part of a batch, under the part's number."""
        ranges = [range(int(first), int(stop)) for first, stop in zip(batch["first"], batch["stop"], strict=True)]
        return {"part": list(batch["part"]), "file": [self.rows.file(self.source, part, self.facts) for part in ranges]}


def compute(
    address: str, name: str, data: str | Path, facts: str, parts: Mapping[int, range]
) -> Iterator[tuple[int, bytes]]:
    """Yield the file of each part by its number, as the cluster at this address computes them.

    ValueError in one sentence where no cluster answers.
    """
    if not parts:
        return
    began = not ray.is_initialized()
    if began:
        _check_address(address)
        try:
            ray.init(address=address, log_to_driver=False, logging_level="warning")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ValueError(f"--ray {quote(address)} is no Ray cluster that answers: {reason(error)}") from error
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    items = [{"part": number, "first": part.start, "stop": part.stop} for number, part in parts.items()]
    actors = max(1, min(len(items), int(ray.cluster_resources().get("CPU", 1))))
    dataset = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
        SurveyActor,
        fn_constructor_kwargs={"name": name, "data": str(Path(data).resolve()), "facts": facts},
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=actors),
        num_cpus=1,
    )
    try:
        for row in dataset.iter_rows():
            yield int(row["part"]), bytes(row["file"])
    except ray.exceptions.RayError as error:
        last = str(error).strip().splitlines()[-1]
        raise ValueError(f"the Ray cluster {quote(address)} gave up: {shorten(last, 300)}") from error
    finally:
        if began:
            ray.shutdown()


def _check_address(address: str) -> None:
    """Raise ValueError where nothing listens at `host:port`, for which Ray waits long, and then ends the process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise ValueError(f"--ray {quote(address)} is no Ray cluster that answers: {reason(error)}") from error
