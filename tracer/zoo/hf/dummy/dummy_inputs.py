"""Tensors that a forward of transformers may take: one function for each, of a configuration and sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tracer.zoo.hf.dummy.tiny_config import parts

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


def read(config, name: str) -> Any:
    """Return an attribute of a configuration; None if it has none, or has it by layers only."""
    try:
        return getattr(config, name, None)
    except Exception:  # the library's own, of any kind
        return None


def vocabulary(config) -> int:
    """Return the size of the smallest vocabulary."""
    counts = [read(part, "vocab_size") for part in parts(config) if type(read(part, "vocab_size")) is int]
    return min((count for count in counts if count > 1), default=256)


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
    names = (
        "num_mel_bins",
        "input_feat_size",
        "input_feat_per_channel",
        "feature_projection_input_dim",
        "num_mel_channels",
        "n_mels",
    )
    return size(config, *names, "feature_size", "input_dim", "mel_bins", "input_size", default=80)


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


def features(symbol: str, *names: str) -> Callable:
    """Return vectors `[B, length, width]`."""

    def make(config, at) -> torch.Tensor:
        return waves(at["B"], at[symbol], size(config, *names, default=64))

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


def ones(length: str, dtype=torch.long) -> Callable:
    return lambda config, at: torch.ones(at["B"], at[length], dtype=dtype)


def whole_photo(config, at) -> torch.Tensor:
    return torch.ones(at["B"], *side(config, at), dtype=torch.long)


def codes(config, at) -> torch.Tensor:
    books = size(config, "num_codebooks", "num_quantizers", "n_codes_total", "num_channels", default=4)
    return torch.ones(at["B"], books, at["T"], dtype=torch.long)


def codes_last(config, at) -> torch.Tensor:
    return codes(config, at).transpose(1, 2).contiguous()


def zeros(length: str) -> Callable:
    return lambda config, at: torch.zeros(at["B"], at[length], dtype=torch.long)


def one_per_frame(config, at) -> torch.Tensor:
    """Return a mask in which every frame of a spectrum counts, `[B, frames]`."""
    return torch.ones(at["B"], at["F_a"], dtype=torch.long)


def places(config, at) -> torch.Tensor:
    """Return 0, 1, 2 … `[B, T]`."""
    return torch.arange(at["T"]).expand(at["B"], -1).contiguous()


def number(value: float | int | bool) -> Callable:
    return lambda config, at: value
