"""Parts of a survey on a Ray cluster, by Ray Data: each actor holds one copy of the model.

An actor that dies, alone or with its machine, is started again elsewhere, and Ray Data gives its parts to others.
"""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tracer.attention.survey.photo_source import open_source
from tracer.attention.survey.survey_format import encode, name_digest
from tracer.utils.error_text import quote, reason, shorten

PATIENCE = 10
"""Seconds in which a cluster has to answer."""


class SurveyActor:
    """One copy of the model, which computes whole parts; `facts` are those of the survey.

    ValueError in one sentence where this machine has other weights, or other photos at the path.
    """

    def __init__(self, name: str, data: str, facts: str):
        from tracer.attention.survey.photo_rows import PhotoRows  # loads torch, in the actor's own process
        from tracer.models import load  # with it

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
        files = [
            encode([row for photo in self.source.read(part) for row in self.rows.of(photo)], self.facts)
            for part in ranges
        ]
        return {"part": list(batch["part"]), "file": files}


def compute(
    address: str, name: str, data: str | Path, facts: str, parts: Mapping[int, range]
) -> Iterator[tuple[int, bytes]]:
    """Yield the file of each part by its number, as the cluster at this address computes them.

    ValueError in one sentence where no cluster answers.
    """
    import ray  # an extra

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
