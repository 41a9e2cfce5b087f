"""Transfer of a run between processes: what arrives is what was sent, and refers to the receiver's model."""

import pickle
from dataclasses import fields, replace

import pytest
import torch

import tracer
from tracer.tracing.transfer import pack, unpack
from tracer.utils.cache import Cache

PROVERS = ("later", "replay", "reread")


def transfer(trace, sender, receiver, folder, known=None):
    packed = pickle.loads(pickle.dumps(pack(trace, sender.net, folder / "tensors")))
    return unpack(packed, receiver.net, Cache(64) if known is None else known)


def assert_equal(a, b):
    """Assert that two traces have the same data, tensors bit by bit."""
    for field in fields(a):
        if field.name not in (*PROVERS, "values", "output"):
            assert getattr(a, field.name) == getattr(b, field.name), field.name
    assert a.values.keys() == b.values.keys()
    assert all(torch.equal(a.values[key], b.values[key]) for key in a.values)
    assert torch.equal(a.output, b.output)


@pytest.mark.parametrize("change", [{}, {"block2.attention.weights": tracer.changes.drop_heads([1])}])
def test_a_run_arrives_as_it_was_sent(vit, tmp_path, change):
    sender, receiver = (vit.with_changes(change) if change else vit for _ in range(2))
    sent = sender.trace()
    arrived = transfer(sent, sender, receiver, tmp_path)
    assert_equal(sent, arrived)
    assert all(step.verdict == "verified" for step in arrived.steps)
    assert list(tmp_path.iterdir()) == []


def test_what_the_receiver_has_is_not_sent(vit, tmp_path):
    sent, file = vit.trace(), tmp_path / "tensors"
    photo = sent.values["photo"].numpy()
    packed = pack(sent, vit.net, file, ["photo"])
    assert file.stat().st_size < sum(value.nbytes for value in sent.values.values())
    assert_equal(sent, unpack(packed, vit.net, Cache(64), {"photo": photo}))


def test_its_cells_are_followed_with_the_model_of_the_receiver(vit, tmp_path):
    receiver = tracer.load("vit")
    sent = vit.trace()
    arrived = transfer(sent, vit, receiver, tmp_path)
    assert arrived.later.run.module is receiver.net
    step = next(step for step in sent.steps if step.id == "block3.mlp.hidden")
    assert arrived.cell(step.id, (0, 3, 5)) == sent.cell(step.id, (0, 3, 5))
    assert not arrived.later.rewritten()


def test_what_runs_have_in_common_is_one_object(vit, tmp_path):
    known = Cache(64)
    first, second = (transfer(vit.trace(), vit, vit, tmp_path, known) for _ in range(2))
    assert first.ops is second.ops
    assert first.later.derived_steps is second.later.derived_steps
    assert first.values["photo"].data_ptr() != second.values["photo"].data_ptr()


def test_tensors_that_share_memory_still_share_it(vit, tmp_path):
    sent = vit.trace()
    addresses = {tensor.untyped_storage().data_ptr() for tensor in sent.values.values()}
    arrived = transfer(sent, vit, vit, tmp_path)
    assert len({tensor.data_ptr() for tensor in arrived.values.values()}) >= len(addresses)
    assert len({tensor.untyped_storage().data_ptr() for tensor in arrived.values.values()}) == 1
    assert {key: value.stride() for key, value in sent.values.items()} == {
        key: value.stride() for key, value in arrived.values.items()
    }


def test_a_common_part_must_not_hold_a_tensor(vit, tmp_path):
    sent = vit.trace()
    with pytest.raises(pickle.PicklingError, match="holds a tensor"):
        pack(replace(sent, symbols=(torch.ones(2),)), vit.net, tmp_path / "tensors")
