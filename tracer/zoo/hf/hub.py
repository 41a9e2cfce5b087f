"""Models of transformers: `hf:owner/name` of the hub, `hf:` and a local folder, or a family, such as `hf:bert`.

A family is one file of `families/`, found by the `model_type` that a checkpoint's configuration names."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager, suppress
from dataclasses import replace
from difflib import get_close_matches
from functools import cached_property, lru_cache
from importlib import import_module
from math import isnan
from os.path import isdir
from pathlib import Path
from pkgutil import iter_modules
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, NamedTuple

import torch

from tracer import zoo
from tracer.record import Step
from tracer.record.costs import Scaling, scaling
from tracer.record.steps import at_any, repeats
from tracer.shapes.variation import on_meta
from tracer.spec.spec import Spec
from tracer.utils import transformers_internals
from tracer.utils.errors import quote, reason
from tracer.utils.torch_internals import keystr, tree_leaves_with_path
from tracer.utils.torch_state import seeded_draws
from tracer.zoo import NoModel
from tracer.zoo.downloads import Download, on_the_hub
from tracer.zoo.hf import families, generic_model, tiny_config
from tracer.zoo.hf.spec_builders import architecture, without_cache
from tracer.zoo.recommendations import offline, published_models, why
from tracer.zoo.torchvision_models import import_torchvision as vision

PREFIX = "hf"
PACKAGE = "transformers"
EXAMPLES = {
    "bert": "BERT of transformers: post-norm encoder of text (Devlin et al. 2019).",
    "clip": "CLIP of transformers: a photo tower and a text tower that meet in one space (Radford et al. 2021).",
    "dinov2": "DINOv2 of transformers: self-supervised Vision Transformer with layer scale (Oquab et al. 2023).",
    "fuyu": "Fuyu of transformers: patches straight into the decoder, one stream (Bavishi et al. 2023).",
    "gpt2": "GPT-2 of transformers: pre-norm decoder, packed projections, tied head (Radford et al. 2019).",
    "llama": "Llama of transformers: rotary positions, grouped heads, RMS norms, gated MLP (Touvron et al. 2023).",
    "llava": "LLaVA of transformers: a vision tower, then one stream of image and text (Liu et al. 2023).",
    "paligemma": "PaliGemma of transformers: a vision tower, then one stream with a prefix mask (Beyer et al. 2024).",
    "vit": "Vision Transformer of transformers, for classification (Dosovitskiy et al. 2021).",
    "vit_mae": "ViTMAE of transformers: a masked autoencoder of photos (He et al. 2022).",
}
"""Families to start from, and what they are."""
CHECKPOINT_ATTRIBUTES = {"llama": {"num_key_value_heads": 8}}
"""Attributes of a family's checkpoints that its own default configuration lacks."""
HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
"""The form of a model's name on the hub: `owner/name`, or a name alone."""
MAX_NAME_LETTERS = 96
"""Letters of such a name, the slash among them."""
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
"""The files of a checkpoint that hold its weights: one, or the list of several."""
PICKLE_FILES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
"""Files of weights that are not read, since they can run code."""
SHARD = re.compile(r"\w[\w.-]*")
"""The form of a file in such an index: a name, and no path."""


@lru_cache(maxsize=1)
def import_transformers() -> ModuleType:
    """Import `transformers` with its warnings off; its progress bars stay."""
    with suppress(ImportError):
        vision()  # transformers imports it where it is installed
    import transformers  # may not be installed

    transformers.logging.set_verbosity_error()
    return transformers


@lru_cache(maxsize=16)
def spec(id: str) -> Spec:
    """Return the `Spec` of a checkpoint, from its configuration. Raise ValueError if it can't be loaded."""
    family, config = _find(id)
    if family is None:
        opened = _open_generic(id)
    with _readable(f"the configuration of {quote(f'hf:{id}')}"):
        return family.spec(config, CheckpointFiles(id)) if family else generic_model.spec(opened, CheckpointFiles(id))


def load_pretrained(id: str, spec: Spec, sizes: dict) -> tuple[torch.nn.Module | None, dict | None, str]:
    """Return the net with the checkpoint's weights (safetensors only), its `Spec`, and their source."""
    family, config = _find(id)
    files = CheckpointFiles(id)
    if not files.exist:
        source = (
            f"seeded random weights, because {id} names a family and no checkpoint; for trained weights, type the name "
            "of a checkpoint on the hub, such as hf:openai-community/gpt2"
        )
        small = family is None and _open_generic(id).small
        return None, None, f"a small configuration of the family with {source}" if small else source
    if is_configuration(id):
        return None, None, f"seeded random weights: {id} holds a configuration, and no weights"
    options = {option: sizes[option] for option in spec.options}
    what = f"the weights of {quote(f'hf:{id}')}"
    with _readable(what):
        _weights(id)
    with _readable(what, ", expected safetensors"), seeded_draws(0):  # for what the files lack
        model_class = architecture(config, family.HEADS) if family else _open_generic(id).architecture
        net, source = model_class.from_pretrained(
            id,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=offline(),
            attn_implementation=options.get("attention"),
            output_loading_info=True,
        )
    without_cache(net.config)
    changed = "" if family else generic_model.resize_positions(net, sizes)
    lacks = sorted(source["missing_keys"])
    with _readable(f"what stands beside the weights of {quote(f'hf:{id}')}"):
        card = files.card(config) | ({"lacks": lacks} if lacks else {})
    return net.float().eval(), card, f"weights of {id}{changed}{_lacking(lacks)}"


def is_configuration(id: str) -> bool:
    """Return whether a name is that of a folder with a configuration and no weights."""
    return (
        isdir(id)
        and CheckpointFiles(id).exist
        and not any(CheckpointFiles(id).path(name, local=True) for name in (*WEIGHTS, *PICKLE_FILES))
    )


def _lacking(names: list[str]) -> str:
    """Return a note on the weights that a checkpoint's files lack."""
    if not names:
        return ""
    several = ", ".join(names[:4]) + (f" and {len(names) - 4} others" if len(names) > 4 else "")
    return f", whose files lack {several}: there the numbers are seeded random ones"


@contextmanager
def _readable(what: str, expected: str = ""):
    """Turn whatever the library raises on a file that is damaged or not meant for it into one sentence."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{what} can't be read ({reason(error)}){expected}") from None


def here(id: str) -> bool:
    """Return whether a checkpoint's weights are on this machine, without network."""
    return isdir(id) or all(
        CheckpointFiles(id).path(name, local=True) for name in ("config.json", *_weights(id, local=True))
    )


def _weights(id: str, local: bool = False) -> list[str]:
    """Return the files of a checkpoint that hold its weights: one, or the shards of an index. The single name if
    neither is known. Raise ValueError if the index leads out of the checkpoint: the library would follow it."""
    if (
        CheckpointFiles(id).path(WEIGHTS[0], local) is None
        and (listed := CheckpointFiles(id).path(WEIGHTS[1], local)) is not None
    ):
        names = sorted({*json.loads(listed.read_text(encoding="utf-8"))["weight_map"].values()})
        if outside := [name for name in names if not SHARD.fullmatch(name)]:
            raise ValueError(f"{WEIGHTS[1]} names the file {quote(outside[0])}, expected one beside it")
        return [WEIGHTS[1], *names]
    return [WEIGHTS[0]]


def fetch(id: str) -> None:
    """Download a checkpoint: its weights, and the small files that are read with them. Raise ValueError if that
    fails."""
    spec(id)  # which reads how text is cut and how pixels are normalised
    try:
        CheckpointFiles(id).path("preprocessor_config.json")
        missing = [name for name in _weights(id) if CheckpointFiles(id).path(name) is None]
    except Exception as error:  # whatever the hub's client makes of a network
        raise ValueError(f"the weights of {quote(f'hf:{id}')} could not be downloaded: {reason(error)}") from None
    if missing or not here(id):
        raise ValueError(f"{quote(f'hf:{id}')} has no {(missing or WEIGHTS)[0]} that could be downloaded")


def download(id: str) -> Download:
    """Return the download size of the weights, as the hub reports it."""
    if not CheckpointFiles(id).exist:
        return Download(0, "the name of a family has no weights of its own, so they are seeded random ones")
    if here(id):
        return Download(0, "its weights are on this machine")
    if offline():
        return Download(0, f"{why()}, and its weights are not on this machine")
    return on_the_hub(id)


def check_no_folder(id: str) -> None:
    """Raise ValueError for anything that does not have the form of a name of the hub, and for such a name that is also
    a folder here: it is reported as unknown, like any name that the hub does not have, and only after asking it."""
    if not HUB_ID.fullmatch(id):
        raise ValueError(
            f"{quote(f'hf:{id}')} is not a name of the model hub, expected one such as hf:openai-community/gpt2"
        )
    if id not in names() and isdir(id):
        if not offline():
            on_the_hub(id)
        raise ValueError(_unknown(id))


def _unknown(id: str) -> str:
    """Return the message for a name that is neither on this machine nor on the hub, nor a family's."""
    near = get_close_matches(id, EXAMPLES, n=1, cutoff=0.6)
    hint = f"did you mean 'hf:{near[0]}'?" if near else "expected one on this machine, a folder, or a family: "
    hint += "" if near else ", ".join(EXAMPLES)
    why_not = why() if offline() else "the model hub has none of that name"
    return f"{quote(f'hf:{id}')} is not on this machine, and {why_not}; {hint}"


class CheckpointFiles:
    """Small files beside a checkpoint: how its photos are normalised, how its text is cut into tokens."""

    def __init__(self, id: str):
        self.id = id

    @property
    def exist(self) -> bool:
        """Return whether there is a checkpoint of that name, in a local folder or on the hub."""
        return self.path("config.json") is not None

    def path(self, name: str, local: bool = False) -> Path | None:
        """Return one of the checkpoint's files, or None if it has none or can't be reached; without network if
        `local`."""
        if self.id in names():  # a family, and no checkpoint: nobody is asked for it
            return None
        try:
            return _file(self.id, name, local or offline())
        except FileNotFoundError:
            return None

    @cached_property
    def tokenizer(self) -> Any:
        """Checkpoint's tokenizer, or None where it has none."""
        if not any(self.path(name) for name in ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model")):
            return None
        return import_transformers().AutoTokenizer.from_pretrained(
            self.id, trust_remote_code=False, local_files_only=offline()
        )

    def card(self, config) -> dict:
        """Return the mean and standard deviation of pixels, and the names of classes."""
        card: dict[str, Any] = {"data": self.id}
        known = self._preprocessor
        if known.get("do_normalize", True) and "image_mean" in known:
            card |= {"mean": known["image_mean"], "std": known["image_std"]}
        names = config.id2label or {}
        cut, whole = _side(known.get("crop_size")), _side(known.get("size"))
        if known.get("do_center_crop") and cut and whole:
            card["crop"] = min(1.0, cut / whole)
        if names and not all(name == f"LABEL_{number}" for number, name in names.items()):
            card["classes"] = [names[number] for number in sorted(names)]
        return card

    @property
    def side(self) -> int | None:
        """Side of the square that photos are cut to, where the checkpoint says so."""
        known = self._preprocessor
        return _side(known.get("crop_size")) if known.get("do_center_crop") else None

    @property
    def _preprocessor(self) -> dict[str, Any]:
        """How photos are prepared, as a file of the checkpoint says; empty without one."""
        path = self.path("preprocessor_config.json")
        return json.loads(path.read_text(encoding="utf-8")) if path else {}


def _side(size) -> int | None:
    """Return the shorter side of a preprocessor's size: a number, or one by name; None for anything else."""
    side = size.get("shortest_edge", size.get("height")) if isinstance(size, dict) else size
    return side if isinstance(side, int) and side > 0 else None


@lru_cache(maxsize=1)
def _families() -> dict[str, str]:
    """Return the names of the families and the modules of their files."""
    return {module.name: f"{families.__name__}.{module.name}" for module in iter_modules(families.__path__)}


@lru_cache(maxsize=256)  # what is missing now may be there later: errors are not remembered
def _file(id: str, name: str, local: bool) -> Path:
    if isdir(id):
        path = Path(id) / name
        path = path if path.is_file() else None
    elif HUB_ID.fullmatch(id) and len(id) <= MAX_NAME_LETTERS:
        path = import_transformers().utils.cached_file(
            id,
            name,
            local_files_only=local,
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
    else:
        path = None
    if path is None:
        raise FileNotFoundError(f"{id} has no {name}")
    return Path(path)


@lru_cache(maxsize=32)
def _find(id: str):
    """Return the family's file and the configuration of a checkpoint, or of the family if only that is named."""
    files = CheckpointFiles(id)
    known = _families()
    if not files.exist:
        if id in known:
            return import_module(known[id]), _default(id)
        if id in names():
            return None, tiny_config.with_defaults(_default(id))
        if isdir(id) or id.startswith((".", "/", "~")):
            hint = "is not a folder with a config.json, which is where a checkpoint says what it is"
            raise ValueError(f"{quote(f'hf:{id}')} {hint}")
        raise ValueError(_unknown(id))
    with _readable(f"the configuration of {quote(f'hf:{id}')}"):
        config = import_transformers().AutoConfig.from_pretrained(
            id, trust_remote_code=False, local_files_only=offline()
        )
        for place, value in tree_leaves_with_path(config.to_dict()):
            if isinstance(value, float) and isnan(value):  # it is within any bounds, and no layer finds it
                raise ValueError(f"it has nan at {keystr(place)}, expected a number")
    name = config.model_type.replace("-", "_")
    return import_module(known[name]) if name in known else None, tiny_config.with_defaults(config)


def _default(id: str):
    """Return the default configuration of a family. Raise ValueError if it has none."""
    try:
        return import_transformers().AutoConfig.for_model(id, **CHECKPOINT_ATTRIBUTES.get(id, {}))
    except Exception as error:  # whatever its own checks find wrong with it
        raise NoModel(f"{quote(f'hf:{id}')} has no configuration of its own: {reason(error)}") from error


@lru_cache(maxsize=32)
def _open_generic(id: str) -> generic_model.OpenedModel:
    """Open a model without a family file of its own. Raise ValueError if that fails."""
    _, config = _find(id)
    try:
        return (generic_model.checkpoint if CheckpointFiles(id).exist else generic_model.family)(config)
    except Exception as error:
        kind = NoModel if isinstance(error, NoModel) else ValueError
        raise kind(f"{quote(f'hf:{id}')} can't be opened: {reason(error)}") from error


def names() -> list[str]:
    """Return all families: those of transformers, by their `model_type`."""
    import_transformers()
    return list(transformers_internals.model_types())


# Published models of transformers at their published sizes: configuration, number of parameters, shapes and costs.


class ShapeLine(NamedTuple):
    r"""A tensor of a run: its symbol, its meaning, and its shape in symbols.

    Equal blocks share a line, and `blocks` has their numbers as LaTeX, `\ell = 1, 2, \ldots, 12`; "" outside of those.
    """

    symbol: str
    title: str
    symbolic: tuple[str, ...]
    blocks: str


class PublishedRun(NamedTuple):
    """A published model, run without values: the formulas of its costs, its shapes, and a sentence on where its
    equations were `verified`.

    `sizes` are those of the whole model. Of one that ran with its first blocks alone, `blocks` is their number, and
    FLOPs and activations have no formula.
    """

    scaling: Scaling
    sizes: dict[str, int]
    lines: tuple[ShapeLine, ...]
    verified: str
    params: int
    blocks: int | None


def configuration(name: str) -> Any:
    """Return the configuration of a published model. ValueError quotes an unknown name."""
    known = published_models()
    if name not in known:
        raise ValueError(f"{quote(name)} is not a published model, expected one of {', '.join(known)}")
    fields = dict(known[name].config)
    return tiny_config.with_defaults(import_transformers().AutoConfig.for_model(fields.pop("model_type"), **fields))


@lru_cache(maxsize=64)
def count(name: str) -> int:
    """Return the number of parameters of a published model, counted on its net, which is built without memory."""
    config = configuration(name)
    model_class = tiny_config.classes(config)[0]
    net: torch.nn.Module = on_meta(lambda: generic_model.tiny_net(model_class, config))
    return sum(parameter.numel() for parameter in net.parameters())


def run(name: str) -> PublishedRun:
    """Run a published model on the device `meta`, and return its shapes and the formulas of its costs."""
    config, blocks = configuration(name), published_models()[name].blocks
    depth = config.num_hidden_layers
    if blocks:
        config.num_hidden_layers = blocks
    with TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        trace = zoo.load(f"hf:{folder}", values=False).trace(values=False)
    costs, params = scaling(trace), count(name)
    if blocks:
        unknown = "?"
        costs = replace(costs, params=str(params), flops=unknown, tensors=unknown, weights=unknown, parts={})
    verified = next((note.partition("; ")[2] for note in trace.notes if note.startswith("shapes at this size; ")), "")
    sentence = f"{verified[:1].upper()}{verified[1:]}." if verified else ""
    return PublishedRun(costs, {**costs.sizes, "L": depth}, _lines(trace.steps), sentence, params, blocks)


def _lines(steps: tuple[Step, ...]) -> tuple[ShapeLine, ...]:
    """Return the shape of each line of a textbook, of blocks with equal shapes once."""
    lines, at = [], 0
    shapes = [replace(step, latex="", title="", note="") for step in steps]
    for repeat in (*repeats(shapes), None):
        end = repeat.start if repeat else len(steps)
        lines += [ShapeLine(step.symbol, step.title, step.symbolic, "") for step in steps[at:end]]
        if repeat:
            each = steps[end : end + repeat.length]
            symbols = [at_any(step.symbol, repeat.blocks[0]) for step in each]
            blocks = repeat.numbers
            lines += [
                ShapeLine(symbol, step.title, step.symbolic, blocks) for symbol, step in zip(symbols, each, strict=True)
            ]
            at = end + repeat.length * repeat.times
    return tuple(lines)
