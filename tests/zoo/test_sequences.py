"""Positions of patches in a sequence, shown on the net itself; other sequences have none."""

from types import SimpleNamespace

import pytest
import torch

import tracer
from tracer.graph.dataflow import _is_counter
from tracer.zoo.generic_vision import leading_segments
from tracer.zoo.hf import tiny_config
from tracer.zoo.hf.dummy_inputs import Feed
from tracer.zoo.hf.spec_builders import patches_start

CONFIG = SimpleNamespace(image_size=12, patch_size=4, num_channels=3, attribute_map={})
FEED = Feed((("pixel_values", 0),))


class Net(torch.nn.Module):
    """Patches with `ahead` tokens in front, in this order, mixed by a layer that sees this many of them."""

    def __init__(self, ahead: int, order=slice(None), seen: int = 99):
        super().__init__()
        self.patches, self.layer = torch.nn.Conv2d(3, 8, 4, stride=4), torch.nn.Identity()
        self.ahead, self.order, self.seen, self.mixed = ahead, order, seen, torch.nn.Identity()

    def forward(self, pixel_values):
        x = self.patches(pixel_values).flatten(2).mT[:, self.order]
        x = self.layer(torch.cat([torch.zeros(len(x), self.ahead, 8), x], dim=1))
        return self.mixed(torch.cat([x[:, : self.seen] + x[:, : self.seen].sum(1, keepdim=True), x[:, self.seen :]], 1))


@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_tokens_before_the_patches_are_counted(ahead):
    assert patches_start(Net(ahead), CONFIG, FEED) == ahead


@pytest.mark.parametrize("net", [Net(1, torch.arange(8, -1, -1)), Net(1, seen=4)])
def test_nothing_is_said_of_patches_in_another_order_or_in_windows(net):
    assert patches_start(net, CONFIG, FEED) is None


def test_only_what_a_configuration_calls_registers_is_called_so():
    said = [(one.name, one.start, one.stop) for one in leading_segments(5, 4, 9)]
    assert said == [("CLS", 0, 1), ("registers", 1, 5), ("image", 5, 14)]
    assert [one.name for one in leading_segments(2, 0, 9)] == ["CLS", "image"]
    assert [one.name for one in leading_segments(0, 0, 9)] == ["image"]


def test_a_family_without_a_file_lays_its_maps_over_the_photo():
    trace = tracer.load("hf:vit_msn").trace(prove=False)
    assert trace.picture is not None and [one.name for one in trace.segments] == ["CLS", "image"]


def test_what_code_takes_where_a_configuration_says_nothing_is_a_size():
    part = SimpleNamespace(n_inner=None, hidden_size=6)
    assert tiny_config.with_defaults(part).n_inner == 24
    assert tiny_config.with_defaults(SimpleNamespace(n_inner=7, hidden_size=6)).n_inner == 7


def test_the_number_in_the_name_of_a_model_counts_no_blocks():
    names = {"dinov2", "dinov2.layer", "stage3", "stage4", "block1", "lone.block0"}
    assert [path for path in sorted(names) if path[-1].isdigit() and not _is_counter(names, path)] == ["dinov2"]
