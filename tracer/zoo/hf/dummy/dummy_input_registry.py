"""A registry of dummy inputs for transformers' models, by parameter name."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch

from tracer.zoo.hf.dummy.dummy_inputs import (
    boxes,
    channels,
    chirp,
    codes,
    codes_last,
    cut_photo,
    cut_photo_in_batches,
    features,
    frames_of_channels,
    grid,
    grid_of_two,
    grid_places,
    merge_sizes,
    number,
    one_per_frame,
    ones,
    pair_of_photos,
    past,
    photo,
    photo_in_patches,
    pictures_of_merged,
    pictures_of_patches,
    places,
    read,
    series,
    series_features,
    series_of_channels,
    size,
    sound_of_one_channel,
    spectrum_by_bin,
    spectrum_by_time,
    spectrum_pictures,
    tokens,
    video,
    waves,
    whole_photo,
    whole_spectrum_by_bin,
    whole_spectrum_by_time,
    zeros,
)
from tracer.zoo.hf.dummy.tiny_config import parts

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
    "input_features_mask": ((one_per_frame, SPECTRUM),),
    "feature_attention_mask": ((one_per_frame, SPECTRUM),),
    "feature_lens": ((lambda config, at: torch.tensor([at["F_a"]] * at["B"]), SPECTRUM),),
    "padding_mask": ((ones("T_a"), ()),),
    "audio_values": ((sound_of_one_channel, SOUND), (chirp, SOUND)),
    "spectrogram": (
        (lambda config, at: waves(at["B"], at["T"], size(config, "model_in_dim", "num_mel_bins", default=80)), TEXT),
    ),
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
    "flattened_patches": (
        (
            lambda config, at: waves(at["B"], 16, 2 + channels(config) * size(config, "patch_size", default=16) ** 2),
            (),
        ),
    ),
    "inputs": ((tokens("T"), TEXT), (features("T", "d_model"), TEXT)),
    "mm_token_type_ids": ((zeros("T"), TEXT),),
    "token_type_ids": ((zeros("T"), TEXT), (ones("T"), TEXT)),
    "labels": ((tokens("T_d"), ("T_d",)),),
    "return_loss": ((number(False), ()),),
    "states": ((lambda config, at: waves(at["B"], at["T"], size(config, "state_dim", default=17)), TEXT),),
    "actions": ((lambda config, at: waves(at["B"], at["T"], size(config, "act_dim", default=4)), TEXT),),
    "rewards": ((lambda config, at: waves(at["B"], at["T"], 1), TEXT),),
    "returns_to_go": ((lambda config, at: waves(at["B"], at["T"], 1), TEXT),),
    "timesteps": ((places, TEXT),),
    "task_inputs": ((tokens("T"), TEXT),),
    "input_boxes": (
        (lambda config, at: torch.tensor([[[1.0, 1.0, 9.0, 9.0]]]).expand(at["B"], -1, -1).contiguous(), ()),
    ),
    "prompt_pixel_values": ((photo, PHOTO),),
    "prompt_masks": ((photo, PHOTO),),
    "qformer_input_ids": ((tokens("T"), TEXT),),
    "audio_codes": ((codes, TEXT),),
    "latents": (
        (
            lambda config, at: waves(
                at["B"], size(config, "latent_dim", "decoder_hidden_size", *WIDTH, default=64), at["T"]
            ),
            TEXT,
        ),
    ),
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
