"""A model of transformers without a file of its own: its inputs, its sizes and its answer, found by trying."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from tracer.inputs.model_inputs import Inputs
from tracer.models.shared.predictions import class_probabilities, tensors_by_name, token_names
from tracer.models.shared.preparation.to_tensors import photo_input
from tracer.models.shared.spec import Spec, build_seeded
from tracer.record import Segment
from tracer.shapes import Vocabulary
from tracer.shapes.input_axes import named_axes
from tracer.shapes.shadow_module import OnMeta, valueless_mode
from tracer.symbols.notation import parse
from tracer.tracing import SINGLE_TOWER
from tracer.utils.internals.torch_internals import disable_dispatch_modes, tree_map_only
from tracer.zoo.find_probe_sizes import SizeGroup, find_probe_sizes, group, same_shapes, valueless
from tracer.zoo.hf import patch_positions
from tracer.zoo.hf.cached_decoding import with_cache
from tracer.zoo.hf.config_attributes import at as placed
from tracer.zoo.hf.config_attributes import attributes, with_sizes
from tracer.zoo.hf.dummy import build_and_probe, dummy_inputs, input_signatures
from tracer.zoo.hf.dummy.build_and_probe import OpenedModel
from tracer.zoo.hf.output_heads import (
    HINTS,
    SENTENCES,
    STREAM,
    UNUSED_PREFIX,
    decode_next_tokens,
    each_place,
    labels,
    vectors,
)
from tracer.zoo.hf.spec_builders import configure_valueless, tokenize
from tracer.zoo.vision import generic_vision

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
        return build_and_probe.net(architecture, with_sizes(config, paths, at), attention)

    def tensors_at(at: dict) -> dict[str, torch.Tensor]:
        known = with_sizes(config, paths, {symbol: at[symbol] for symbol in paths if symbol in at})
        return feed.make(known, {**input_signatures.SIZES, **at})

    def inputs_at(at: dict) -> Inputs:
        return feed.to_inputs(architecture, tensors_at(at))

    def prepare(model, image, text, dummy) -> Inputs:
        at = {**{symbol: {**input_signatures.SIZES, **sides}[symbol] for symbol in runs}, **dummy}
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
            inside = patch_positions.segments_of(start, part, N, tower) if start is not None else ()
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
        plain = Vocabulary(names, derived, on_meta, OnMeta)  # the cheaper one, but some ops are others there
        if model.valueless or same_shapes(recording, plain, base):
            yield from find_probe_sizes(recording, plain, base, groups)
        if model.valueless:
            return
        vocabulary = Vocabulary(names, derived, build, (lambda: mode) if mode else None, device=model.device)
        yield from find_probe_sizes(recording, vocabulary, base, groups)
        axes: dict[str, Any] = {"B": 0}
        long = "input_ids" if "input_ids" in feed.names else feed.names[0]
        if "T" in runs and recording.inputs[long].dim() == 2:
            axes["T"] = (long, 1)
        try:
            yield from named_axes(model.net, inputs.tensors, inputs.named, recording, axes, None)[1]
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
        hints=HINTS + STREAM * bool(feed.places) + SENTENCES * (getattr(config, "type_vocab_size", 0) == 2),
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
        if patch_positions.resizes(inner) and net.config.image_size != H and H:
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
            return vectors(model, inputs, output, tokenizer)
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
