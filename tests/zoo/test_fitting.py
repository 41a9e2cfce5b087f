"""Inputs are built, requested and resized until a net runs: each rule on a net written by hand."""

from types import SimpleNamespace

import pytest
import torch

from tracer.zoo.hf import dummy_inputs
from tracer.zoo.hf.dummy_inputs import SIZES, combinations_of, makers, usual


class Mapped(torch.nn.Module):
    """A net that takes vectors of a width that its configuration does not have."""

    main_input_name = "hidden_states"

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(37, 3)

    def forward(self, hidden_states):
        return self.linear(hidden_states)


class Filtered(Mapped):
    """A net that takes channels without declaring their number."""

    def __init__(self):
        super().__init__()
        self.filter = torch.nn.Conv1d(5, 2, 3)

    def forward(self, hidden_states):
        return self.filter(hidden_states)


class Rows(Mapped):
    """A net that takes numbers in whole rows."""

    def forward(self, hidden_states):
        return hidden_states.view(1, -1, 37)


class Joined(Mapped):
    """A net that takes as many rows as it has of its own."""

    def forward(self, hidden_states):
        return torch.cat([hidden_states, torch.zeros(1, 9, 24)], dim=2)


@pytest.mark.parametrize("net", [Mapped(), Filtered(), Rows(), Joined()])
def test_an_input_gets_the_size_that_a_net_says_it_expects(net):
    config = SimpleNamespace(hidden_size=24)
    assert usual(SimpleNamespace(max_position_embeddings=40))["T"] == 40 and usual(config) == SIZES
    with pytest.raises(ValueError, match=f"{type(net).__name__} was given hidden_states: "):
        dummy_inputs.find_inputs(net, config)
    feed = dummy_inputs.find_inputs(net, config, resize=True)
    assert feed.resized_axes and net(**feed.make(config, {**SIZES, "T": 50})).isfinite().all()
    assert feed.symbols == ("B",), "a length that is another than was asked for is not a symbol"


class Pooled(Mapped):
    """A net that takes photos that are large enough."""

    main_input_name = "pixel_values"

    def forward(self, pixel_values):
        return torch.nn.functional.avg_pool2d(pixel_values, 200)


def test_an_input_that_is_too_small_grows():
    config = SimpleNamespace()
    feed = dummy_inputs.find_inputs(Pooled(), config)
    assert feed.make(config, SIZES)["pixel_values"].shape == (1, 3, 256, 256)


class Inner(torch.nn.Module):
    """A net that takes vectors beside those of the tokens without declaring them."""

    def forward(self, hidden_states, attention_mask=None, t_cond=None):
        return hidden_states * (1 + torch.relu(t_cond))


class Conditioned(Mapped):
    """A net that passes keyword arguments on."""

    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, hidden_states, attention_mask=None, **kwargs):
        return self.inner(hidden_states=hidden_states, attention_mask=attention_mask, **kwargs)


def test_what_is_asked_for_within_is_given_through_a_forward_that_hands_it_on():
    assert dummy_inputs.find_inputs(Conditioned(), SimpleNamespace(hidden_size=24)).names == ("hidden_states", "t_cond")


class Patched(Mapped):
    """A net that takes the patches of a photo as small pictures, and their positions."""

    def forward(self, pixel_values, grid_thw):
        count, channels, height, width = pixel_values.shape
        assert (count, channels, height, width) == (int(grid_thw.prod()), 3, 6, 6), "no patches"
        return pixel_values


class Merged(Patched):
    """A net that takes the patches that become one token as small pictures."""

    def forward(self, pixel_values, image_grid_thw):
        assert pixel_values.shape == (int(image_grid_thw.prod()), 12, 12, 3), "no patches"
        return pixel_values


@pytest.mark.parametrize("net", [Patched(), Merged()])
def test_patches_are_small_pictures_where_it_is_said_how_they_lie(net):
    config = SimpleNamespace(patch_size=6, spatial_merge_size=2)
    feed = dummy_inputs.find_inputs(net, config)
    assert net(**feed.make(config, SIZES)) is not None
    alone = [dict(each.ways)["pixel_values"] for each in combinations_of(("pixel_values",))]
    assert max(alone) == 6, "alone, a photo is no such pictures"


def test_a_photo_is_cut_into_whole_windows():
    assert dummy_inputs.side(SimpleNamespace(image_size=518, patch_size=14, num_windows=4), {}) == (504, 504)
    assert dummy_inputs.side(SimpleNamespace(image_size=518, patch_size=14), {}) == (518, 518)


def test_a_spectrum_by_another_name_is_a_spectrum():
    config = SimpleNamespace(input_feat_size=48)
    shapes = [makers(name)[0][0](config, SIZES).shape for name in ("audio_mel", "mel_spectrogram", "audio_mel_mask")]
    assert shapes == [(1, 48, 100), (1, 48, 100), (1, 100)]
