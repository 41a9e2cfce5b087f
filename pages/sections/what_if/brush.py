"""Brush that hides patches on the photo itself: its data for the browser, and the browser's answer."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from pages.jobs.render_cache import of
from pages.sections.what_if import before_after
from pages.state import session
from pages.state.visitor import model_name, visitor
from tracer import models
from tracer.figures.predictions import class_bars
from tracer.figures.tensors.image_patches import rescale
from tracer.record import Picture, Trace

HIDE = "image=hide("
"""How the texts of changes begin that hide patches."""
SIDE = 160
"""Pixels of a picture of fills, along its longer side."""
WHY = "This model always runs on all of its patches, so none can be removed from the sequence."
"""Why patches are hidden in the photo alone."""
TOP_CLASSES = 3
"""Classes whose probabilities are shown beside the brush."""


def facts(trace: Trace) -> dict[str, Any] | None:
    """Return the browser's data for hiding patches of a run's photo; None for a run that can't be repeated, or has no
    photo in square patches."""
    picture, sizes = trace.picture, {size.name for size in trace.symbols}
    if picture is None or session.user_input().kind == "trace" or not {"H", "W", "P"} <= sizes:
        return None
    from tracer.changes.of_inputs import REMOVED_FILL  # torch, which pages start without

    patches, fill = current_patches()
    plain = session.plain_trace() if trace.changes else trace
    pictures = of(plain, "fills", lambda: _fills(plain, picture))
    removable = [REMOVED_FILL] if models.spec_of(model_name()).subset else []
    return {
        "patches": patches,
        "fill": fill,
        "fills": [*pictures, *removable],
        "pictures": pictures,
        "photo": of(plain, "photo", lambda: _jpeg(rescale(_photo(plain, picture)))) if trace.changes else "",
        "why": "" if removable else WHY,
        "status": _status(plain, trace),
        "answer": _answer(plain, trace),
    }


def _status(plain: Trace, trace: Trace) -> str:
    """Return what the changes do to the answer; with others than hidden patches, it says that it is of all of them."""
    sentence = before_after.sentence(plain, trace).replace("*", "")
    others = not all(text.startswith(HIDE) for text in session.changes())
    return f"All changes together: {sentence[:1].lower()}{sentence[1:]}" if others and sentence else sentence


def current_patches() -> tuple[list[int], str]:
    """Return the patches that the changes on screen hide, and their fill."""
    from tracer.changes import parse_all  # torch, which pages start without
    from tracer.changes.of_inputs import Hide

    patches, fill = set[int](), ""
    for text in session.changes():
        if text.startswith(HIDE):
            change = parse_all([text])["image"]
            if isinstance(change, Hide):
                patches, fill = patches | set(change.patches), change.fill
    return sorted(patches), fill


def hide(value: object) -> None:
    """Hide these patches in place of those that are hidden now: `{"patches": [27, 28], "fill": "mean"}`."""
    from tracer.changes.of_inputs import Hide  # torch, which pages start without

    now = [text for text in session.changes() if not text.startswith(HIDE)]
    try:
        if not isinstance(value, Mapping) or not isinstance(value.get("patches"), list):
            raise ValueError("the browser did not send a list of patches")
        if value["patches"]:
            now.append(f"image={Hide(value['patches'], str(value.get('fill')))}")
    except (TypeError, ValueError) as error:
        visitor().refusal = f"{error}. {session.STAYS}"
        return
    session.change(now)


def _photo(trace: Trace, picture: Picture) -> Image.Image:
    return Image.fromarray(np.asarray(trace.values[picture.value]))


def _fills(trace: Trace, picture: Picture) -> dict[str, str]:
    """Return the crop of a photo with all patches hidden, by fill, as JPEG in base 64."""
    from tracer.inputs.hidden_patches import FILLS, paint_patches  # torch, which pages start without

    crop, every = _photo(trace, picture).crop(picture.crop), np.ones((picture.rows, picture.columns), dtype=bool)
    crop.thumbnail((SIDE, SIDE))
    photo, box = np.asarray(crop), (0, 0, *crop.size)
    return {fill: _jpeg(Image.fromarray(paint_patches(photo, box, every, fill))) for fill in FILLS}


def _jpeg(picture: Image.Image) -> str:
    file = BytesIO()
    picture.save(file, "JPEG", quality=88)
    return b64encode(file.getvalue()).decode()


def _answer(plain: Trace, trace: Trace) -> list[tuple[str, str, tuple[str, float], str]]:
    """Return the likeliest classes of a changed run: the name, the probability before and after, and the arrow."""
    before, after = before_after.shares(plain.result), before_after.shares(trace.result)
    if not trace.changes or before is None or after is None:
        return []
    old = dict(zip(*before, strict=True))
    names = list(dict.fromkeys([class_bars.ranking(*before)[0][0], *(name for name, _ in class_bars.ranking(*after))]))
    new = dict(zip(*after, strict=True))
    percent = class_bars.percent
    return [
        (name, percent(old[name]), (percent(new[name]), new[name]), class_bars.arrow(old[name], new[name]))
        for name in names[:TOP_CLASSES]
        if name in old and name in new
    ]
