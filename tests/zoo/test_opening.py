"""A configuration of transformers is shrunk, completed and fed by rules: each on a configuration written by hand."""

from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

from tracer.utils.transformers_internals import supports_sdpa
from tracer.zoo.hf import generic_model, tiny_config
from tracer.zoo.hf.dummy_inputs import SIZES, Feed, makers
from tracer.zoo.hf.tiny_config import attributes, with_sizes


def test_blocks_of_several_kinds_are_all_there_where_two_of_them_do_not_run():
    kinds = ["near", "near", "near", "far"] * 2
    config = SimpleNamespace(num_hidden_layers=8, layer_types=kinds, num_kv_shared_layers=4)
    least, more = tiny_config.small(config, 0), tiny_config.small(config, 1)
    assert (least.num_hidden_layers, least.layer_types) == (2, kinds[:2])
    assert (more.num_hidden_layers, more.layer_types, more.num_kv_shared_layers) == (4, kinds[:4], 0)
    assert config.layer_types == kinds


@pytest.mark.parametrize(("depth", "kinds"), [(1, ["near"]), (2, ["near", "far"]), (3, ["near", "far", "near"])])
def test_the_kinds_of_blocks_follow_their_number(depth, kinds):
    config = SimpleNamespace(num_hidden_layers=2, layer_types=["near", "far"], head_dims=[8, 8])
    changed = with_sizes(config, {"L": "num_hidden_layers"}, {"L": depth})
    assert (changed.num_hidden_layers, changed.layer_types, changed.head_dims) == (depth, kinds, [8, 8])


def test_every_vocabulary_is_cut():
    made = tiny_config.small(SimpleNamespace(vocab_size_per_layer_input=262144, hashed_group_vocab=500002))
    assert (made.vocab_size_per_layer_input, made.hashed_group_vocab) == (320, 320)


def test_a_backbone_gives_all_its_stages_as_wide_as_the_whole_takes_them():
    backbone = InnerConfig(hidden_size=40, stage_names=["stem", "stage1", "stage2"], out_features=["stage2"])
    config = HandConfig(hidden_size=24, backbone_config=backbone)
    least, made = (
        tiny_config.small(config, tiny_config.FILLED_LEVEL),
        tiny_config.small(config, tiny_config.STAGES_LEVEL),
    )
    assert least.backbone_config.out_features == ["stage2"] and least.hidden_size == 24
    assert made.backbone_config.out_features == ["stage1", "stage2"] and made.hidden_size == 40


def test_the_sections_of_a_turned_head_are_said_where_they_are_left_open():
    config = SimpleNamespace(hidden_size=512, num_attention_heads=4, rope_parameters={"rope_theta": 1.0})
    assert "mrope_section" not in tiny_config.small(config, 0).rope_parameters
    made = tiny_config.small(config, tiny_config.FILLED_LEVEL)
    time, height, width = made.rope_parameters["mrope_section"]
    assert time == height and time + height + width == made.hidden_size // made.num_attention_heads // 2


def test_angles_are_said_for_each_kind_of_block_and_heads_fit_the_width():
    config = SimpleNamespace(
        hidden_size=48, num_attention_heads=9, num_hidden_layers=2, layer_types=["near", "far"], rope_parameters={}
    )
    made = tiny_config.small(config, tiny_config.FILLED_LEVEL)
    assert made.rope_parameters.keys() == {"near", "far"} and made.num_attention_heads == 3


def test_few_levels_divide_widths_by_less():
    config = SimpleNamespace(hidden_size=4096, num_attention_heads=32)
    assert [tiny_config.small(config, level).hidden_size for level in (0, tiny_config.GENTLE_LEVEL, 4)] == [
        256,
        1024,
        4096,
    ]


class HandConfig(SimpleNamespace):
    """A configuration that leaves numbers open."""

    model_type = "hand"

    def to_dict(self) -> dict:
        return dict(vars(self))


class InnerConfig(HandConfig):
    """An inner configuration, which declares its attributes."""

    deepstack_map: "dict[str, int] | None"


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
        (left_open_within, lambda config: config.inner.deepstack_map == {}),
    ],
)
def test_what_the_code_misses_in_a_configuration_is_said(code, found):
    config = HandConfig(num_attention_heads=6, top_k_experts=None, inner=InnerConfig(deepstack_map=None))
    with pytest.raises((AttributeError, TypeError)) as met:
        code(config)
    assert tiny_config.fill_missing(config, met.value)
    while not found(config):
        assert tiny_config.fill_missing(config, met.value)
    code(config)


def join_sizes(config):
    return [1] + config.sizes  # noqa: RUF005


def got(config):
    return config.inner.deepstack_map.get("key")


@pytest.mark.parametrize("code", [join_sizes, got])
def test_what_a_file_would_hold_is_a_list_and_a_table(code):
    config = HandConfig(sizes=(2, 3), inner=InnerConfig(deepstack_map=None))
    with pytest.raises((AttributeError, TypeError)) as met:
        code(config)
    assert tiny_config.fill_missing(config, met.value)
    assert code(config) in ([1, 2, 3], None)


HAND = """
import torch
from tracer.utils.transformers_internals import has_auto_class

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
    monkeypatch.setattr(generic_model, "_build", lambda made, config: made(config))
    config = HandConfig(hidden_size=24, default_language=None, languages=["en", "de"], qkv_clip=None, other=None)
    built, feed = generic_model._build_and_feed(made, config, made(config))
    assert config.default_language == "en" and config.qkv_clip == 8.0 and config.other is None
    assert built(**feed.make(config, SIZES)).isfinite().all()


def test_a_net_that_is_built_to_see_what_it_takes_is_drawn_once(monkeypatch):
    monkeypatch.setattr(
        generic_model, "tiny_net", lambda made, config: torch.nn.init.trunc_normal_(torch.empty(999), a=-1, b=1)
    )
    drawn = generic_model._build_within_limit(torch.nn.Module, None)
    assert -1 <= drawn.min() < -0.9 and 0.9 < drawn.max() <= 1 and abs(drawn.std() - 3**-0.5) < 0.05


def test_a_number_of_which_nothing_is_known_is_not_made_up():
    config = HandConfig()
    with pytest.raises(AttributeError) as met:
        config.flavour  # noqa: B018
    assert not tiny_config.fill_missing(config, met.value) and not hasattr(config, "flavour")


def test_a_text_stands_behind_the_places_of_a_picture():
    config, feed = SimpleNamespace(image_token_id=9), Feed((("input_ids", 0),), (("image", 3),))
    made = feed.make(config, SIZES)["input_ids"]
    assert made[0, :3].tolist() == [9, 9, 9] and feed.before == 3
    assert feed.with_text(made, [5, 9, 7], config).tolist() == [[9, 9, 9, 5, 0, 7]]


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
    assert supports_sdpa(Whole(Whole(torch.nn.Linear(2, 2))))
    other = Whole(torch.nn.Linear(2, 2))
    other._supports_sdpa = False
    assert not supports_sdpa(Whole(other)) and not supports_sdpa(torch.nn.Linear(2, 2))


def test_sizes_are_those_of_the_part_that_takes_what_is_given():
    text, vision = SimpleNamespace(hidden_size=24, vocab_size=90), SimpleNamespace(hidden_size=36, patch_size=4)
    config = SimpleNamespace(text_config=text, vision_config=vision)
    both = {"D": "text_config.hidden_size", "V": "text_config.vocab_size"}
    both |= {"D_v": "vision_config.hidden_size", "P": "vision_config.patch_size"}
    assert (
        attributes(config, torch.nn.Module, ("input_ids", "pixel_values"))
        == both
        == attributes(config, torch.nn.Module)
    )
    assert attributes(config, torch.nn.Module, ("pixel_values",)) == {
        "D": "vision_config.hidden_size",
        "P": "vision_config.patch_size",
    }


def test_attributes_of_series_and_detectors_are_sizes_of_those_alone():
    class Detection:
        pass

    config = SimpleNamespace(context_length=24, num_queries=9, num_labels=3, attribute_map={})
    assert attributes(config, Detection, ("pixel_values",)) == {"N_q": "num_queries", "K": "num_labels"}
    assert attributes(config, torch.nn.Module, ("past_values",)) == {"T_c": "context_length"}
    assert attributes(config, torch.nn.Module, ("input_ids",)) == {}


def test_tokens_of_one_length_only_are_no_text():
    def takes(*sized) -> tuple[str, ...]:
        found = generic_model.OpenedModel(
            torch.nn.Module, SimpleNamespace(hidden_size=24), Feed((("input_ids", 0),), (), sized)
        )
        return generic_model.spec(found, SimpleNamespace(tokenizer=None)).takes

    assert takes() == ("text",) and takes(("input_ids", 1, 40)) == ()


def test_a_part_that_does_not_run_alone_is_no_model():
    from tracer.zoo import NoModel
    from tracer.zoo.hf import hub

    with pytest.raises(NoModel, match="no Auto class opens 'sam3_mask_decoder', and it does not run alone: "):
        hub.spec("sam3_mask_decoder")
