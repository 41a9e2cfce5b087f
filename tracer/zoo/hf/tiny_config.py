"""Configurations of transformers: those that a name may mean, and small ones that build and run."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import reduce
from importlib import import_module
from math import gcd, prod
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from tracer.utils.transformers_internals import auto_classes

# A small configuration of any model of transformers: its own, with widths divided and few blocks.

HEAD = 8
"""Width of a head that is aimed at: models turn pairs and quarters of it."""
BLOCKS, MAX_BLOCKS, VOCABULARY, MAX_TOKENS, EXPERTS, GRID, QUERIES = 2, 6, 320, 128, 4, 4, 12
"""Blocks, blocks where these are of several kinds, tokens of the vocabulary, tokens of the longest text, experts,
patches along a photo's side, and boxes that a detector looks for."""

DEPTHS = re.compile(
    r"(num|n|encoder|decoder|text|vision)?_?(num_)?(hidden|encoder|decoder|text|vision|entity|attention)?_?"
    r"(layers?|blocks|depth)"
)
WIDTHS = re.compile(
    r"(.*_)?(hidden_size|intermediate_size|d_model|d_ff|d_kv|d_inner|n_embd|n_inner|ffn_dim|embed_dim|dim|size|width|"
    r"channels|rank|features|head_dim|ffn|hidden|sizes|dims|channel_list|section|d_head|dim_head|planes|filters)(_per_.*)?"
)
HEADS = re.compile(r".*(heads?|num_key_value_heads)")
HEAD_WIDTHS = re.compile(r".*(head_dim|d_kv|d_head|dim_head|head_size)|kv_lora_rank|q_lora_rank")
KEPT_NAMES = re.compile(
    r".*(image|patch|vocab|kernel|window|chunk|block|codebook|grid|pool(?!er)|stride|batch|group|tile|tubelet|crop|merge|"
    r"spectrogram|fft|sampling|context|input|num_channels|in_channels|in_chans|audio_channels|memory_size|type_).*"
)
"""Names that end like a width and are none."""
SIDE = 64
"""Side of a photo that is cut into no patches, or a whole multiple of it."""
MIN_WIDTH = 32
"""Smaller numbers are not widths that are worth dividing."""
WIDTH, COUNT = ("hidden_size", "embed_dim", "d_model"), ("num_attention_heads", "num_heads")
"""Names of the width and of the number of heads."""
FILLED_LEVEL = 5
"""The level that also says the sizes of parts that a configuration leaves open."""
GENTLE_LEVEL, GENTLE_DIVISOR = 6, 4
"""The level that divides all widths by few, and by how many, so that what is dealt out to groups still is."""
STAGES_LEVEL = 7
"""The level that is `FILLED_LEVEL` and has a backbone give the features of all its stages, where only those of the last
are asked for."""
LEVELS = (0, FILLED_LEVEL, STAGES_LEVEL, 1, GENTLE_LEVEL, 2, 3, 4)
"""The ways to make a configuration small, in the order in which they are tried."""
OPEN_SIZES = {
    r"(n|num)(_routed|_local)?_experts": 4,
    r"n(um)?_shared_experts": 1,
    r".*experts_per_tok|top_k_experts": 2,
    r"(moe|expert)_intermediate_size": 64,
    r"(n|topk)_group|num_expert_group": 1,
    r"(prediction|context)_length": 24,
    r"(q|kv)_lora_rank|head_dim|sliding_window": 16,
    r"(image|audio)_token_(id|index)": 1,
}
"""By their names, sizes that some configurations leave open."""


def parts(config) -> Iterator:
    """Yield a configuration and those within it."""
    yield config
    for name, value in list(vars(config).items()):
        if not name.startswith("_") and hasattr(value, "to_dict") and hasattr(value, "model_type"):
            yield from parts(value)


def read(config, name: str) -> Any:
    """Return an attribute of a configuration; None if it has none, or has it by layers only."""
    try:
        return getattr(config, name, None)
    except Exception:  # the library's own, of any kind
        return None


def small(config, level: int = 0) -> Any:
    """Return a copy of a configuration whose net is built in a second on a laptop, the smallest at level 0.

    Higher levels are for models whose sizes depend on each other in other ways: 1 has fewer heads instead of narrower
    ones, 2 keeps the number of blocks and the photo, 3 keeps all but the number of blocks, 4 everything; `FILLED_LEVEL`
    is 0 with the sizes of `OPEN_SIZES`, `STAGES_LEVEL` also with all stages of a backbone, `GENTLE_LEVEL` is 0 with
    widths that stay larger.
    """
    shrunk = copy.deepcopy(config)
    if level == 4:
        return shrunk
    if level in (FILLED_LEVEL, STAGES_LEVEL):
        for part in parts(shrunk):
            if level == STAGES_LEVEL:
                _output_all_stages(part)
            for name, value in list(vars(part).items()):
                if value is None:
                    _set_value(part, name, _small_value(part, name, shrunk))
    requested_level, level = level, 0 if level in (FILLED_LEVEL, STAGES_LEVEL, GENTLE_LEVEL) else level
    divisor = 1 if level == 3 else max(map(_divisor, parts(shrunk)))
    divisor = GENTLE_DIVISOR if requested_level == GENTLE_LEVEL else divisor
    heads = [width for width in map(_head, parts(shrunk)) if width % 4 == 0]
    while (
        level == 0 and requested_level != GENTLE_LEVEL and divisor > 1 and any(width % (4 * divisor) for width in heads)
    ):
        divisor //= 2
    for part in parts(shrunk):
        _shrink(part, divisor, level, 1 if requested_level == 0 else MAX_BLOCKS)
        if requested_level in (FILLED_LEVEL, STAGES_LEVEL, GENTLE_LEVEL):
            _set_rotary_angles(part)
    clamp_token_ids(shrunk)
    return shrunk


def _set_rotary_angles(config) -> None:
    """Set, where a configuration does not, the angles by which each kind of block rotates its heads, and the division
    of a head's pairs among time, height and width; as many heads as divide the width."""
    width, heads = getattr(config, "hidden_size", None), getattr(config, "num_attention_heads", None)
    if isinstance(width, int) and isinstance(heads, int) and heads and width % heads:
        config.num_attention_heads = gcd(width, heads)
    rope, kinds, head = getattr(config, "rope_parameters", None), getattr(config, "layer_types", None), _head(config)
    if rope == {} and kinds:
        config.rope_parameters = {kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in kinds}
    elif isinstance(rope, dict) and head and "mrope_section" not in rope:
        pairs = int(head * rope.get("partial_rotary_factor", 1)) // 2
        third = (pairs + 1) // 3  # of height and width, which some models deal out in turns
        rope["mrope_section"] = [third, third, pairs - 2 * third]


def _output_all_stages(config) -> None:
    """Make a backbone return the features of all its stages, and its model accept them at the backbone's width."""
    stages = [name for name in getattr(config, "stage_names", None) or () if name != "stem"]
    if stages and len(getattr(config, "out_features", None) or ()) == 1:
        config.out_features = stages
    width = vars(vars(config).get("backbone_config") or config).get("hidden_size")
    if isinstance(width, int) and "hidden_size" in vars(config):
        config.hidden_size = width


def echoes(config) -> list[tuple]:
    """Return attributes that repeat the width of another part, each as a part, the attribute, and that other part: the
    width that photos and texts project to where the texts have none themselves, and the width that texts attend to."""
    text, vision = (getattr(config, name, None) for name in ("text_config", "vision_config"))
    named = [("projection_dim", text)] * (not hasattr(text, "projection_dim")) + [("encoder_hidden_size", vision)]
    return [
        (part, name, of)
        for part in parts(config)
        for name, of in named
        if of is not None and getattr(part, name, None) == getattr(of, "hidden_size", part)
    ]


def clamp_token_ids(config) -> None:
    """Clamp the numbers of special tokens below the size of the vocabulary, in place."""
    counts = [part.vocab_size for part in parts(config) if isinstance(getattr(part, "vocab_size", None), int)]
    least, place = min(counts, default=0), 0
    for part in parts(config) if least > 1 else ():
        for name, value in list(vars(part).items()):
            if not re.fullmatch(r".*_(token|tok)_?(id|index|ids)|.*token_id", name):
                continue
            if isinstance(value, int) and not isinstance(value, bool) and value >= least:
                place += 1
                setattr(part, name, max(0, least - 1 - place % max(1, least // 2)))
            elif isinstance(value, list) and any(isinstance(item, int) and item >= least for item in value):
                setattr(part, name, [min(item, least - 1) for item in value])


def _head(config) -> int:
    """Return the width of a head; 0 if a configuration does not have it."""
    try:
        known: dict[str, Any] = {name: getattr(config, name, None) for name in ("head_dim", *WIDTH, *COUNT)}
    except Exception:  # a configuration that has them by layers only
        return 0
    width = next((known[name] for name in WIDTH if type(known[name]) is int), 0)
    heads = next((known[name] for name in COUNT if type(known[name]) is int), 0)
    return known["head_dim"] if type(known["head_dim"]) is int else width // heads if heads else 0


def _divisor(config) -> int:
    """Return the divisor of widths: the power of two that leaves a head `HEAD` numbers, or 1."""
    try:
        width, heads, head = (
            getattr(config, name, None) for name in ("hidden_size", "num_attention_heads", "head_dim")
        )
        section = (getattr(config, "rope_parameters", None) or {}).get("mrope_section") or ()
    except Exception:  # a configuration that has them by layers only
        return 1
    if not isinstance(width, int):
        return 1
    if not (isinstance(heads, int) and heads):
        return 8 if width >= 512 else 1
    head = head if isinstance(head, int) else width // heads
    divisor = 1 << max(0, (head // HEAD).bit_length() - 1)
    return min(divisor, *(part & -part for part in section)) if section else divisor


def _shrink(config, divisor: int, level: int, most: int) -> None:
    """Shrink one configuration in place to `BLOCKS` blocks, or, up to `most`, to one of every kind at least."""
    known, depth = dict(vars(config)), _depth(config)
    kinds = [value for value in known.values() if isinstance(value, (list, tuple)) and len(value) == depth > 0]
    firsts = [value.index(item) + 1 for value in kinds for item in value if isinstance(item, str)]
    blocks = max([BLOCKS, *(first for first in firsts if first <= most)])
    for name, value in known.items():
        if name == "vocab_size" and value is None:  # a configuration that waits for its tokenizer
            config.vocab_size = VOCABULARY
        if name.startswith("_") or isinstance(value, bool) or value is None:
            continue
        new = _small(name, value, divisor, depth, blocks, level, known)
        if new is not value and new != value:
            try:
                setattr(config, name, new)
            except Exception:  # a property, or a check of the configuration: it stays as it was
                continue


def _depth(config) -> int:
    """Return the number of blocks of one configuration; 0 if it has none."""
    return next((size for name, size in vars(config).items() if DEPTHS.fullmatch(name) and type(size) is int), 0)


def has_entry_per_block(name: str, value: Any, depth: int) -> bool:
    """Return whether an attribute is a list with an entry for each of the `depth` blocks, such as their kinds."""
    listed = isinstance(value, (list, tuple)) and len(value) == depth > 0
    return listed and (isinstance(value[0], str) or "layer" in name)


def _small(name: str, value, divisor: int, depth: int, blocks: int, level: int, known: dict):
    photos = level < 2
    if isinstance(value, int):
        if DEPTHS.fullmatch(name):
            return min(value, blocks) if level != 2 else value
        if level == 1 and HEADS.fullmatch(name):
            return max(1, value // divisor)
        if level == 1 and HEAD_WIDTHS.fullmatch(name):
            return value
        if "vocab" in name:
            return min(value, VOCABULARY)
        if re.fullmatch(
            r".*((max|n)_(position_embeddings|(source_|target_)?positions|length|text_length)|max_seq_len.*)", name
        ):
            return min(value, MAX_TOKENS)
        if name.endswith("shared_layers") and level != 2:
            return 0
        if name == "num_queries":
            return min(value, QUERIES)
        if name.endswith("intermediate_size") and value % divisor and value > MIN_WIDTH * divisor:
            return value // divisor // 8 * 8
        if re.fullmatch(r".*(num_experts|num_local_experts|n_routed_experts|expert_num)", name):
            return min(value, EXPERTS)
        if re.fullmatch(r".*(experts_per_tok.*|topk_group|n_group|moe_k|moe_topk|num_expert_group)", name):
            return min(value, 1 if "group" in name else 2)
        if name == "image_size" and photos and isinstance(known.get("patch_size"), int) and known["patch_size"] > 7:
            return min(value, GRID * known["patch_size"])
        if name == "image_size" and photos and value > 2 * SIDE:
            return max(SIDE, value // 4 // SIDE * SIDE)
        if WIDTHS.fullmatch(name) and not KEPT_NAMES.fullmatch(name) and value >= MIN_WIDTH and value % divisor == 0:
            return value // divisor
        return value
    if isinstance(value, (list, tuple)) and value:
        whole = all(type(item) is int for item in value)
        if whole and name == "depths" and level != 2:
            return type(value)(min(item, 1) for item in value)
        if level != 2 and has_entry_per_block(name, value, depth):
            return type(value)(value[:blocks])
        if whole and WIDTHS.fullmatch(name) and not KEPT_NAMES.fullmatch(name):
            fits = min(value) >= 2 * divisor and all(item % divisor == 0 for item in value)
            return type(value)(item // divisor for item in value) if fits else value
    if isinstance(value, dict) and "mrope_section" in value and level != 1:
        section = value["mrope_section"]
        return {**value, "mrope_section": [item // divisor for item in section]} if prod(section) else value
    return value


# Defaults for attributes that a configuration of transformers leaves open, where its model does not run without them.
#
# Some families are configurations without all numbers: those stand in their checkpoints. What a number usually equals
# is known by its name, and by the type that a configuration declares for it; else it is taken from another part that
# has it, or is a small one. What was said may still not be what was missed: then the next kind of knowledge is tried.

MAX_ROUNDS = 8
"""Times that one configuration is completed."""
ABSENT = re.compile(r"'(\w+)' object has no attribute '(\w+)'")
TUPLE = 'can only concatenate list (not "tuple")'
DEFAULT_VALUES: dict[str, tuple[str, ...] | float] = {
    r".*dropout.*|.*drop_rate": 0.0,
    r".*rope_theta": 10000.0,
    r"(.*_)?clip(_.*)?": 8.0,
    r"num_key_value_heads": ("num_attention_heads", "decoder_num_attention_heads", "num_heads"),
    r".*intermediate_size": ("intermediate_size",),
    r".*_act(ivation)?(_fn)?": ("hidden_act", "hidden_activation", "activation_function"),
    r".*_eps(ilon)?": ("rms_norm_eps", "layer_norm_eps", "norm_eps"),
}
"""The usual value of a number by the form of its name: names of other attributes, or a value."""
KINDS = {"mlp_layer_types": ("dense", "sparse"), "layer_types": ("full_attention",)}
"""The kinds of blocks, the first ones first, where a list of them is left open."""


def fill_missing(config, error: Exception | None = None) -> bool:
    """Set, in place, what a model likely lacks that can't be built, for this reason, or does not run; return whether
    there was anything to set."""
    if error is not None and TUPLE in str(error):
        listed = [_use_lists(part) for part in parts(config)]
        return any(listed)
    if error is not None and (absent := absent_attribute(config, error)):
        part, name = absent
        return any(_set_value(part, name, value) for value in (known(part, name, config) for known in VALUE_SOURCES))
    if error is not None and "None" not in str(error):
        return False
    for known in VALUE_SOURCES:
        open_ = [(part, name) for part in parts(config) for name, value in vars(part).items() if value is None]
        changes = [
            _set_value(part, name, known(part, name, config)) for part, name in open_ if not name.startswith("_")
        ]
        if any(changes):
            return True
    return False


def absent_attribute(config, error: Exception) -> tuple[object, str] | None:
    """Return the part of a configuration, and the attribute that it lacks, according to `error`; None if it is another
    error."""
    match = ABSENT.search(str(error))
    part = next((part for part in parts(config) if match and type(part).__name__ == match[1]), None)
    return (part, match[2]) if match and part is not None else None


def _use_lists(part) -> bool:
    """Replace the tuples of a configuration by lists, as in one that comes from a file."""
    tuples = {name: value for name, value in vars(part).items() if isinstance(value, tuple)}
    for name, value in tuples.items():
        setattr(part, name, list(value))
    return bool(tuples)


def _set_value(part, name: str, value) -> bool:
    if value is None:
        return False
    setattr(part, name, value)
    return True


def _usual(part, name: str, config):
    """Return the usual value of a number, by its name."""
    kinds, depth = next((kinds for end, kinds in KINDS.items() if name.endswith(end)), ()), _depth(part)
    if kinds and depth:
        return [kinds[min(number, len(kinds) - 1)] for number in range(depth)]
    usual = next((known for form, known in DEFAULT_VALUES.items() if re.fullmatch(form, name)), ())
    if isinstance(usual, float):
        return usual
    if name.startswith("default_"):
        return next(iter(getattr(part, f"{name.removeprefix('default_')}s", None) or ()), None)
    return next((value for attribute in usual if (value := getattr(part, attribute, None)) is not None), None)


def _empty(part, name: str, config):
    """Return an empty value of the type that a configuration declares."""
    kinds = (vars(kind).get("__annotations__", {}) for kind in type(part).__mro__)
    declared = next((str(annotations[name]) for annotations in kinds if name in annotations), "")
    return [] if re.match(r"list\b", declared) else {} if re.match(r"dict\b", declared) else None


def _elsewhere(part, name: str, config):
    """Return the value in another part."""
    values = (getattr(inner, name, None) for inner in parts(config) if inner is not part)
    return next((value for value in values if value is not None and not hasattr(value, "to_dict")), None)


def _small_value(part, name: str, config):
    """Return a small number."""
    return next((size for form, size in OPEN_SIZES.items() if re.fullmatch(form, name)), None)


VALUE_SOURCES: tuple[Callable, ...] = (_usual, _empty, _elsewhere, _small_value)
"""The kinds of knowledge, in the order in which they are tried."""


# Classes of transformers for a configuration, the likeliest first.

TASKS = (
    "SPEECH_SEQ_2_SEQ SEQ_TO_SEQ_CAUSAL_LM IMAGE_TEXT_TO_TEXT MULTIMODAL_LM MASKED_LM CAUSAL_LM IMAGE_CLASSIFICATION "
    "VIDEO_CLASSIFICATION OBJECT_DETECTION ZERO_SHOT_OBJECT_DETECTION SEMANTIC_SEGMENTATION UNIVERSAL_SEGMENTATION "
    "INSTANCE_SEGMENTATION DEPTH_ESTIMATION CTC AUDIO_CLASSIFICATION TEXT_TO_WAVEFORM TIME_SERIES_PREDICTION "
    "ZERO_SHOT_IMAGE_CLASSIFICATION MASK_GENERATION"
).split()
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
    for part in parts(config):
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
    value = read(part, name)
    return value if type(value) is int and value > 0 else None


def at(config, path: str) -> tuple[Any, str]:
    """Return the configuration that a path leads to, and the name of the attribute there."""
    *inner, name = path.split(".")
    return reduce(getattr, inner, config), name


def _set_entries_per_block(config, before: int, depth: int) -> None:
    """Repeat or cut the lists with an entry for each of the `before` blocks to those of `depth` blocks, in place."""
    for name, entries in list(vars(config).items()):
        if has_entry_per_block(name, entries, before):
            setattr(config, name, type(entries)(entries[i % before] for i in range(depth)))


def with_sizes(config, paths: dict[str, str], sizes: dict[str, int]) -> Any:
    """Return a copy of a configuration with these sizes."""
    changed = copy.deepcopy(config)
    copies = echoes(changed)
    for symbol, value in sizes.items():
        part, name = at(changed, paths[symbol])
        before = getattr(part, name)
        if before != value and DEPTHS.fullmatch(name):
            _set_entries_per_block(part, before, value)
        for sibling in (name, *SIBLINGS.get(symbol, ())):
            if before != value and number(part, sibling) == before:
                setattr(part, sibling, value)
    for part, name, of in copies:
        setattr(part, name, of.hidden_size)
    clamp_token_ids(changed)
    return changed
