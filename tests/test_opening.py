"""A configuration of transformers is made small, completed and fed by rules: each on a configuration made by hand."""

from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

from tracer.sources import autos, completing, fitting, generic, making, opening, small
from tracer.sources.attributes import attributes
from tracer.sources.feeds import SIZES, Feed, combined, usual
from tracer.sources.makers import makers


def test_blocks_of_several_kinds_are_all_there_where_two_of_them_do_not_run():
    kinds = ["near", "near", "near", "far"] * 2
    config = SimpleNamespace(num_hidden_layers=8, layer_types=kinds, num_kv_shared_layers=4)
    least, more = small.small(config, 0), small.small(config, 1)
    assert (least.num_hidden_layers, least.layer_types) == (2, kinds[:2])
    assert (more.num_hidden_layers, more.layer_types, more.num_kv_shared_layers) == (4, kinds[:4], 0)
    assert config.layer_types == kinds


def test_every_vocabulary_is_cut():
    made = small.small(SimpleNamespace(vocab_size_per_layer_input=262144, hashed_group_vocab=500002))
    assert (made.vocab_size_per_layer_input, made.hashed_group_vocab) == (320, 320)


def test_a_backbone_gives_all_its_stages_as_wide_as_the_whole_takes_them():
    backbone = InnerConfig(hidden_size=40, stage_names=["stem", "stage1", "stage2"], out_features=["stage2"])
    config = HandConfig(hidden_size=24, backbone_config=backbone)
    least, made = small.small(config, small.FILLED), small.small(config, small.STAGED)
    assert least.backbone_config.out_features == ["stage2"] and least.hidden_size == 24
    assert made.backbone_config.out_features == ["stage1", "stage2"] and made.hidden_size == 40


def test_the_sections_of_a_turned_head_are_said_where_they_are_left_open():
    config = SimpleNamespace(hidden_size=512, num_attention_heads=4, rope_parameters={"rope_theta": 1.0})
    assert "mrope_section" not in small.small(config, 0).rope_parameters
    made = small.small(config, small.FILLED)
    time, height, width = made.rope_parameters["mrope_section"]
    assert time == height and time + height + width == made.hidden_size // made.num_attention_heads // 2


def test_angles_are_said_for_each_kind_of_block_and_heads_fit_the_width():
    config = SimpleNamespace(
        hidden_size=48, num_attention_heads=9, num_hidden_layers=2, layer_types=["near", "far"], rope_parameters={}
    )
    made = small.small(config, small.FILLED)
    assert made.rope_parameters.keys() == {"near", "far"} and made.num_attention_heads == 3


def test_few_levels_divide_widths_by_less():
    config = SimpleNamespace(hidden_size=4096, num_attention_heads=32)
    assert [small.small(config, level).hidden_size for level in (0, small.GENTLE, 4)] == [256, 1024, 4096]


class HandConfig(SimpleNamespace):
    """A configuration that leaves numbers open."""

    model_type = "hand"

    def to_dict(self) -> dict:
        return dict(vars(self))


class InnerConfig(HandConfig):
    """One within it."""


def absent(config):
    return config.num_key_value_heads


def left_open(config):
    return 2 * config.top_k_experts


def left_open_within(config):
    return len(config.inner.deepstack_map)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (absent, lambda config: config.num_key_value_heads == 6),
        (left_open, lambda config: config.top_k_experts == 2),
        (left_open_within, lambda config: config.inner.deepstack_map == []),
    ],
)
def test_what_the_code_misses_in_a_configuration_is_said(code, found):
    config = HandConfig(num_attention_heads=6, top_k_experts=None, inner=InnerConfig(deepstack_map=None))
    with pytest.raises((AttributeError, TypeError)) as met:
        code(config)
    assert completing.completed(config, met.value) and found(config)
    code(config)


def joined(config):
    return [1] + config.sizes  # noqa: RUF005


def got(config):
    return config.inner.deepstack_map.get("key")


@pytest.mark.parametrize("code", [joined, got])
def test_what_a_file_would_hold_is_a_list_and_a_table(code):
    config = HandConfig(sizes=(2, 3), inner=InnerConfig(deepstack_map=None))
    with pytest.raises((AttributeError, TypeError)) as met:
        code(config)
    assert completing.completed(config, met.value)
    assert code(config) in ([1, 2, 3], None)


HAND = """
import torch

class Net(torch.nn.Module):
    main_input_name = "hidden_states"

    def __init__(self, config):
        super().__init__()
        self.config, self.qkv_clip = config, config.qkv_clip

    def forward(self, hidden_states):
        if self.config.default_language is None:
            raise ValueError("Input language unknown")
        return hidden_states.clamp(min=None, max=self.qkv_clip)
"""


def test_what_a_run_misses_in_a_configuration_is_said(tmp_path, monkeypatch):
    (tmp_path / "modeling_hand.py").write_text(HAND)
    monkeypatch.syspath_prepend(tmp_path)
    made = import_module("modeling_hand").Net
    monkeypatch.setattr(opening, "_built", lambda made, config: made(config))
    config = HandConfig(hidden_size=24, default_language=None, languages=["en", "de"], qkv_clip=None, other=None)
    built, feed = opening._fed(made, config, made(config))
    assert config.default_language == "en" and config.qkv_clip == 8.0 and config.other is None
    assert built(**feed.make(config, SIZES)).isfinite().all()


def test_a_net_that_is_built_to_see_what_it_takes_is_drawn_once(monkeypatch):
    monkeypatch.setattr(opening, "net", lambda made, config: torch.nn.init.trunc_normal_(torch.empty(999), a=-1, b=1))
    drawn = opening._bounded(torch.nn.Module, None)
    assert -1 <= drawn.min() < -0.9 and 0.9 < drawn.max() <= 1 and abs(drawn.std() - 3**-0.5) < 0.05


def test_a_number_of_which_nothing_is_known_is_not_made_up():
    config = HandConfig()
    with pytest.raises(AttributeError) as met:
        config.flavour  # noqa: B018
    assert not completing.completed(config, met.value) and not hasattr(config, "flavour")


class Mapped(torch.nn.Module):
    """Takes vectors of a width that its configuration does not say."""

    main_input_name = "hidden_states"

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(37, 3)

    def forward(self, hidden_states):
        return self.linear(hidden_states)


class Filtered(Mapped):
    """Takes channels that it does not say."""

    def __init__(self):
        super().__init__()
        self.filter = torch.nn.Conv1d(5, 2, 3)

    def forward(self, hidden_states):
        return self.filter(hidden_states)


class Rows(Mapped):
    """Takes numbers in whole rows."""

    def forward(self, hidden_states):
        return hidden_states.view(1, -1, 37)


class Joined(Mapped):
    """Takes as many rows as it has of its own."""

    def forward(self, hidden_states):
        return torch.cat([hidden_states, torch.zeros(1, 9, 24)], dim=2)


@pytest.mark.parametrize("net", [Mapped(), Filtered(), Rows(), Joined()])
def test_an_input_gets_the_size_that_a_net_says_it_expects(net):
    config = SimpleNamespace(hidden_size=24)
    assert usual(SimpleNamespace(max_position_embeddings=40))["T"] == 40 and usual(config) == SIZES
    with pytest.raises(ValueError, match=f"{type(net).__name__} was given hidden_states: "):
        fitting.fed(net, config)
    feed = fitting.fed(net, config, resize=True)
    assert feed.sized and net(**feed.make(config, {**SIZES, "T": 50})).isfinite().all()
    assert feed.symbols == ("B",), "a length that is another than was asked for is no symbol"


class Pooled(Mapped):
    """Takes photos that are large enough."""

    main_input_name = "pixel_values"

    def forward(self, pixel_values):
        return torch.nn.functional.avg_pool2d(pixel_values, 200)


def test_an_input_that_is_too_small_grows():
    config = SimpleNamespace()
    feed = fitting.fed(Pooled(), config)
    assert feed.make(config, SIZES)["pixel_values"].shape == (1, 3, 256, 256)


class Conditioned(Mapped):
    """Hands on what it is given by name."""

    def forward(self, hidden_states, attention_mask=None, **kwargs):
        return self.inner(hidden_states=hidden_states, attention_mask=attention_mask, **kwargs)

    def inner(self, hidden_states, attention_mask=None, t_cond=None):
        return hidden_states * (1 + scaled(t_cond))


def scaled(vectors):
    return torch.relu(vectors)


def test_what_is_asked_for_within_is_given_through_a_forward_that_hands_it_on(monkeypatch):
    monkeypatch.setattr(fitting, "CODE", "test_opening")
    assert fitting.fed(Conditioned(), SimpleNamespace(hidden_size=24)).names == ("hidden_states", "t_cond")


class Patched(Mapped):
    """Takes the patches of a photo as small pictures, and how they lie."""

    def forward(self, pixel_values, grid_thw):
        count, channels, height, width = pixel_values.shape
        assert (count, channels, height, width) == (int(grid_thw.prod()), 3, 6, 6), "no patches"
        return pixel_values


class Merged(Patched):
    """Takes those of the patches that become one token."""

    def forward(self, pixel_values, image_grid_thw):
        assert pixel_values.shape == (int(image_grid_thw.prod()), 12, 12, 3), "no patches"
        return pixel_values


@pytest.mark.parametrize("net", [Patched(), Merged()])
def test_patches_are_small_pictures_where_it_is_said_how_they_lie(net):
    config = SimpleNamespace(patch_size=6, spatial_merge_size=2)
    feed = fitting.fed(net, config)
    assert net(**feed.make(config, SIZES)) is not None
    alone = [dict(each.ways)["pixel_values"] for each in combined(("pixel_values",))]
    assert max(alone) == 5, "alone, a photo is no such pictures"


def test_a_photo_is_cut_into_whole_windows():
    assert making.side(SimpleNamespace(image_size=518, patch_size=14, num_windows=4), {}) == (504, 504)
    assert making.side(SimpleNamespace(image_size=518, patch_size=14), {}) == (518, 518)


def test_a_spectrum_by_another_name_is_a_spectrum():
    config = SimpleNamespace(input_feat_size=48)
    shapes = [makers(name)[0][0](config, SIZES).shape for name in ("audio_mel", "mel_spectrogram", "audio_mel_mask")]
    assert shapes == [(1, 48, 100), (1, 48, 100), (1, 100)]


def test_a_text_stands_behind_the_places_of_a_picture():
    config, feed = SimpleNamespace(image_token_id=9), Feed((("input_ids", 0),), (("image", 3),))
    made = feed.make(config, SIZES)["input_ids"]
    assert made[0, :3].tolist() == [9, 9, 9] and feed.before == 3
    assert feed.spoken(made, [5, 9, 7], config).tolist() == [[9, 9, 9, 5, 0, 7]]


def test_masks_of_pictures_are_masks():
    (mask,) = {makers("image_mask")[0][0], makers("attention_mask")[0][0]}
    assert mask(SimpleNamespace(), SIZES).shape == (1, SIZES["T"])


class Whole(torch.nn.Module):
    """A net of the library with a part of it."""

    _supports_sdpa = True

    def __init__(self, part):
        super().__init__()
        self.part = part


def test_fused_attention_is_a_choice_where_all_parts_have_it():
    assert opening._attentions(Whole(Whole(torch.nn.Linear(2, 2)))) == ("sdpa", "eager")
    other = Whole(torch.nn.Linear(2, 2))
    other._supports_sdpa = False
    assert opening._attentions(Whole(other)) == () == opening._attentions(torch.nn.Linear(2, 2))


def test_parts_of_models_are_told_from_models():
    assert autos.listed(SimpleNamespace(model_type="bert"))
    assert not autos.listed(SimpleNamespace(model_type="sam3_mask_decoder"))


def test_sizes_are_those_of_the_part_that_takes_what_is_given():
    text, vision = SimpleNamespace(hidden_size=24, vocab_size=90), SimpleNamespace(hidden_size=36, patch_size=4)
    config = SimpleNamespace(text_config=text, vision_config=vision)
    both = {"D": "text_config.hidden_size", "V": "text_config.vocab_size", "P": "vision_config.patch_size"}
    assert attributes(config, Mapped, ("input_ids", "pixel_values")) == both == attributes(config, Mapped)
    assert attributes(config, Mapped, ("pixel_values",)) == {
        "D": "vision_config.hidden_size",
        "P": "vision_config.patch_size",
    }


def test_attributes_of_series_and_detectors_are_sizes_of_those_alone():
    class Detection:
        pass

    config = SimpleNamespace(context_length=24, num_queries=9, num_labels=3, attribute_map={})
    assert attributes(config, Detection, ("pixel_values",)) == {"N_q": "num_queries", "K": "num_labels"}
    assert attributes(config, Mapped, ("past_values",)) == {"T_c": "context_length"}
    assert attributes(config, Mapped, ("input_ids",)) == {}


def test_tokens_of_one_length_only_are_no_text():
    def takes(*sized) -> tuple[str, ...]:
        found = opening.Found(Mapped, SimpleNamespace(hidden_size=24), Feed((("input_ids", 0),), (), sized))
        return generic.spec(found, SimpleNamespace(tokenizer=None)).takes

    assert takes() == ("text",) and takes(("input_ids", 1, 40)) == ()


def test_a_part_that_does_not_run_alone_is_no_model():
    from tracer.sources import NoModel, transformers

    with pytest.raises(NoModel, match="no Auto class opens 'sam3_mask_decoder', and it does not run alone: "):
        transformers.spec("sam3_mask_decoder")
