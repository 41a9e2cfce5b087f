"""Samples for a model, by kind: photos, drawn scenes, surfaces. Torch-free."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from PIL import Image

from tracer.inputs import images

SCENES = {"two objects": (12, 2), "one object": (11, 1), "three objects": (13, 3)}
SURFACES = {"stain": ("checks", "stain"), "dent": ("stripes", "dent"), "brick": ("brick", "scratch")}


@cache
def samples(kind: str) -> dict[str, Callable[[], Image.Image]]:
    """Return names and loaders of the samples of a kind ("photos", "scenes", "surfaces"); none for a model of text.

    The list is read once, and each sample is opened or drawn once: all callers get the same picture.
    """
    loaders = {"photos": images.sample_photos, "scenes": _scenes, "surfaces": _surfaces}.get(kind, dict)()
    return {name: cache(opened) for name, opened in loaders.items()}


def _scenes() -> dict[str, Callable[[], Image.Image]]:
    from tracer.inputs.synthetic.scenes import sample_scene, scene  # draws where such a sample is asked for

    scenes = {name: lambda seed=seed, count=count: scene(seed, count).image() for name, (seed, count) in SCENES.items()}
    return {"scene": lambda: sample_scene().image(), **scenes}


def _surfaces() -> dict[str, Callable[[], Image.Image]]:
    from tracer.inputs.synthetic.textures import damage, sample, surface  # draws where such a sample is asked for

    def damaged_surface(name: str, defect: str) -> Image.Image:
        return Image.fromarray(damage(surface(name, 7), 3, defect)[0])

    surfaces = {name: lambda of=of: damaged_surface(*of) for name, of in SURFACES.items()}
    return {"scratch": sample, **surfaces, "no defect": lambda: Image.fromarray(surface("weave", 5))}
