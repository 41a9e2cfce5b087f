"""Registry of our own models: every file of this folder with a `SPEC` is one, listed by its file name.

Names and cards are read without importing torch, so that a page can be drawn before it is loaded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module
from importlib.resources import files
from importlib.resources.abc import Traversable
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from tracer import zoo
from tracer.spec.model_cards import card_of
from tracer.utils.devices import device_of
from tracer.utils.errors import quote
from tracer.utils.files import read_literals
from tracer.utils.lazy_import import lazy_import

if TYPE_CHECKING:
    from os import PathLike

    from tracer.spec import checkpoints
    from tracer.spec.spec import Model, Spec
else:  # imported when first used
    checkpoints = lazy_import("tracer.spec.checkpoints")

WEIGHTS = files(__name__) / "weights"
COURSE = {
    "vit": "a photo → the class of what it shows",
    "nanogpt": "the beginning of a text → its next character",
    "llama": "the beginning of a text → its next character, with the architecture of recent models",
    "vit-text": "a drawn scene → a sentence about it, word by word",
    "vit-note": "a photo → a class, with one block of one head; untrained",
    "segmenter": "a drawn scene → the class of every pixel",
    "mae": "some patches of a surface → the hidden patches, and which of them it could not predict",
    "clip": "a photo and any sentences → the sentence that fits it best",
    "transformer": "a short text → the same text backwards",
    "saliency": "a photo → how much each of its pixels matters",
}
"""Our models in the order in which they are taught, and of each what goes in and what comes out. First the one that all
is explained on, then those of notes 000, 001, 002 and 004. One that is not here stands at the end."""


def in_course_order(found: Collection[str]) -> tuple[str, ...]:
    """Return names of models in the order of the course, those that it does not have at the end."""
    return (*(name for name in COURSE if name in found), *sorted(set(found) - COURSE.keys()))


_NAMES = in_course_order([module.name.replace("_", "-") for module in iter_modules(__path__) if not module.ispkg])


def names() -> tuple[str, ...]:
    """Return the names of our models, in the order of the course: `vit-text` is in `vit_text.py`."""
    return _NAMES


def in_and_out(name: str) -> str:
    """Return the input and the output in plain words; for a model outside the course, its summary."""
    return COURSE.get(name) or summary(name)


def card(name: str, config: Mapping[str, Any] | None = None) -> dict | None:
    """Return the card of the shipped weights (sizes, data, figures, date), or None if none are shipped.

    Weights that were trained at these sizes and options come first. Raise ValueError in one sentence that names a
    damaged card.
    """
    return None if zoo.is_foreign(name) else _card(trained_as(name, config) if config else _check_name(name))


def trained_as(name: str, config: Mapping[str, Any]) -> str:
    """Return the name of the shipped weights of one of our models that fit these sizes and options best.

    It is the model's own name, or that of a variant with all of them, such as "transformer.positions=relative".
    """
    return next((variant for variant in _variants(_check_name(name)) if fits(_card(variant) or {}, name, config)), name)


def fits(known: Mapping[str, Any], name: str, config: Mapping[str, Any]) -> bool:
    """Return whether weights with this card were trained at just these sizes and options of a model."""
    first = shipped_config(name)
    trained = {**first, **known.get("sizes", {}), **known.get("options", {})}
    return all(trained[size] == config.get(size, value) for size, value in first.items())


@lru_cache(maxsize=64)
def _variants(name: str) -> tuple[str, ...]:
    """Return weights of a model that were trained at other sizes or with other options, in files of their own."""
    names = (file.name.removesuffix(".json") for file in WEIGHTS.iterdir() if file.name.endswith(".json"))
    return tuple(sorted(variant for variant in names if variant.startswith(f"{name}.")))


def _card(weights: str) -> dict | None:
    file = WEIGHTS / f"{weights}.json"
    text = _read_card(file)  # type: ignore[arg-type] # files of a folder or an archive are hashable
    return card_of(text, file) if text is not None else None


@lru_cache(maxsize=64)
def _read_card(file: Traversable) -> bytes | None:
    """Return the content of a model's card, cached, or None if there is none."""
    return file.read_bytes() if file.is_file() else None


def describe() -> list[dict[str, str]]:
    """Return one dictionary per model: its name, its summary, and the origin of its weights.

    Those of installed libraries come after our own.
    """
    own = [{"name": name, "summary": summary(name), "weights": origin(name)} for name in names()]
    return own + [{"name": name, "summary": description, "weights": ""} for name, description in zoo.examples().items()]


def summary(name: str) -> str:
    """Return the first line of the model file's docstring, read without running the file."""
    return zoo.summary(name) if zoo.is_foreign(name) else _read_literals(_check_name(name))["summary"]


def takes(name: str) -> tuple[str, ...]:
    """Return the inputs of a model, "image", "text" or both, read without running its file."""
    return _field_of_spec(name, "takes", ())


def samples(name: str) -> str:
    """Return the kind of samples that suit the model, as `tracer.inputs.model_inputs` names them.

    It is "" for models of text alone.
    """
    return _field_of_spec(name, "samples", "")


def _field_of_spec(name: str, field: str, default: Any) -> Any:
    if zoo.is_foreign(name):
        return getattr(zoo.spec_of(name), field)
    return _read_literals(_check_name(name))["SPEC"].get(field, default)


@lru_cache(maxsize=64)
def _read_literals(name: str) -> dict[str, Any]:
    """Return the literals in the file of a model, cached: pages ask for them at every rerun."""
    return {"SPEC": {}} | read_literals(files(__name__) / f"{name.replace('-', '_')}.py")


def origin(name: str) -> str:
    """Return the origin of the weights, in a few words."""
    known = card(name)
    return f"trained on {known.get('data', 'data that its card does not name')}" if known else "seeded random weights"


def spec_of(name: str) -> Spec:
    """Return the `Spec` of a model.

    Raise ValueError for an unknown name.
    """
    if zoo.is_foreign(name):
        return zoo.spec_of(name)
    return import_module(f"{__name__}.{_check_name(name).replace('-', '_')}").SPEC


def shipped_config(name: str) -> dict[str, Any]:
    """Return the sizes and options of one of our shipped models.

    These are those that its weights were trained with, else the defaults of its file.
    """
    known = card(name) or {}
    return {**spec_of(name).defaults, **known.get("sizes", {}), **known.get("options", {})}


def check(name: str, config: dict[str, Any]) -> None:
    """Raise ValueError in one sentence for sizes and options with which one of our models can't be built.

    The model is built of one block, without memory, however large it would be.
    """
    spec = spec_of(name)
    checkpoints.check_config(spec, name, config)
    full = {**shipped_config(name), **config}
    checkpoints.shapes(spec, full | {symbol: 1 for symbol in spec.sizes if symbol.startswith("L")})


def load(
    name: str,
    *,
    weights: str | PathLike | bytes | None = None,
    device: str = "cpu",
    values: bool = True,
    **config: Any,
) -> Model:
    """Return the model of that name, ready to run, at the sizes and options of `config`.

    Shipped weights are loaded if they fit the request; at other sizes, or if none are shipped, the weights are random
    and seeded. `weights` is a file to load instead: safetensors, by its path or its bytes, or a checkpoint of PyTorch,
    by its path. Sizes of a layout that the model knows (`Spec.convert`) are read from it, or from the card that
    training writes beside the file. Names with a colon are models of libraries: `torchvision:vit_b_16` (see
    `tracer.zoo`). `device` is the device of the model, "cpu", "cuda" or "mps"; the kept tensors of a run are moved
    to the CPU, and its proofs run there. With `values=False` the model has no weights, at any size: only
    `trace(values=False)` runs it, which takes no memory. So it is where a folder holds a configuration alone that is
    too large to be given weights.

    Raise ValueError in one sentence for an unknown name, sizes that the model lacks or that don't fit, weights that
    don't fit the sizes, or a device that is not available.
    """
    place = device_of(device)  # before anything is built
    if not values:
        if weights is not None or place.type != "cpu":
            wanted = f"weights={quote(weights)}" if weights is not None else f"device={quote(device)}"
            raise ValueError(f"{wanted} with values=False: a model without values has no weights, expected sizes alone")
        return zoo.load(name, values=False, **config) if zoo.is_foreign(name) else _without_values(name, config)
    model = zoo.load(name, weights=weights, **config) if zoo.is_foreign(name) else _own(name, weights, config)
    if model.valueless:
        return model
    return model if place.type == "cpu" else model.on(place)


def _without_values(name: str, config: dict[str, Any]) -> Model:
    """Return one of our own models without weights, at any size."""
    from tracer.spec.spec import Model  # loads torch

    checkpoints.check_config(spec_of(name), name, config)
    facts = _facts(card(name), "mean", "std", "vocabulary", "classes")
    return Model.without_weights(name, spec_of(name), {**shipped_config(name), **config}, facts)


def _own(name: str, weights: str | PathLike | bytes | None, config: dict[str, Any]) -> Model:
    """Return one of our own models; see `load`."""
    from tracer.spec.spec import Model, build_seeded  # loads torch

    spec = spec_of(name)
    checkpoints.check_config(spec, name, config)
    shipped, own, tensors = card(name), None, None
    if weights is not None:
        own = checkpoints.card_beside(weights)
        if own:
            trained_with = {**own["sizes"], **own.get("options", {})}
            config = {
                **{key: trained_with[key] for key in (*spec.sizes, *spec.options) if key in trained_with},
                **config,
            }
        tensors, config = checkpoints.convert(spec, weights, config)
    as_shipped = shipped_config(name)
    full = {**as_shipped, **config}
    if (file := trained_as(name, full)) != name:
        as_shipped, shipped = full, _card(file)
    if full != as_shipped:
        checkpoints.check_memory(spec, name, full)
    net = build_seeded(spec.net, full)
    if full == as_shipped:  # counted as it is built: on `meta` PyTorch's compiler would be loaded for it
        checkpoints.check_count(name, sum(parameter.numel() for parameter in net.parameters()))
    same_sizes = all(full[symbol] == as_shipped[symbol] for symbol in spec.sizes)
    if tensors is not None:
        origin_text = checkpoints.place(net, weights, tensors)
        shipped = own or _facts(shipped, "mean", "std", "vocabulary")
    elif (
        shipped
        and same_sizes
        and (full == as_shipped or checkpoints.shapes(spec, full) == checkpoints.shapes(spec, as_shipped))
    ):
        checkpoints.place(net, WEIGHTS / f"{file}.safetensors")
        origin_text = f"trained on {shipped.get('data', 'data that its card does not name')}"
        if changed := [option for option in spec.options if full[option] != as_shipped[option]]:
            trained, run = (" and ".join(f"{option}={of[option]}" for option in changed) for of in (as_shipped, full))
            origin_text += f"; trained with {trained}, run here with {run}"
    else:
        origin_text, shipped = "seeded random weights", _facts(shipped, "mean", "std", "vocabulary", "classes")
    return Model.of(name, spec, net, full, weights=origin_text, card=shipped)


def _facts(card: dict | None, *keys: str) -> dict | None:
    """Return a card's facts on the input (and the classes), which hold for other weights too."""
    return {key: card[key] for key in keys if key in card} if card else None


def _check_name(name: str) -> str:
    if name not in names():
        near = get_close_matches(str(name), names(), n=1, cutoff=0.4)
        hint = f"did you mean {quote(near[0])}?" if near else f"expected one of {', '.join(names())}"
        raise ValueError(f"there is no model {quote(name)}; {hint}")
    return name
