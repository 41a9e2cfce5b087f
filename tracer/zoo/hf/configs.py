"""Configurations of transformers, and the classes that take them."""

from __future__ import annotations

import copy
import inspect
from contextlib import suppress
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from tracer.utils.transformers_internals import auto_classes
from tracer.zoo.hf import tiny_config

# Classes of transformers for a configuration, the likeliest first.

TASKS = (
    "SPEECH_SEQ_2_SEQ",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "IMAGE_TEXT_TO_TEXT",
    "MULTIMODAL_LM",
    "MASKED_LM",
    "CAUSAL_LM",
    "IMAGE_CLASSIFICATION",
    "VIDEO_CLASSIFICATION",
    "OBJECT_DETECTION",
    "ZERO_SHOT_OBJECT_DETECTION",
    "SEMANTIC_SEGMENTATION",
    "UNIVERSAL_SEGMENTATION",
    "INSTANCE_SEGMENTATION",
    "DEPTH_ESTIMATION",
    "CTC",
    "AUDIO_CLASSIFICATION",
    "TEXT_TO_WAVEFORM",
    "TIME_SERIES_PREDICTION",
    "ZERO_SHOT_IMAGE_CLASSIFICATION",
    "MASK_GENERATION",
)
"""The Auto classes with a head, in the order in which they are preferred."""
HEADLESS_CLASSES = ("MODEL", "PRETRAINING", "TEXT_ENCODING", "BACKBONE")
"""Auto classes without a head."""


def classes(config) -> list[Any]:
    """Return the classes that a configuration may be of: its own `architectures`, or else those of the Auto classes,
    then those of its own file. Raise ValueError for a class that transformers does not have."""
    package = import_module("transformers")  # which `tracer.zoo.hf.hub` has imported
    named = [getattr(package, name, None) for name in config.architectures or ()]
    if config.architectures:
        if named[0] is None:
            raise ValueError(f"its class, {config.architectures[0]!r}, is none of transformers {package.__version__}")
        return named[:1]
    tasks = (*(f"MODEL_FOR_{task}" for task in (*TASKS, *HEADLESS_CLASSES)), "MODEL")
    names = dict.fromkeys(name for task in tasks for name in auto_classes(task, config.model_type))
    loaded = (getattr(package, name, None) for name in names)
    known = dict.fromkeys([*(model for model in loaded if model is not None), *_own(config)])
    return sorted(known, key=lambda model: not isinstance(config, model.config_class or ()))  # else for a part of it


def _own(config) -> list[Any]:
    """Return the models of the files beside the configuration's file that take it."""
    folder = import_module(type(config).__module__.rpartition(".")[0])
    members = []
    for file in iter_modules(folder.__path__):
        if file.name.startswith("modeling_"):
            with suppress(ImportError):  # what it needs is not installed
                members += _models(import_module(f"{folder.__name__}.{file.name}"))
    return [model for _, model in members if model.config_class is type(config)]


def _models(module: ModuleType) -> list[tuple[str, Any]]:
    base = import_module("transformers").PreTrainedModel
    members = inspect.getmembers(module, lambda value: inspect.isclass(value) and issubclass(value, base))
    mine = [(name, model) for name, model in members if model.__module__ == module.__name__]
    return [(name, model) for name, model in mine if not name.endswith(("PreTrainedModel", "PretrainedModel"))]


# Attributes of transformers' configurations for our sizes, and how to change them.

NAMES = {
    "D": ("hidden_size", "d_model", "n_embd", "embed_dim", "dim"),
    "h": ("num_attention_heads", "n_head", "num_heads", "encoder_attention_heads"),
    "h_kv": ("num_key_value_heads",),
    "L": ("num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "depth"),
    "d_ff": ("intermediate_size", "ffn_dim", "n_inner", "encoder_ffn_dim", "d_ff"),
    "d_k": ("head_dim",),
    "V": ("vocab_size",),
    "T_max": ("max_position_embeddings", "n_positions", "max_target_positions"),
    "H": ("image_size",),
    "P": ("patch_size",),
    "C": ("num_channels",),
    "N_q": ("num_queries", "num_query_tokens", "num_detection_tokens"),
    "L_f": ("num_feature_levels",),
    "n_mel": ("num_mel_bins", "input_feat_per_channel", "num_mel_channels", "n_mels"),
    "S_a": ("max_source_positions",),
    "T_c": ("context_length", "history_len"),
    "T_p": ("prediction_length", "horizon_length"),
    "P_t": ("patch_length",),
    "s_t": ("patch_stride",),
    "m": ("num_input_channels",),
}
"""The names of our sizes in transformers."""
SIBLINGS = {
    "D": ("pooler_output_size",),
    "h": ("encoder_attention_heads", "decoder_attention_heads", "num_decoder_attention_heads"),
    "d_ff": ("encoder_ffn_dim", "decoder_ffn_dim"),
}
"""Attributes that repeat another, as of encoder and decoder: changed together if both are equal."""
OF = {
    **dict.fromkeys(("T_c", "T_p", "P_t", "s_t", "m"), ("past_values",)),
    **dict.fromkeys(("n_mel", "S_a"), ("input_features", "input_values", "spectrogram")),
    **dict.fromkeys(("N_q", "L_f"), ("pixel_values",)),
}
"""Sizes that only a model has that is given one of these: elsewhere an attribute of that name is something else."""

PARTS = {"input_ids": "text_config", "pixel_values": "vision_config", "input_features": "audio_config"}
"""The part of a configuration that is about what goes in under a name."""
TOWER = {"D_v": "D", "h_v": "h", "d_ffv": "d_ff", "L_v": "L"}
"""The sizes of a tower for photos beside a model of texts, and those that they are called like."""

DEFAULTS = {"n_inner": lambda config: 4 * config.hidden_size}
"""Defaults in the model's code for attributes that are None."""


def with_defaults(config) -> Any:
    """Return a configuration, inner ones included, with its model's defaults for missing attributes."""
    for part in tiny_config.parts(config):
        for name, default in DEFAULTS.items():
            if vars(part).get(name, 0) is None:
                setattr(part, name, default(part))
    return config


def attributes(config, architecture: type, inputs: tuple[str, ...] = tuple(PARTS)) -> dict[str, str]:
    """Return the path of each of our sizes in a configuration: its own, then those of the inner configuration for
    the first input. Inner configurations for absent inputs are left out, unless all are."""
    paths = {}
    names = [part for name, part in PARTS.items() if name in inputs] or list(PARTS.values())
    inner = [("", config), *((f"{name}.", getattr(config, name, None)) for name in names)]
    inner = [*inner[1:2], *inner] if "input_ids" in inputs else inner
    for symbol, names in NAMES.items():
        if symbol in OF and not set(OF[symbol]) & set(inputs):
            continue
        for prefix, part in inner:
            name = next((name for name in names if part is not None and number(part, name)), None)
            path = prefix + getattr(part, "attribute_map", {}).get(name, name or "")
            if name and path not in paths.values():
                paths[symbol] = path
                break
    tower: Any = getattr(config, "vision_config", None)
    if {"input_ids", "pixel_values"} <= set(inputs) and not paths.get("D", "vision").startswith("vision"):
        for symbol, like in TOWER.items():
            if name := next((name for name in NAMES[like] if number(tower, name)), ""):
                paths[symbol] = f"vision_config.{getattr(tower, 'attribute_map', {}).get(name, name)}"
    if architecture.__name__.endswith(("Classification", "Detection", "Segmentation")):
        paths["K"] = "num_labels"
    return paths


def number(part, name: str) -> int | None:
    """Return a size of a configuration; None if it has none of that name, or has it by layers only."""
    try:
        value = getattr(part, name, None)
    except Exception:  # an attribute that a configuration has by layers only
        return None
    return value if type(value) is int and value > 0 else None


def at(config, path: str) -> tuple[Any, str]:
    """Return the configuration that a path leads to, and the name of the attribute there."""
    *inner, name = path.split(".")
    for part in inner:
        config = getattr(config, part)
    return config, name


def _set_entries_per_block(config, before: int, depth: int) -> None:
    """Repeat or cut the lists with an entry for each of the `before` blocks to those of `depth` blocks, in place."""
    for name, entries in list(vars(config).items()):
        if tiny_config.has_entry_per_block(name, entries, before):
            setattr(config, name, type(entries)(entries[i % before] for i in range(depth)))


def with_sizes(config, paths: dict[str, str], sizes: dict[str, int]) -> Any:
    """Return a copy of a configuration with these sizes."""
    changed = copy.deepcopy(config)
    echoes = tiny_config.echoes(changed)
    for symbol, value in sizes.items():
        part, name = at(changed, paths[symbol])
        before = getattr(part, name)
        if before != value and tiny_config.DEPTHS.fullmatch(name):
            _set_entries_per_block(part, before, value)
        for sibling in (name, *SIBLINGS.get(symbol, ())):
            if before != value and number(part, sibling) == before:
                setattr(part, sibling, value)
    for part, name, of in echoes:
        setattr(part, name, of.hidden_size)
    tiny_config.clamp_token_ids(changed)
    return changed
