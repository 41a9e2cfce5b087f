"""Input signatures of transformers' models, by the parameter names of forward.

A `Feed` is a choice of names, with one way to make each; `feeds` lists those that a class may want, the richest first,
and the first that runs is taken.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from itertools import product, takewhile
from typing import Any, NamedTuple

import torch

from tracer.inputs.model_inputs import Inputs
from tracer.shapes.input_axes import resize
from tracer.zoo.hf.dummy.dummy_input_registry import GRIDS, WITHIN_GRIDS, makers, placeholder
from tracer.zoo.hf.dummy.dummy_inputs import size, vision_config

POSITIONAL_KINDS = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
SIZES = {"B": 1, "T": 43, "T_d": 7, "T_a": 4000, "F_a": 100, "T_f": 8}
"""Sizes that the input decides, and how large they are without anybody's wish."""


def patches(config) -> int:
    """Return the number of a photo's patches along both sides together; 0 if a configuration does not have it."""
    side, cut = (size(vision_config(config), name, default=0) for name in ("image_size", "patch_size"))
    return (side // cut) ** 2 if cut else 0


def usual(config) -> dict[str, int]:
    """Return these sizes, with a text no longer than a configuration has positions for."""
    longest = size(config, "max_position_embeddings", "n_positions", default=SIZES["T"])
    return {**SIZES, "T": min(SIZES["T"], longest)}


class Feed(NamedTuple):
    """Inputs of a forward: for each name, the chosen way to build it; the number of tokens before the text, in the
    positions of pictures and sounds, for each kind of these; and axes with other sizes than by default. With `each`
    there are as many tokens as patches of a photo."""

    ways: tuple[tuple[str, int], ...]
    places: tuple[tuple[str, int], ...] = ()
    resized_axes: tuple[tuple[str, int, int], ...] = ()
    each: bool = False

    def make(self, config, at: dict[str, int]) -> dict[str, torch.Tensor]:
        """Return the tensors by their names."""
        places = self.tokens_before_text(config)
        at = {**at, "T": at["T"] + sum(count for _, count in places)}
        tensors = {name: makers(name)[way][0](config, at) for name, way in self.ways}
        for name, axis, length in self.resized_axes:
            tensors[name] = resize(tensors[name], {axis: length})
        start = 0
        for number, (kind, count) in enumerate(places, 1):
            tensors["input_ids"][:, start : start + count] = placeholder(config, kind)
            for types in {"mm_token_type_ids", "token_type_ids"} & tensors.keys():
                tensors[types][:, start : start + count] = 0 if tensors[types].all() else number
            start += count
        return tensors

    def to_inputs(self, architecture: type, named: dict[str, torch.Tensor]) -> Inputs:
        """Return the tensors in the order of forward up to the first gap; the others by name."""
        known = parameters(architecture)
        ahead = list(takewhile(lambda name: name in named and known[name].kind in POSITIONAL_KINDS, known))
        return Inputs(tuple(named[name] for name in ahead), {}, {k: v for k, v in named.items() if k not in ahead})

    def with_text(self, ids: torch.Tensor, numbers: list[int], config) -> torch.Tensor:
        """Return the tokens of `make` with a text in their positions; placeholders elsewhere become 0."""
        places = {placeholder(config, kind) for kind, _ in self.places}
        text = torch.tensor([0 if number in places else number for number in numbers])
        before = sum(count for _, count in self.tokens_before_text(config))
        return torch.cat([ids[:, :before], text.expand(len(ids), -1)], dim=1)

    def tokens_before_text(self, config) -> list[tuple[str, int]]:
        """Return the number of tokens before the text in this configuration, by kind of placeholder."""
        return [(kind, patches(config) if self.each else count) for kind, count in self.places]

    @property
    def before(self) -> int:
        """Tokens before the text, where they were counted."""
        return sum(count for _, count in self.places)

    @property
    def symbols(self) -> tuple[str, ...]:
        """Sizes that the input decides."""
        fixed = {name for name, *_ in self.resized_axes}
        symbols = [symbol for name, way in self.ways if name not in fixed for symbol in makers(name)[way][1]]
        return tuple(dict.fromkeys(["B", *symbols]))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the inputs."""
        return tuple(name for name, _ in self.ways)

    def names_in_words(self) -> str:
        """Return the names in words."""
        return " and ".join(filter(None, [", ".join(self.names[:-1]), *self.names[-1:]])) or "nothing"


BESIDE = ("pixel_values", "pixel_values_images", "input_features", "input_values", "audio_values", "image")
"""Inputs beside a text: pictures, videos, sounds."""
TOGETHER = (
    ("input_ids", "pixel_values", "attention_mask"),
    ("input_ids", "decoder_input_ids"),
    *(("input_ids", name) for name in BESIDE),
    ("pixel_values", "decoder_input_ids"),
    ("input_features", "decoder_input_ids"),
    ("input_values", "decoder_input_ids"),
    ("hidden_states", "grid_thw"),
    ("pixel_values", "grid_thw"),
    ("pixel_values", "image_grid_thw"),
    ("pixel_values", "pixel_attention_mask", "spatial_shapes"),
    ("pixel_values", "input_boxes"),
    ("past_values", "past_observed_mask"),
    ("past_values", "past_time_features", "past_observed_mask", "future_time_features"),
    ("inputs_embeds",),
)
"""Inputs that go together, besides those that forward requires."""


PROCESSOR_OUTPUTS = {"paligemma": ("token_type_ids", 1)}
"""Outputs of a family's processor that its forward does not require."""


def parameters(architecture: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of a class's forward, by name."""
    return {
        name: parameter
        for name, parameter in inspect.signature(architecture.forward).parameters.items()
        if name != "self"
    }


def feeds(architecture: type) -> Iterator[Feed]:
    """Yield the feeds of a class, the likeliest first: a text with its companions, the required inputs and the main
    input alone, then with inputs that often accompany it."""
    known = parameters(architecture)
    required = [
        name
        for name, parameter in known.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    main = getattr(architecture, "main_input_name", "input_ids")
    main = [main] if isinstance(main, str) else list(main)
    mains = [name for name in main if name in known]
    if "input_ids" in known and "input_ids" not in mains:
        mains = [*mains, "input_ids"]
    if "input_ids" in known:
        beside = [tuple(dict.fromkeys([*required, "input_ids", name])) for name in BESIDE if name in known]
        for names in beside[:2]:
            if all(map(makers, names)):
                yield from (feed for feed in combinations_of(names) if dict(feed.ways)["input_ids"] == 0)
    wanted = []
    if "decoder_input_ids" in known:
        wanted.append([*required, *mains[:1], "decoder_input_ids"])
    wanted.append([*required, *mains[:1]])
    wanted += [[*required, name] for name in mains[1:]]
    wanted += [[*required, *some] for some in TOGETHER if all(name in known for name in some)]
    sets = [names for names in dict.fromkeys(tuple(dict.fromkeys(some)) for some in wanted) if names]
    for names in sets:
        if all(map(makers, names)):
            yield from combinations_of(names)


def combinations_of(names: tuple[str, ...]) -> list[Feed]:
    """Yield these names, each built in each of its ways, the likeliest first."""
    has_grid = any(GRIDS.fullmatch(name) for name in names)
    ways = product(
        *(
            [way for way, (maker, _) in enumerate(makers(name)) if has_grid or maker not in WITHIN_GRIDS]
            for name in names
        )
    )
    return [Feed(tuple(zip(names, some, strict=True))) for some in sorted(ways, key=sum)]
