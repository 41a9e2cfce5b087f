"""A configuration of transformers is made small, completed and fed by rules: each on a configuration made by hand."""

from types import SimpleNamespace

import pytest
import torch

from tracer.sources import autos, completing, fitting, generic, opening, small
from tracer.sources.attributes import attributes
from tracer.sources.feeds import SIZES, Feed, usual
from tracer.sources.makers import makers


def test_blocks_of_several_kinds_are_all_there_where_two_of_them_do_not_run():
    kinds = ["near", "near", "near", "far"] * 2
    config = SimpleNamespace(num_hidden_layers=8, layer_types=kinds, num_kv_shared_layers=4)
    least, more = small.small(config, 0), small.small(config, 1)
    assert (least.num_hidden_layers, least.layer_types) == (2, kinds[:2])
    assert (more.num_hidden_layers, more.layer_types, more.num_kv_shared_layers) == (4, kinds[:4], 0)
    assert config.layer_types == kinds


def test_every_vocabulary_is_cut():
    assert small.small(SimpleNamespace(vocab_size_per_layer_input=262144)).vocab_size_per_layer_input == 320


def test_the_sections_of_a_turned_head_are_said_where_they_are_left_open():
    config = SimpleNamespace(hidden_size=512, num_attention_heads=4, rope_parameters={"rope_theta": 1.0})
    assert "mrope_section" not in small.small(config, 0).rope_parameters
    made = small.small(config, small.FILLED)
    assert sum(made.rope_parameters["mrope_section"]) == made.hidden_size // made.num_attention_heads // 2


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


@pytest.mark.parametrize("net", [Mapped(), Filtered(), Rows()])
def test_an_input_gets_the_size_that_a_net_says_it_expects(net):
    config = SimpleNamespace(hidden_size=24)
    assert usual(SimpleNamespace(max_position_embeddings=40))["T"] == 40 and usual(config) == SIZES
    with pytest.raises(ValueError, match=f"{type(net).__name__} was given hidden_states: "):
        fitting.fed(net, config)
    feed = fitting.fed(net, config, resize=True)
    assert feed.sized and net(**feed.make(config, {**SIZES, "T": 50})).isfinite().all()
    assert feed.symbols == ("B",), "a length that is another than was asked for is no symbol"


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


def test_tokens_of_one_length_only_are_no_text():
    def takes(*sized) -> tuple[str, ...]:
        found = opening.Found(Mapped, SimpleNamespace(hidden_size=24), Feed((("input_ids", 0),), (), sized))
        return generic.spec(found, SimpleNamespace(tokenizer=None)).takes

    assert takes() == ("text",) and takes(("input_ids", 1, 40)) == ()


def test_a_part_that_does_not_run_alone_is_no_model():
    from tracer.sources import NoModel, transformers

    with pytest.raises(NoModel, match="no Auto class opens 'sam3_mask_decoder', and it does not run alone: "):
        transformers.spec("sam3_mask_decoder")
