"""A model of transformers without a file of its own: its inputs, its sizes and its answer, found by trying."""

from __future__ import annotations

import copy
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from tracer.inputs.model_inputs import Inputs
from tracer.record import Segment
from tracer.shapes import Vocabulary
from tracer.shapes.probes import named_axes
from tracer.shapes.variation import valueless_mode
from tracer.spec.blocks import Past
from tracer.spec.decoding import HINTS, T_PAST, past_hints, prepare
from tracer.spec.preparation import photo_input
from tracer.spec.results import class_probabilities, embedding, tensors_by_name, token_names
from tracer.spec.spec import Spec, build_seeded
from tracer.symbols.notation import parse
from tracer.tracing import SINGLE_TOWER
from tracer.utils.errors import quote, reason
from tracer.utils.torch_internals import DispatchMode, disable_dispatch_modes, tree_map_only
from tracer.utils.torch_state import seeded_draws
from tracer.utils.transformers_internals import build_from_config, has_auto_class, supports_sdpa
from tracer.zoo import NoModel, generic_vision
from tracer.zoo.hf import dummy_inputs, spec_builders, tiny_config
from tracer.zoo.hf.spec_builders import (
    ATTENTION,
    OUTPUT_HINTS,
    SENTENCES,
    STREAM,
    UNUSED_PREFIX,
    configure_valueless,
    decode_next_tokens,
    each_place,
    labels,
    tokenize,
    without_cache,
)
from tracer.zoo.hf.tiny_config import at as placed
from tracer.zoo.hf.tiny_config import attributes, with_sizes
from tracer.zoo.user_factory import SizeGroup, group, library_ways, valueless

# Opening of a configuration of transformers: its class, its smallest size that runs, and its inputs.

MAX_PARAMETERS = 350_000_000
"""Parameters of a net that is built to see what its forward takes."""
CLASSES, MAX_RESIZED = 3, 6
"""Classes of a configuration that are tried, and how many of the nets that did not run get inputs of other sizes."""


class OpenedModel(NamedTuple):
    """An opened configuration: its class, the configuration as built, the feed of forward, whether it is a small
    one, the implementations of attention, the tokens before the patches (`spec_builders.patches_start`),
    whether its positions fit photos of any size, and the modules of the photo tower and of the text model."""

    architecture: Any
    config: Any
    feed: dummy_inputs.Feed
    small: bool = False
    attentions: tuple[str, ...] = ()
    start: int | None = None
    resizes: bool = False
    towers: tuple[str, ...] = ()


def family(config) -> OpenedModel:
    """Return a small model of a family. Raise ValueError if none runs."""
    known = tiny_config.classes(config)
    if not known:
        raise NoModel(f"transformers has no model for {quote(config.model_type)}, only its configuration")
    try:
        return _first([(architecture, _part(config, architecture)) for architecture in known[:CLASSES]])
    except ValueError as error:
        if isinstance(error, NoModel) or has_auto_class(config.model_type):
            raise
        raise NoModel(f"no Auto class opens {quote(config.model_type)}, and it does not run alone: {error}") from error


def _part(config, architecture: Any):
    """Return the inner configuration that a class takes; the whole one if there is none."""
    return next(
        (part for part in tiny_config.parts(config) if isinstance(part, architecture.config_class or ())), config
    )


def checkpoint(config) -> OpenedModel:
    """Return the model of a checkpoint's configuration; its inputs are searched on a small copy of it."""
    opened = _first([(architecture, config) for architecture in tiny_config.classes(config)[:CLASSES]])
    return opened._replace(config=config, small=False)


def _first(candidates: list[tuple[Any, object]]) -> OpenedModel:
    """Return the first class that runs at a small configuration of it. Raise ValueError if none does."""
    reasons: dict[type, str] = {}
    tried: dict[Any, list[dict]] = {architecture: [] for architecture, _ in candidates}
    fit = [
        (architecture, config)
        for architecture, config in candidates
        if next(dummy_inputs.feeds(architecture), None) is not None
    ]
    unfed: list[tuple[Any, object]] = []
    for level in tiny_config.LEVELS if fit else ():
        for architecture, config in fit:
            try:
                less = tiny_config.small(config, level)
                if (known := less.to_dict()) in tried[architecture]:
                    continue
                tried[architecture].append(known)
                built = _build(architecture, less)
                unfed.append((architecture, less))
                return _describe(architecture, less, *_build_and_feed(architecture, less, built))
            except TooManyParameters as error:
                reasons.setdefault(architecture, str(error))
            except Exception as error:  # a net that is none, or a configuration that has its sizes by layers
                if level == tiny_config.FILLED_LEVEL and architecture in reasons:
                    continue
                reasons[architecture] = reason(error) if isinstance(error, ValueError) else _unbuilt(less, error)
    for architecture, less in unfed[:MAX_RESIZED]:
        with suppress(ValueError):  # what was said of it before is what it is about
            built = _build(architecture, less)
            return _describe(architecture, less, built, dummy_inputs.find_inputs(built, less, resize=True))
    if not fit:
        architecture, _ = candidates[0]
        if architecture.forward is torch.nn.Module.forward:
            raise NoModel(f"{architecture.__name__} has no forward of its own, expected a model that can be run")
        takes = ", ".join(dummy_inputs.parameters(architecture))
        raise ValueError(
            f"the forward of {architecture.__name__} takes {takes}, expected a text, photo or sound among them"
        )
    architecture, _ = fit[0]
    raise ValueError(f"no {architecture.__name__} runs here, neither a small one nor its own: {reasons[architecture]}")


def _build(architecture: type, config) -> torch.nn.Module:
    """Build the net of a configuration, and fill in the attributes that its code reads as None."""
    for _ in range(tiny_config.MAX_ROUNDS):
        try:
            return _build_within_limit(architecture, config)
        except (AttributeError, TypeError) as error:  # None, or nothing, in the place of a number
            if not tiny_config.fill_missing(config, error):
                raise
    return _build_within_limit(architecture, config)


def _build_and_feed(architecture: type, config, built: torch.nn.Module) -> tuple[torch.nn.Module, dummy_inputs.Feed]:
    """Return the net and its feed, rebuilt if its code reads attributes that its configuration lacks."""
    for _ in range(tiny_config.MAX_ROUNDS):
        try:
            return built, dummy_inputs.find_inputs(built, config)
        except dummy_inputs.NoInputsFound as unfed:
            if unfed.error is None or not tiny_config.fill_missing(config):
                raise
            built = _build(architecture, config)
    return built, dummy_inputs.find_inputs(built, config)


def _unbuilt(config, error: Exception) -> str:
    """Return why a net can't be built, in a sentence where its code raises one of Python's own errors."""
    if isinstance(error, ImportError):
        return f"it needs what is not installed: {reason(error)}"
    if absent := tiny_config.absent_attribute(config, error):
        return f"it can't be built, since the family's own configuration leaves {quote(absent[1])} open"
    return f"it can't be built: {type(error).__name__}: {reason(error)}"


class TooManyParameters(ValueError):
    """Error for a net that is too large to be built only to inspect its forward."""


def _build_within_limit(architecture: type, config) -> torch.nn.Module:
    """Build the net of a configuration. Raise `TooManyParameters` before memory is allocated if it has more than
    `MAX_PARAMETERS`: it is built on `meta` first."""
    count, mine = 0, get_ident()

    def check_count(module, name, parameter) -> None:
        nonlocal count
        if get_ident() == mine and parameter is not None:
            count += parameter.numel()
            if count > MAX_PARAMETERS:
                raise TooManyParameters(
                    f"it has more than {MAX_PARAMETERS:,} parameters at the smallest sizes that were found"
                )

    counting = register_module_parameter_registration_hook(check_count)
    try:
        with torch.device("meta"), suppress(RuntimeError, NotImplementedError):  # some read numbers as they are built
            tiny_net(architecture, config)
    finally:
        counting.remove()
    with _Middle():
        return tiny_net(architecture, config)


class _Middle(DispatchMode):
    """A mode that draws normal numbers evenly within a standard deviation: truncated ones are drawn again and again
    until none is cut off, which takes most of the time of building a large net."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is not torch.ops.aten.normal_.default:
            return func(*args, **(kwargs or {}))
        mean = args[1] if len(args) > 1 else 0.0
        deviation = args[2] if len(args) > 2 else 1.0
        return args[0].uniform_(mean - deviation, mean + deviation, **(kwargs or {}))


def _describe(architecture: type, config, built: torch.nn.Module, feed: dummy_inputs.Feed) -> OpenedModel:
    feed = feed._replace(ways=(*feed.ways, *filter(None, [dummy_inputs.PROCESSOR_OUTPUTS.get(config.model_type)])))
    start = spec_builders.patches_start(built, config, feed)
    resizes = any(map(spec_builders.resizes, built.modules()))
    attentions = ATTENTION if supports_sdpa(built) else ()  # that all parts support, the library's own choice first
    return OpenedModel(architecture, config, feed, True, attentions, start, resizes, _towers(built))


def _towers(built: torch.nn.Module) -> tuple[str, ...]:
    """Return the outermost modules that take the inner configurations for photos and texts."""
    inner = [getattr(built.config, name, None) for name in ("vision_config", "text_config")]
    named = [(path, getattr(module, "config", None)) for path, module in built.named_modules()]
    paths = [next((path for path, config in named if config is inner_config is not None), "") for inner_config in inner]
    return tuple(paths) if all(paths) else ()


def tiny_net(architecture: Any, config, attention: str | None = None) -> torch.nn.Module:
    config = copy.deepcopy(config)
    without_cache(config)
    if architecture.__name__.endswith("SequenceClassification") and getattr(config, "pad_token_id", 0) is None:
        config.pad_token_id = 0  # what fills short texts up, which a classifier of several texts must know
    with seeded_draws(0):
        return build_from_config(architecture, config, attention).eval()


# Decoders of transformers that read tokens after a cache of keys and values.
#
# The library's cache is an object that grows in place. Here keys and values are inputs and outputs, so that each is a
# tensor of the run, and the same run can be made again.

WRITERS = ("CausalLM", "LMHeadModel")
"""Ends of the names of classes that write text."""


class ReadsFromCache:
    """Forward of a decoder that takes new tokens, `[B, T]`, and the keys and values of those before, `past`.

    It returns the logits `[B, T, V]`, and the keys and values of all tokens, `[B, h, T_past + T, d_k]` for each block.
    """

    config: Any

    def forward(self, tokens: torch.Tensor, past: Past) -> tuple[torch.Tensor, Past]:
        """Run the decoder with a cache of the library that holds `past`."""
        cache = open_cache(self.config, past)
        run: Any = super()
        output = run.forward(input_ids=tokens, past_key_values=cache, use_cache=True)
        return output.logits, tuple((layer.keys, layer.values) for layer in output.past_key_values.layers)


def open_cache(config: Any, past: Past) -> Any:
    """Return a cache of transformers with these keys and values; an empty one for none.

    A layer whose mask is a sliding window caches all tokens, too: the mask closes those outside. Raise ValueError for
    a decoder with layers of another kind, such as states.
    """
    from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer  # not a requirement

    for layer in DynamicCache(config=config).layers:
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
            raise ValueError(f"its cache has layers of the kind {quote(type(layer).__name__)}, not of keys and values")
    cache = DynamicCache()
    for keys, values in past:
        layer = DynamicLayer()
        layer.dtype, layer.device, layer.is_initialized = keys.dtype, keys.device, True
        layer.keys, layer.values = keys, values
        cache.layers.append(layer)
    return cache


def with_cache(tokenizer: Any, model: Any) -> Any:
    """Return a model of transformers that reads the last tokens of a text after a cache of the others.

    Raise ValueError in one sentence for a model that does not write, or keeps no such cache.
    """
    kind, spec = type(model.net), model.spec
    if not kind.__name__.endswith(WRITERS) or spec.takes != ("text",):
        raise ValueError(f"{quote(model.name)} writes no text, so it keeps no cache of keys and values")
    net = copy.copy(model.net)  # it shares its parts
    net.__class__ = type(f"{kind.__name__}FromCache", (ReadsFromCache, kind), {})
    try:
        with torch.no_grad():
            blocks = len(net(torch.zeros(1, 1, dtype=torch.long, device=model.device), ())[1])
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{quote(model.name)} can't read from a cache: {reason(error)}") from error

    def ways(model: Any, inputs: Inputs, recording) -> Any:
        axes = {"B": 0, "T": ("tokens", 1), T_PAST: ("past.*", 2)}
        return named_axes(model.net, recording, axes, None)[1]

    fields: dict[str, Any] = {
        "hints": (*spec.hints, *HINTS, *past_hints(blocks)),
        "runs": ("B", "T", T_PAST),
        "derived": {},
        "prepare": partial(prepare, spec.prepare),
        "ways": ways,
        "result": lambda model, inputs, output: decode_next_tokens(model, inputs, {"logits": output[0]}, tokenizer),
    }
    return replace(model, net=net, spec=replace(spec, **fields, decoder=None), _solutions={})


MAX_REAL_PARAMETERS = 70_000_000
"""Parameters up to which a net is run at other sizes as it is; larger ones are run without values."""

WIDTHS = SizeGroup(
    ("D", "h", "h_kv"),
    (
        ((96, 224, 192, 400, 384), (6, 4, 8, 10, 12), (3, 2, 2, 5, 4)),
        ((96, 224, 192, 400, 384), (6, 4, 8, 10, 12), (6, 4, 8, 10, 12)),
        ((72, 80, 112, 140, 96), (6, 4, 8, 10, 12), (3, 2, 2, 5, 4)),
        ((112, 96, 240, 256, 480), (4, 8, 12, 16, 20), (4, 8, 12, 16, 20)),
    ),
)
"""First heads of which a quarter can be turned in pairs, no two of one width."""
TOWER = SizeGroup(
    ("D_v", "h_v"),
    (((66, 14, 30, 55, 84), (6, 2, 3, 5, 4)), ((48, 160, 288, 320, 120), (3, 5, 9, 4, 6))),
)
TEXT_GROUPS = (
    group("B", (3, 5, 2, 7, 4), (1, 1, 1, 1, 1)),
    group("T", (11, 17, 23, 29, 19), (16, 32, 48, 64, 24)),
    group("T_d", (13, 9, 21, 15, 27)),
    group("T_a", (3000, 5500, 4321, 6400, 7003)),
    group("d_ff", (31, 37, 43, 53, 62), (64, 96, 128, 160, 192)),
    group("V", (83, 89, 97, 101, 107)),
    group("T_max", (59, 47, 53, 61, 67)),
    group("d_k", (12, 20, 14, 26, 10), (16, 32, 48, 64, 24)),
    group("C", (2, 5, 4, 6, 7)),
    group("K", (14, 18, 26, 34, 38)),
    group("F_a", (110, 87, 141, 122, 96), (128, 192, 320, 256, 160)),
    group("n_mel", (70, 52, 94, 46, 86), (64, 48, 96, 80, 112)),
    group("S_a", (71, 86, 93, 52, 64)),
    group("d_ffv", (26, 29, 41, 47, 58)),
    group("N_q", (17, 28, 22, 39, 32)),
    group("T_c", (68, 75, 104, 90, 121), (96, 64, 128, 160, 192)),
    group("T_p", (39, 33, 12, 20, 28)),
    group("P_t", (4, 6, 3, 5, 8)),
    group("s_t", (3, 2, 4, 6, 5)),
    group("m", (2, 5, 3, 6, 4)),
)


def spec(opened: OpenedModel, files) -> Spec:
    """Return everything that is known of an undescribed model, and of the photos that its preprocessor prepares."""
    architecture, config, feed = opened.architecture, opened.config, opened.feed
    if opened.resizes and files.side and files.side % config.patch_size == 0:
        config = copy.deepcopy(config)
        config.image_size = files.side
    paths = attributes(config, architecture, feed.names)
    sizes = {symbol: getattr(*placed(config, path)) for symbol, path in paths.items()}
    shaped = "H" in paths
    height, width = dummy_inputs.side(config, {})
    sides = {"H": height, "W": width} if "H" in feed.symbols and not shaped else {}
    runs = tuple(symbol for symbol in feed.symbols if symbol not in ("H", "W") or not shaped)
    known = {"W": "H"} if shaped and "W" not in sides else {}
    known |= {"N": "H**2/P**2"} if shaped and "P" in paths and not sizes["H"] % sizes["P"] else {}
    known |= {"N": "floor((T_c - P_t)/s_t) + 1"} if {"T_c", "P_t", "s_t"} <= paths.keys() else {}
    known |= {"d_v": "D_v/h_v"} if {"D_v", "h_v"} <= paths.keys() else {}
    known |= {"S": "N + T"} if "N" in known and feed.each else {}
    known |= {"d_k": "D/h"} if "d_k" not in paths and {"D", "h"} <= paths.keys() and not sizes["D"] % sizes["h"] else {}
    ratio = getattr(config, "mlp_ratio", None)
    if {"D", "L"} <= paths.keys() and "d_ff" not in paths and not hasattr(config, "depths") and ratio:
        known |= {"d_ff": f"{int(ratio)}*D"} if ratio == int(ratio) else {}
    start = opened.start if "N" in known else None
    located = "N" in known and (start is not None or feed.each)
    fixed = {name for name, *_ in feed.resized_axes}  # what a net wants in one length only is not a text of the user's
    takes = tuple(kind for kind, names in KINDS.items() if set(names) & set(feed.names) - fixed)

    towers = opened.towers if "L_v" in paths else ()

    def net(*, attention: str | None = None, **at: int) -> torch.nn.Module:
        return tiny_net(architecture, with_sizes(config, paths, at), attention)

    def tensors_at(at: dict) -> dict[str, torch.Tensor]:
        known = with_sizes(config, paths, {symbol: at[symbol] for symbol in paths if symbol in at})
        return feed.make(known, {**dummy_inputs.SIZES, **at})

    def inputs_at(at: dict) -> Inputs:
        return feed.to_inputs(architecture, tensors_at(at))

    def prepare(model, image, text, dummy) -> Inputs:
        at = {**{symbol: {**dummy_inputs.SIZES, **sides}[symbol] for symbol in runs}, **dummy}
        numbers, words = None, ()
        if "text" in takes:
            model = _readable(model, config)
            numbers, words = tokenize(files.tokenizer, model, text, dummy)
            at["T"] = len(numbers)
        named = tensors_at({**model.sizes, **at})
        if numbers and named["input_ids"].dim() == 2:
            named |= {"input_ids": feed.with_text(named["input_ids"], numbers, config)}
        extras: dict[str, Any] = {}
        if "image" in takes and (photo_inputs := _with_photo(model, image, named, at)) is not None:
            named |= photo_inputs.named
            extras = {"photo": photo_inputs.photo, "crop": photo_inputs.crop} if located else {}
        ordered = feed.to_inputs(architecture, named)
        return replace(ordered, sizes=at, words=words, segments=segments({**model.sizes, **at}), **extras)

    def segments(at: dict) -> tuple[Segment, ...]:
        if located:
            N, (tower, texts), part = (at["H"] // at["P"]) ** 2, towers or ("", ""), dummy_inputs.vision_config(config)
            stream = (("image", 0, N), ("text", N, N + at["T"])) if feed.each else ()
            registers = min(start or 0, tiny_config.number(part, "num_register_tokens") or 0)
            inside = generic_vision.leading_segments(start, registers, N, tower) if start is not None else ()
            return (*inside, *(Segment(name, first, end, texts) for name, first, end in stream))
        return (Segment("text", 0, at["T"]),) if takes == ("text",) and "decoder_input_ids" not in feed.names else ()

    def ways(model, inputs, recording):
        base = {**model.sizes, **inputs.sizes}
        light = sum(parameter.numel() for parameter in model.net.parameters()) <= MAX_REAL_PARAMETERS
        mode = None if light else valueless_mode()

        def empty(at: dict) -> torch.nn.Module:
            with disable_dispatch_modes(), torch.device("meta"):
                built = net(**{symbol: at[symbol] for symbol in paths}, **model.options)
            if model.valueless:
                configure_valueless(built)
            return model.intervene(built)

        def on_meta(at: dict) -> tuple:
            dummy = inputs_at(at)
            return empty(at), *tree_map_only(
                torch.Tensor, lambda tensor: tensor.to("meta"), (dummy.tensors, dummy.named)
            )

        def build(at: dict) -> tuple:
            dummy = inputs_at(at)
            if light:
                own = {symbol: at[symbol] for symbol in paths}
                seeded = model.intervene(build_seeded(net, {**own, **model.options}))
                return seeded, dummy.tensors, dummy.named
            return valueless(empty(at), mode, model.device), dummy.tensors, dummy.named

        groups = [tensor for tensor in TEXT_GROUPS if tensor.symbols[0] in base]
        wide = [symbol for symbol in WIDTHS.symbols if symbol in base]
        alike = base.get("h") == base.get("h_kv")  # where kernels have other parts than with shared heads
        choices = dict.fromkeys(tensor[: len(wide)] for tensor in WIDTHS.choices if not alike or tensor[1] == tensor[2])
        if wide == list(WIDTHS.symbols[: len(wide)]) and len(wide) > 1:
            groups.append(SizeGroup(tuple(wide), tuple(choices)))
        groups += [TOWER] if {*TOWER.symbols} <= base.keys() else []
        if shaped and "P" in base:
            whole = tuple(base["P"] * times for times in (2, 3, 5, 6, 7))
            larger = tuple(base["H"] * times for times in (2, 3, 9, 4, 6))
            square = ((35, 33, 14, 42, 44), (5, 3, 2, 7, 4))
            groups.append(SizeGroup(("H", "P"), (square, (whole, (base["P"],) * 5), (larger, (base["P"],) * 5))))
        elif shaped:
            groups.append(group("H", (64, 160, 96, 256, 128), tuple(base["H"] * times for times in (2, 3, 4, 6, 5))))
        elif sides:
            groups.append(generic_vision.sides(base["H"], base["W"]))
        derived = {name: text for name, text in known.items() if name in model.spec.derived}
        names = tuple(name for name in ORDER if name in {**base, **derived} or {*name} & {*"/+*"})
        names = tuple(name for name in names if {*map(str, parse(name).free_symbols)} <= {*base, *derived})
        full = Vocabulary(names, derived, build, (lambda: mode) if mode else None, device=model.device)
        yield from library_ways(model, recording, base, groups, on_meta, full)
        if model.valueless:
            return
        axes: dict[str, Any] = {"B": 0}
        long = "input_ids" if "input_ids" in feed.names else feed.names[0]
        if "T" in runs and recording.inputs[long].dim() == 2:
            axes["T"] = (long, 1)
        try:
            yield from named_axes(model.net, recording, axes, None)[1]
        except ValueError:  # inputs of several batches, such as patches of all photos one under the other
            return

    return Spec(
        net=net,
        whole=False,
        takes=takes,
        samples="photos" if "image" in takes else "",
        sizes=sizes,
        runs=runs,
        options={"attention": opened.attentions} if opened.attentions else {},
        derived=known,
        names=(),
        probes=(),
        example=inputs_at,
        prepare=prepare,
        result=_answers(architecture, files.tokenizer, feed.before),
        segments=segments,
        hints=OUTPUT_HINTS + STREAM * bool(feed.places) + SENTENCES * (getattr(config, "type_vocab_size", 0) == 2),
        ways=ways,
        decoder=partial(with_cache, files.tokenizer),
        spell=partial(spell, files.tokenizer),
        parts=dict(zip(towers, ("L_v", "L"), strict=True)) if towers else dict(SINGLE_TOWER),
        configure_valueless=configure_valueless,
    )


def resize_positions(net: torch.nn.Module, sizes: dict[str, int]) -> str:
    """Resize the position embeddings of a checkpoint, in place, to the grid of photos of side H, by the net's own
    function, which would otherwise do so in every run. Return a note, in a few words, where they had another size."""
    H, P, remark = sizes.get("H", 0), sizes.get("P", 1), ""
    for inner in net.modules():
        if spec_builders.resizes(inner) and net.config.image_size != H and H:
            with torch.no_grad():
                table = inner.position_embeddings
                grid = table.new_empty(1, (H // P) ** 2 + 1, table.shape[-1])
                inner.position_embeddings = torch.nn.Parameter(inner.interpolate_pos_encoding(grid, H, H).clone())
            remark = f", its position embeddings resized to {H // P} × {H // P} patches"
    if remark:
        net.config.image_size = H
    return remark


ORDER = (
    *"B T T_d T_a F_a T_c T_p m D N N+1 S S+1 D_v H W H/P h_v d_v d_ffv h h_kv h/h_kv d_k d_k/2 d_k/4 d_ff V".split(),
    *"T_max P C K N_q S_a n_mel P_t s_t C*P**2".split(),
)
"""Letters of a dimension, in order of preference."""
KINDS = {"image": ("pixel_values", "pixel_values_videos"), "text": ("input_ids",)}


def _readable(model, config):
    """Return the model with a vocabulary for texts: at least that of its configuration, else bytes."""
    if "V" in model.sizes:
        return model
    readable = copy.copy(model)
    readable.sizes = {**model.sizes, "V": dummy_inputs.vocabulary(config)}
    return readable


def _with_photo(model, image, named: dict, at: dict) -> Inputs | None:
    """Return the photo as `pixel_values`; the same one in every frame, shifted a little each time. None for inputs
    of another form, whose numbers stay."""
    name = next(name for name in KINDS["image"] if name in named)
    like = named[name]
    if like.dim() < 3 or (like.dim() == 3 and not {"H", "P"} <= at.keys()):
        return None
    channels = like.shape[1] if like.dim() == 4 else min(like.shape[1:3])
    sizes = {**at, "H": like.shape[-2], "W": like.shape[-1], "C": channels}
    if like.dim() == 3:
        sizes |= {"H": at["H"], "W": at["H"], "C": like.shape[-1] // at["P"] ** 2}
    photo_inputs = photo_input(generic_vision.PhotoSizes(model.card), image, None, sizes)
    pixels = dummy_inputs.cut(photo_inputs[0], at["P"]) if like.dim() == 3 else photo_inputs[0]
    if like.dim() == 5:
        first = like.shape[2] == channels  # frames before channels
        pixels = generic_vision.shifted_frames(
            pixels, like.shape[1] if first else like.shape[2], axis=1 if first else 2
        )
    return replace(photo_inputs, named={name: pixels}) if pixels.shape == like.shape else None


def spell(tokenizer, model, numbers) -> list[str]:
    """Return the texts of tokens; without a tokenizer, their ids."""
    return [tokenizer.decode([number]) for number in numbers] if tokenizer else token_names(model, numbers)


def _answers(architecture: type, tokenizer, before: int):
    """Return `result` by the name of the class and the form of its logits; `before` tokens precede the text."""
    name = architecture.__name__

    def result(model, inputs, output) -> dict:
        values = output.values() if hasattr(output, "get") else ()
        first = next((x for x in values if isinstance(x, torch.Tensor)), None)
        lacks = list((model.card or {}).get("lacks", ()))
        if name.endswith("Model") and isinstance(output.get("last_hidden_state"), torch.Tensor):
            lacks = [missing for missing in lacks if UNUSED_PREFIX not in missing]
        if lacks:
            return {"kind": "none", "lacks": lacks}
        if first is not None and first is output.get("last_hidden_state") and first.dim() == 3:
            return embedding(model, inputs, output)
        if first is None or first is not output.get("logits"):
            return tensors_by_name(model, inputs, output)
        logits = first
        if logits.dim() == 2 and name.endswith("Classification") and logits.shape[-1] == model.sizes.get("K"):
            return class_probabilities(model, inputs, logits)
        if logits.dim() == 3 and inputs.words and logits.shape[1] == before + len(inputs.words):
            if name.endswith(("CausalLM", "LMHeadModel", "ConditionalGeneration")):
                return decode_next_tokens(model, inputs, output, tokenizer)
            if name.endswith("MaskedLM"):
                return each_place(model, inputs, output, tokenizer)
            if name.endswith("TokenClassification") and (model.card or {}).get("classes"):
                return labels(model, inputs, output, tokenizer)
        return tensors_by_name(model, inputs, output)

    return result
