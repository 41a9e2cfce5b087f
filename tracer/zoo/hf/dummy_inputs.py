"""Inputs guessed for a model from the signature of its forward."""

from __future__ import annotations

import inspect
import re
from collections import deque
from collections.abc import Callable, Iterator
from itertools import product, takewhile
from math import prod
from typing import Any, NamedTuple

import torch

from tracer.inputs.model_inputs import Inputs
from tracer.shapes.probes import resize
from tracer.utils.errors import reason
from tracer.utils.torch_state import seeded_draws
from tracer.zoo.hf.tiny_config import parts, read

# Tensors that a forward of transformers may take: one function for each, of a configuration and sizes.

RATE = 16_000
"""Sounds per second, in numbers."""


def size(config, *names: str, default: int) -> int:
    """Return the first whole number of these names in a configuration or an inner one; of a pair the first."""
    for part in parts(config):
        for name in names:
            value = read(part, name)
            value = value[0] if isinstance(value, (list, tuple)) and value else value
            if type(value) is int and value > 0:
                return value
    return default


def vocabulary(config) -> int:
    """Return the size of the smallest vocabulary."""
    counts = [read(part, "vocab_size") for part in parts(config)]
    return min((count for count in counts if type(count) is int and count > 1), default=256)


def chirp(config, at: dict[str, int]) -> torch.Tensor:
    """Return a rising tone `[B, T_a]`, a sound that needs no file."""
    time = torch.arange(at["T_a"]) / RATE
    return (torch.sin(2 * torch.pi * (220 + 660 * time) * time) * 0.5).expand(at["B"], -1).contiguous()


def waves(*shape: int) -> torch.Tensor:
    """Return numbers of any shape that oscillate along the last axis, each row with another phase."""
    count = torch.arange(torch.Size(shape).numel(), dtype=torch.float32)
    return torch.sin(count * 0.37).reshape(shape)


def tokens(length: str) -> Callable:
    def make(config, at) -> torch.Tensor:
        row = (torch.arange(at[length]) * 7 + 5) % (vocabulary(config) - 4) + 2
        return row.expand(at["B"], -1).contiguous()

    return make


def side(config, at) -> tuple[int, int]:
    """Return height and width of the photo that a configuration expects; whole windows of whole patches, where it
    specifies the number of windows."""
    length = at.get("H") or size(config, "image_size", "img_size", "max_img_size", "input_size", default=64)
    windows = size(config, "num_windows", default=1)
    if windows > 1 and (step := windows * size(config, "patch_size", default=1)) <= length:
        length = length // step * step
    for part in parts(config):
        pair = read(part, "image_size")
        if isinstance(pair, (list, tuple)) and len(pair) == 2:
            return at.get("H") or pair[0], at.get("W") or pair[1]
    return length, at.get("W") or length


def channels(config) -> int:
    return size(config, "num_channels", "in_channels", "in_chans", default=3)


def photo(config, at) -> torch.Tensor:
    return waves(at["B"], channels(config), *side(config, at))


def video(config, at) -> torch.Tensor:
    frames = size(config, "num_frames", "frames_per_clip", default=at["T_f"])
    return waves(at["B"], frames, channels(config), *side(config, at))


def frames_of_channels(config, at) -> torch.Tensor:
    return video(config, at).transpose(1, 2).contiguous()


def _bins(config) -> int:
    names = "num_mel_bins input_feat_size input_feat_per_channel feature_projection_input_dim num_mel_channels n_mels"
    return size(config, *names.split(), "feature_size", "input_dim", "mel_bins", "input_size", default=80)


def _own(config, name: str) -> int:
    """Return the input length of a configuration. Raise ValueError if it has none."""
    if not (width := size(config, name, default=0)):
        raise ValueError(f"a configuration without {name}: its sounds may be of any length")
    return width


def spectrum_by_bin(config, at) -> torch.Tensor:
    return waves(at["B"], _bins(config), at["F_a"])


def spectrum_by_time(config, at) -> torch.Tensor:
    return waves(at["B"], at["F_a"], _bins(config))


def whole_spectrum_by_bin(config, at) -> torch.Tensor:
    return waves(at["B"], _bins(config), 2 * _own(config, "max_source_positions"))


def whole_spectrum_by_time(config, at) -> torch.Tensor:
    return waves(at["B"], _own(config, "max_length"), _bins(config))


def spectrum_pictures(config, at) -> torch.Tensor:
    return waves(at["B"], 1, size(config, "spec_size", default=64), _bins(config))


def sound_of_one_channel(config, at) -> torch.Tensor:
    return chirp(config, at)[:, None].expand(-1, size(config, "audio_channels", default=1), -1).contiguous()


def past(config, at) -> tuple[int, int]:
    lags = max(read(config, "lags_sequence") or [0])
    return size(config, "context_length", "history_len", default=64) + lags, size(
        config, "num_input_channels", default=1
    )


def series(config, at) -> torch.Tensor:
    return waves(at["B"], past(config, at)[0])


def series_of_channels(config, at) -> torch.Tensor:
    return waves(at["B"], *past(config, at))


def features(symbol: str, *names: str, default: int = 64) -> Callable:
    """Return vectors `[B, length, width]`."""

    def make(config, at) -> torch.Tensor:
        return waves(at["B"], at[symbol], size(config, *names, default=default))

    return make


def series_features(ahead: bool) -> Callable:
    def make(config, at) -> torch.Tensor:
        length = size(config, "prediction_length", default=24) if ahead else past(config, at)[0]
        return waves(at["B"], length, read(config, "num_time_features") or 0)

    return make


def _patches(config, at) -> tuple[int, int]:
    """Return the rows and columns of patches of a photo that is already cut: four of the smallest merged groups."""
    merge = size(config, "spatial_merge_size", "merge_size", default=1)
    return 4 * merge, 4 * merge


def cut_photo(config, at) -> torch.Tensor:
    """Return patches one below the other, `[N, C·t·P²]`, the form in which a photo enters models that take any
    shape."""
    rows, columns = _patches(config, at)
    patch, time = size(config, "patch_size", default=14), size(config, "temporal_patch_size", default=1)
    return waves(at["B"] * rows * columns, channels(config) * time * patch * patch)


def cut(pixels: torch.Tensor, P: int) -> torch.Tensor:
    """Return pixels `[B, C, H, W]` as flat patches `[B, N, P²C]`, the channels last."""
    rows = pixels.unfold(2, P, P).unfold(3, P, P)  # [B, C, H/P, W/P, P, P]
    return rows.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2).contiguous()


def vision_config(config) -> Any:
    """Return the part of a configuration for photos."""
    return getattr(config, "vision_config", None) or config


def photo_in_patches(config, at) -> torch.Tensor:
    """Return a photo of the configuration's size, cropped by `cut`. Raise ValueError if it has no size."""
    H, P = (read(config, name) for name in ("image_size", "patch_size"))
    if type(H) is type(P) is int and not H % P:
        return cut(photo(config, at), P)
    raise ValueError("a configuration without image_size and patch_size: its patches may be any number")


def cut_photo_in_batches(config, at) -> torch.Tensor:
    return cut_photo(config, {**at, "B": 1}).expand(at["B"], -1, -1).contiguous()


def pictures_of_patches(config, at) -> torch.Tensor:
    """Return patches as small pictures, `[N, C, P, P]`."""
    rows, columns = _patches(config, at)
    patch = size(config, "patch_size", default=14)
    return waves(at["B"] * rows * columns, channels(config), patch, patch)


def pictures_of_merged(config, at) -> torch.Tensor:
    """Return that many small pictures, each of the patches that become one token, the channels last."""
    rows, columns = _patches(config, at)
    side = size(config, "patch_size", default=14) * size(config, "spatial_merge_size", "merge_size", default=1)
    return waves(at["B"] * rows * columns, side, side, channels(config))


def grid(config, at) -> torch.Tensor:
    return torch.tensor([[1, *_patches(config, at)]] * at["B"])


def grid_of_two(config, at) -> torch.Tensor:
    return torch.tensor([list(_patches(config, at))] * at["B"])


def grid_places(config, at) -> torch.Tensor:
    """Return the row and column of each patch, `[B, N, 2]`."""
    rows, columns = _patches(config, at)
    cells = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
    return cells.expand(at["B"], -1, -1).contiguous()


def merge_sizes(config, at) -> torch.Tensor:
    return torch.tensor([size(config, "spatial_merge_size", "merge_size", default=1)] * at["B"])


def pair_of_photos(config, at) -> torch.Tensor:
    return torch.stack([photo(config, at), photo(config, at).roll(3, dims=-1)], dim=1)


def boxes(config, at) -> torch.Tensor:
    corners = torch.arange(at["T"])[:, None] % 8 + torch.tensor([0, 0, 9, 9])
    return corners.expand(at["B"], -1, -1).contiguous()


def ones(length: str) -> Callable:
    return lambda config, at: torch.ones(at["B"], at[length], dtype=torch.long)


def whole_photo(config, at) -> torch.Tensor:
    return torch.ones(at["B"], *side(config, at), dtype=torch.long)


def codes(config, at) -> torch.Tensor:
    books = size(config, "num_codebooks", "num_quantizers", "n_codes_total", "num_channels", default=4)
    return torch.ones(at["B"], books, at["T"], dtype=torch.long)


def codes_last(config, at) -> torch.Tensor:
    return codes(config, at).transpose(1, 2).contiguous()


def zeros(length: str) -> Callable:
    return lambda config, at: torch.zeros(at["B"], at[length], dtype=torch.long)


def places(config, at) -> torch.Tensor:
    """Return 0, 1, 2 … `[B, T]`."""
    return torch.arange(at["T"]).expand(at["B"], -1).contiguous()


def latents(config, at) -> torch.Tensor:
    return waves(at["B"], size(config, "latent_dim", "decoder_hidden_size", *WIDTH, default=64), at["T"])


def flat_patches(config, at) -> torch.Tensor:
    """Return patches as rows of numbers, before them their row and column: `[B, 16, 2 + C·P²]`."""
    return waves(at["B"], 16, 2 + channels(config) * size(config, "patch_size", default=16) ** 2)


# A registry of dummy inputs for transformers' models, by parameter name.

TEXT, SOUND, SPECTRUM, PHOTO = ("T",), ("T_a",), ("F_a",), ("H", "W")
WIDTH = ("hidden_size", "d_model", "dim", "embed_dim")
MAKERS: dict[str, tuple[tuple[Callable, tuple[str, ...]], ...]] = {
    "input_ids": ((tokens("T"), TEXT), (codes, TEXT), (codes_last, TEXT)),
    "decoder_input_ids": ((tokens("T_d"), ("T_d",)),),
    "attention_mask": ((ones("T"), TEXT),),
    "pixel_values": (
        (photo, PHOTO),
        (video, PHOTO),
        (photo_in_patches, ()),
        (cut_photo, ()),
        (cut_photo_in_batches, ()),
        (frames_of_channels, PHOTO),
        (pair_of_photos, PHOTO),
        (pictures_of_patches, ()),
        (pictures_of_merged, ()),
    ),
    "pixel_values_videos": ((video, PHOTO), (frames_of_channels, PHOTO)),
    "pixel_mask": ((whole_photo, PHOTO),),
    "input_features": (
        (spectrum_by_bin, SPECTRUM),
        (whole_spectrum_by_bin, ()),
        (spectrum_by_time, SPECTRUM),
        (whole_spectrum_by_time, ()),
        (spectrum_pictures, ()),
        (features("T", *WIDTH), TEXT),
    ),
    "input_values": (
        (chirp, SOUND),
        (sound_of_one_channel, SOUND),
        (spectrum_by_time, SPECTRUM),
        (whole_spectrum_by_time, ()),
        (spectrum_by_bin, SPECTRUM),
        (whole_spectrum_by_bin, ()),
    ),
    "input_features_mask": ((ones("F_a"), SPECTRUM),),
    "feature_attention_mask": ((ones("F_a"), SPECTRUM),),
    "feature_lens": ((lambda config, at: torch.tensor([at["F_a"]] * at["B"]), SPECTRUM),),
    "padding_mask": ((ones("T_a"), ()),),
    "audio_values": ((sound_of_one_channel, SOUND), (chirp, SOUND)),
    "spectrogram": ((features("T", "model_in_dim", "num_mel_bins", default=80), TEXT),),
    "past_values": ((series, ()), (series_of_channels, ())),
    "past_time_features": ((series_features(ahead=False), ()),),
    "future_time_features": ((series_features(ahead=True), ()),),
    "past_observed_mask": (
        (lambda config, at: torch.ones(at["B"], past(config, at)[0]), ()),
        (lambda config, at: torch.ones(at["B"], *past(config, at)), ()),
    ),
    "freq": ((lambda config, at: torch.zeros(at["B"], 1, dtype=torch.long), ()),),
    "inputs_embeds": ((features("T", *WIDTH), TEXT),),
    "decoder_inputs_embeds": ((features("T_d", *WIDTH), ("T_d",)),),
    "hidden_states": ((features("T", *WIDTH), TEXT), (cut_photo, ())),
    "encoder_hidden_states": ((features("T", *WIDTH), TEXT), (features("T", "encoder_hidden_size"), TEXT)),
    "query_embeds": ((features("T", *WIDTH), TEXT),),
    "grid_thw": ((grid, ()),),
    "image_grid_thw": ((grid, ()),),
    "spatial_shapes": ((grid_of_two, ()),),
    "target_sizes": ((grid_of_two, ()),),
    "merge_sizes": ((merge_sizes, ()),),
    "image_merge_sizes": ((merge_sizes, ()),),
    "pixel_position_ids": ((grid_places, ()),),
    "image_position_ids": ((grid_places, ()),),
    "image_attention_mask": ((lambda config, at: torch.ones(at["B"], at["T"], at["T_f"], dtype=torch.long), TEXT),),
    "visual_feats": ((features("T", "visual_feat_dim"), TEXT),),
    "visual_pos": ((features("T", "visual_pos_dim"), TEXT),),
    "pixel_attention_mask": ((whole_photo, PHOTO), (lambda config, at: torch.ones(at["B"], 16, dtype=torch.long), ())),
    "bbox": ((boxes, TEXT),),
    "bool_masked_pos": ((lambda config, at: None, ()),),
    "flattened_patches": ((flat_patches, ()),),
    "inputs": ((tokens("T"), TEXT), (features("T", "d_model"), TEXT)),
    "mm_token_type_ids": ((zeros("T"), TEXT),),
    "token_type_ids": ((zeros("T"), TEXT), (ones("T"), TEXT)),
    "labels": ((tokens("T_d"), ("T_d",)),),
    "return_loss": ((lambda config, at: False, ()),),
    "states": ((features("T", "state_dim", default=17), TEXT),),
    "actions": ((features("T", "act_dim", default=4), TEXT),),
    "rewards": ((features("T", default=1), TEXT),),
    "returns_to_go": ((features("T", default=1), TEXT),),
    "timesteps": ((places, TEXT),),
    "task_inputs": ((tokens("T"), TEXT),),
    "input_boxes": (
        (lambda config, at: torch.tensor([[[1.0, 1.0, 9.0, 9.0]]]).expand(at["B"], -1, -1).contiguous(), ()),
    ),
    "prompt_pixel_values": ((photo, PHOTO),),
    "prompt_masks": ((photo, PHOTO),),
    "qformer_input_ids": ((tokens("T"), TEXT),),
    "audio_codes": ((codes, TEXT),),
    "latents": ((latents, TEXT),),
    "position_ids": ((places, TEXT),),
}
"""By the name of what forward takes: ways to make it, each with the symbols of the sizes that the input decides."""

GRIDS = re.compile(r".*(grid|shapes).*")
"""Inputs with the layout of a photo's patches."""
WITHIN_GRIDS = (pictures_of_patches, pictures_of_merged)
"""Ways to make a photo that are for those to whom that is said."""
KINDS = ("image", "video", "audio")
"""Inputs that replace placeholder tokens of a text."""
NAME_ALIASES = (
    (r"(.*_)?mel_mask", "input_features_mask"),
    (r".*_mel(_features)?|mel_.*", "input_features"),
    (r".*_mask|mask", "attention_mask"),
    (r"(pixel_values|images?)(_.*)?", "pixel_values"),
    (r".*grid_thw", "grid_thw"),
    (r".*input_ids", "input_ids"),
    (r".*_ids", "token_type_ids"),
    (r".*(hidden_states?|embeds|embeddings?|_states|vectors|features|_cond)|x", "hidden_states"),
)
"""Names that are made as others are: those of the same form."""


def makers(name: str) -> tuple[tuple[Callable, tuple[str, ...]], ...]:
    """Return the makers of an input of this name; none if no entry matches."""
    if name in MAKERS:
        return MAKERS[name]
    like = next((like for form, like in NAME_ALIASES if re.fullmatch(form, name)), None)
    return MAKERS[like] if like else ()


def placeholder(config, kind: str) -> int | None:
    """Return the number of the placeholder token of a picture, a video or a sound; None if the configuration has
    none."""
    for part in parts(config):
        for name in (f"{kind}_token_id", f"{kind}_token_index", f"{kind}_token"):
            if type(number := read(part, name)) is int:
                return number
    return None


# Input signatures of transformers' models, by the parameter names of forward.
#
# A `Feed` is a choice of names, with one way to make each; `feeds` lists those that a class may want, the richest
# first, and the first that runs is taken.

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


# Inputs at the sizes that a net expects, read from its error messages where the first ones don't fit.

MAX_AXIS = 16384
"""Numbers along an axis that are given."""


def resize_inputs(feed: Feed, config, message: str) -> Iterator[Feed]:
    """Return the feed with one axis resized as an error message asks; if no axis has the size in the message, the
    last axis in proportion."""
    known = _shapes(feed, config)
    for name, *_ in feed.resized_axes:
        known.pop(name, None)  # one size is tried of each
    size_error = next(((match, wanted) for form, wanted in SIZE_ERRORS if (match := form.search(message))), None)
    if size_error is None:
        return
    match, wanted = size_error
    groups = [tuple(map(int, NUMBER.findall(part))) for part in match.groups()]
    changes = [
        (name, axis % len(shape), expected)
        for axis, size, expected in wanted(*groups)
        for name, shape in known.items()
        if len(shape) > 1 and -len(shape) <= axis < len(shape) and shape[axis] == size != expected
    ]
    if not changes and wanted is _matmul_axes:
        (_, came), (expected, _) = groups
        changes = [
            (name, len(shape) - 1, shape[-1] * expected // came)
            for name, shape in known.items()
            if len(shape) > 1 and not came % shape[-1] and not shape[-1] * expected % came
        ]
    for name, axis, size in dict.fromkeys(changes):
        if 0 < size <= MAX_AXIS:
            yield feed._replace(resized_axes=(*feed.resized_axes, (name, axis, size)))


def enlarge(feed: Feed, config, message: str) -> Iterator[Feed]:
    """Return the feed with the input of highest rank twice as large, if a net reports it as too small: along the
    last axis, or both sides of a photo."""
    shapes = _shapes(feed, config) if any(form in message for form in SMALL_INPUT_ERRORS) else {}
    name = max(shapes, key=lambda input_name: len(shapes[input_name]), default="")
    shape = shapes.get(name, torch.Size())
    larger = [(name, axis, 2 * shape[axis]) for axis in range(len(shape))][-2 if len(shape) > 3 else -1 :]
    if len(shape) > 1 and max(size for *_, size in larger) <= MAX_AXIS:
        remaining = [
            input_name for input_name in feed.resized_axes if input_name[:2] not in [each[:2] for each in larger]
        ]
        yield feed._replace(resized_axes=(*remaining, *larger))


def _shapes(feed: Feed, config) -> dict[str, torch.Size]:
    inputs = feed.make(config, usual(config))
    return {name: tensor.shape for name, tensor in inputs.items() if isinstance(tensor, torch.Tensor)}


def _matmul_axes(left: tuple, right: tuple) -> list[tuple[int, int, int]]:
    return [(-1, left[1], right[0])]


def _channels(came: tuple, expected: tuple, shape: tuple) -> list[tuple[int, int, int]]:
    return [(1, shape[0], expected[0]), (-1, shape[0], expected[0])]


def _met_by(left: tuple, right: tuple, axis: tuple) -> list[tuple[int, int, int]]:
    return [(place, a, b) for place in (axis[0], -1) for a, b in ((left[0], right[0]), (right[0], left[0]))]


def _cat_axes(along: tuple, left: tuple, right: tuple) -> list[tuple[int, int, int]]:
    return [(axis, a, b) for axis in (-2, -1) for a, b in ((left[0], right[0]), (right[0], left[0]))]


def _mask_axes(mask: tuple, place: tuple, indexed: tuple) -> list[tuple[int, int, int]]:
    return [(place[0], mask[place[0]], indexed[place[0]])]


def _view_axes(shape: tuple, count: tuple) -> list[tuple[int, int, int]]:
    """Return an axis as long as one row of the new shape, or the next multiple of it."""
    row = prod(size for size in shape if size > 0)
    sizes = [count[0] // rows for rows in range(1, MAX_AXIS) if not count[0] % rows] if row else []
    return [(-1, size, -(-size // row) * row) for size in sizes if size % row]


def _whole(length: tuple, unit: tuple) -> list[tuple[int, int, int]]:
    return [(-1, length[0], -(-length[0] // unit[0]) * unit[0])]


NUMBER = re.compile(r"-?\d+")
SMALL_INPUT_ERRORS = (
    "size is too small",
    "is too small to be",
    "can't be greater than actual input size",
    "index k out of range",
)
"""Error messages for inputs that are too small to be filtered, pooled, or chosen from."""
SIZE_ERRORS = (
    (re.compile(r"shapes cannot be multiplied \((\d+x\d+) and (\d+x\d+)\)"), _matmul_axes),
    (re.compile(r"expected input(\[.*?\]) to have (\d+) channels, but got (\d+)"), _channels),
    (re.compile(r"tensor a \((\d+)\) must match .* tensor b \((\d+)\) at non-singleton dimension (\d+)"), _met_by),
    (re.compile(r"shape of the mask (\[.*?\]) at index (\d+) .* indexed tensor (\[.*?\])"), _mask_axes),
    (re.compile(r"shape '(\[.*?\])' is invalid for input of size (\d+)"), _view_axes),
    (re.compile(r"must match except in dimension (\d+)\. Expected size (\d+) but got size (\d+)"), _cat_axes),
    (re.compile(r"length (\d+) is not a multiple of (\d+)"), _whole),
)
"""Error messages with an expected size, and a function to (axis, its size, the expected size) triples."""


# Search for inputs with which a net runs: inputs that its errors name as missing are added.
#
# A forward that misses an input says so by its name, in the number of tokens that a picture takes, or by meeting None
# in the place of what one of its parameters, or of those of its modules, would have been: then each of these is tried.

MAX_FEEDS = 24
"""Feeds that are tried of one net."""
MAX_TOKENS = 4096
"""Tokens that may stand in the place of a picture."""
TOKEN_COUNTS = re.compile(r"tokens:?\s*(?:tensor\()?\(?(\d+)\D+?(\d+)")
"""Error messages with the number of placeholder tokens in a text, and the number that a picture needs."""
ASIDE = ("attention_mask", "position_ids", "token_type_ids", "inputs_embeds", "labels", "return_loss")
"""Inputs that most forwards take and few need: tried last."""


class NoInputsFound(ValueError):
    """Error of a net that ran on none of the candidate inputs: the first candidate, and the net's message; `error` is
    the exception of its code."""

    def __init__(self, message: str, error: Exception | None):
        super().__init__(message)
        self.error = error


def find_inputs(net: torch.nn.Module, config, resize: bool = False) -> Feed:
    """Return the first feed with which a net runs; with `resize`, inputs may change to the sizes of its error
    messages. Raise `Unfed` if there is none."""
    architecture, message, first, tried = type(net), "", None, set()
    waiting, mended, later, known, sizes = feeds(architecture), deque(), deque(), {}, usual(config)
    while len(tried) < (2 * MAX_FEEDS if resize else MAX_FEEDS):
        feed = mended.popleft() if mended else next(waiting, None) or (later.popleft() if later else None)
        if feed is None:
            break
        feed = feed._replace(ways=(*feed.ways, *known.get(feed.names, ())))
        if feed in tried:
            continue
        tried.add(feed)
        try:
            inputs = feed.make(config, sizes)
        except Exception as error:  # whatever becomes of a way that is not for this configuration
            first, message = first or error, message or reason(error)
            continue
        try:
            with torch.no_grad(), seeded_draws(0):
                net(**inputs)
            return feed
        except Exception as error:  # whatever a library makes of inputs that it was not written for
            better, lacks = mends(feed, architecture, config, error)
            mended.extendleft(reversed(better))
            if not better and "None" in str(error):
                later.extend(guesses(feed, net))
            if better and lacks:
                known[feed.names] = better[0].ways[len(feed.ways) :]  # so do others of these names
            later.extend(enlarge(feed, config, str(error)))
            if resize:
                (later.extendleft if feed.resized_axes else later.extend)(resize_inputs(feed, config, str(error)))
            first = first or error
            message = message or f"{architecture.__name__} was given {feed.names_in_words()}{_refusal(error, lacks)}"
    raise NoInputsFound(
        message or f"{architecture.__name__} was given nothing, expected a text, a photo or a sound", first
    )


def _refusal(error: Exception, lacks: list[str]) -> str:
    if lacks:
        return f", expected also {' or '.join(lacks)}"
    plain = isinstance(error, ValueError | RuntimeError | NotImplementedError | IndexError)
    return (
        f": {reason(error)}" if plain else f", which its code is not made for: {type(error).__name__}: {reason(error)}"
    )


def mends(feed: Feed, architecture: type, config, error: Exception) -> tuple[list[Feed], list[str]]:
    """Return repaired feeds after `error`, the likeliest first, and the names of the missing inputs."""
    message = str(error)
    if places := _places(feed, config, error):
        return places, []
    lacks = [name for name in parameters(architecture) if name not in feed.names]
    named = [name for name in lacks if re.search(rf"\b{name}\b", message)]
    named.sort(key=lambda name: (name == "inputs_embeds", -message.rindex(name)))  # what is missing is said last
    repairs = [(name, way) for name in named for way in range(len(makers(name)))]
    return [feed._replace(ways=(*feed.ways, repair)) for repair in repairs], named


def guesses(feed: Feed, net: torch.nn.Module) -> list[Feed]:
    """Return the feed with one more input of its forward, or, if that passes keyword arguments on, of the forwards
    of its modules."""
    own = parameters(type(net))
    within = (
        [type(part) for part in net.modules()] if any(guess.kind is guess.VAR_KEYWORD for guess in own.values()) else []
    )
    names = dict.fromkeys([*own, *(name for part in dict.fromkeys(within) for name in parameters(part))])
    lacks = [name for name in names if name not in feed.names and makers(name)]
    lacks.sort(key=lambda name: (name in ASIDE, name not in own, name not in MAKERS))
    return [feed._replace(ways=(*feed.ways, (name, 0))) for name in lacks]


def _places(feed: Feed, config, error: Exception) -> list[Feed]:
    """Return the feed with as many placeholder tokens of a picture or a sound as the error message asks for:
    vectors, or the numbers in them."""
    match = TOKEN_COUNTS.search(str(error))
    if match is None or "input_ids" not in feed.names:
        return []
    word = str(error).split()[0].lower()
    kinds = [kind for kind in ([word] if word in KINDS else KINDS) if placeholder(config, kind) is not None]
    numbers, width = int(match[2]), size(getattr(config, "text_config", config), *WIDTH, default=1)
    counts = [numbers // width] * (numbers % width == 0) + [numbers]
    counts = [count for count in dict.fromkeys(counts) if 0 < count <= MAX_TOKENS and count != feed.before]
    each = patches(config) if not feed.places and kinds[:1] == ["image"] and "pixel_values" in feed.names else 0
    return [
        feed._replace(places=tuple({**dict(feed.places), kinds[0]: count}.items()), each=count == each)
        for count in counts
        if kinds
    ]
