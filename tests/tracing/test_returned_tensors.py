"""Every tensor that forward returns is a step, bit by bit; a line that can't be written is marked and ends no trace."""

import dataclasses

import pytest
import torch
from torch import nn

import tracer
from tracer.capture.tensors import output_tensors
from tracer.record import ReturnedTensor
from tracer.tracing.records import unaccounted_note
from tracer.verify.checks.outputs import find_unaccounted


class Net(nn.Module):
    """Two linear maps of [B, T, 8], combined by `rule`."""

    def __init__(self, rule):
        super().__init__()
        self.q, self.k, self.norm, self.rule = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8), rule

    def forward(self, x):
        return self.rule(self, x)


class Store:
    """A stand-in for a cache of keys: an object with attributes, which refers to itself."""

    def __init__(self, keys):
        self.layers, self.own, self._hidden = [keys], self, keys + 1


@dataclasses.dataclass
class Fields:
    hidden: torch.Tensor
    nothing: None = None


def run(rule, **more):
    torch.manual_seed(0)
    return tracer.trace(Net(rule), torch.randn(1, 5, 8), symbols={"B": 0, "T": 1}, **more)


def overwritten(net, x):
    made = net.q(x)
    made[:, 0] = 0
    return made


def through_a_view(net, x):
    made = net.q(x)
    return made, made[:, 1:].mul_(2)


RULES = {
    "the last token": lambda net, x: net.q(x)[:, -1],
    "some features": lambda net, x: net.q(x)[..., :4],
    "a token that was searched": lambda net, x: net.q(x)[:, int(x[0, :, 0].argmax())],
    "all of it": lambda net, x: net.q(x)[:, -5:],
    "transposed": lambda net, x: net.q(x).transpose(1, 2),
    "flat": lambda net, x: net.q(x).flatten(1),
    "a copy of a part": lambda net, x: net.q(x)[:, 0].clone(),
    "another dtype": lambda net, x: net.q(x).half(),
    "in place": lambda net, x: net.q(x).relu_(),
    "a write into a part": overwritten,
    "a write through a view": through_a_view,
    "parts": lambda net, x: net.q(x).chunk(2, -1),
    "the token of a norm": lambda net, x: net.norm(net.q(x))[:, 0],
    "a layout of the input": lambda net, x: x.transpose(1, 2),
    "with what was given": lambda net, x: (net.q(x)[:, 0], x, net.q.weight, x.clone()),
    "a dictionary": lambda net, x: {"a": net.k(net.q(x))[:, 0], "b": [net.q(x).softmax(-1), x.flatten()]},
    "a dataclass": lambda net, x: Fields(net.q(x)[:, 1:]),
    "an object": lambda net, x: (net.q(x), Store(net.k(x).view(-1, 5, 2, 4).transpose(1, 2))),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_every_returned_tensor_is_a_step_bit_by_bit(rule):
    trace = run(rule)
    made = output_tensors(trace.output)
    assert [(one.name, one.shape) for one in trace.returned] == [(name, tuple(tensor.shape)) for name, tensor in made]
    for one, (_, tensor) in zip(trace.returned, made, strict=True):
        assert one.step or one.of
        if one.step:
            value = trace.value(one.step)
            assert value.dtype == tensor.dtype and torch.equal(value, tensor)
    assert all(step.verdict == "verified" or "the values of this input" in step.note for step in trace.steps)
    steps = [one.step for one in trace.returned]
    assert all(step.id in steps for step in trace.steps if step.title.startswith("Output"))


def test_what_is_cut_after_the_last_computation_is_a_line_of_its_own():
    trace = run(RULES["the last token"])
    computed, cut = trace.steps
    assert (computed.title, computed.shape) == ("Linear map", (1, 5, 8))
    assert (cut.title, cut.shape, cut.symbolic) == ("Output", (1, 8), ("B", "8"))
    assert cut.latex.startswith(r"\mathbf{Z}_{\mathrm{out}} = {\mathbf{Z}}_{[")


def test_a_layout_that_changes_nothing_is_no_line():
    assert [step.title for step in run(RULES["all of it"]).steps] == ["Output"]
    assert [step.title for step in run(lambda net, x: net.q(x).clone().detach()).steps] == ["Output"]


def test_several_results_are_called_by_their_places():
    trace = run(RULES["a dictionary"])
    titles = {one.name: trace.step(one.step).title for one in trace.returned}
    assert titles == {"a": "Output", "b[0]": "Output: b[0]", "b[1]": "Output: b[1]"}
    assert trace.step(trace.returned[2].step).symbol == r"\mathbf{Z}_{\text{b}}"


def test_what_was_given_and_comes_back_is_called_by_its_name():
    trace = run(RULES["with what was given"])
    assert [one.of for one in trace.returned] == ["", "input x", "parameter q.weight", "input x"]
    assert trace.notes == ("forward returns 'input x' and 'parameter q.weight' as it is as '[1]', '[2]', '[3]'",)


def test_the_record_of_what_was_returned_is_saved(tmp_path):
    trace = run(RULES["with what was given"])
    trace.save(tmp_path / "run.safetensors")
    assert tracer.open(tmp_path / "run.safetensors").returned == trace.returned


def problems(trace, net, x) -> list[str]:
    return list(find_unaccounted(trace, [x, *net.state_dict().values()]))


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_verify_finds_every_returned_tensor_among_the_steps(rule):
    torch.manual_seed(0)
    net, x = Net(rule), torch.randn(1, 5, 8)
    assert not problems(tracer.trace(net, x), net, x)


def test_verify_counts_a_returned_tensor_that_no_step_has():
    torch.manual_seed(0)
    net, x = Net(RULES["the last token"]), torch.randn(1, 5, 8)
    trace = tracer.trace(net, x)
    computed, cut = trace.steps
    without = dataclasses.replace(trace, steps=(computed,), returned=(dataclasses.replace(trace.returned[0], step=""),))
    assert problems(without, net, x) == ["no step has what forward returns, float32 [1, 8]"]
    wrong = dataclasses.replace(trace, steps=(dataclasses.replace(computed, title="Output"), cut))
    assert problems(wrong, net, x) == [f"step {computed.id!r} is called 'Output', and forward does not return it"]
    other = dataclasses.replace(trace, output=trace.output + 1)
    assert len(problems(other, net, x)) == 2
    assert len(problems(dataclasses.replace(trace, returned=()), net, x)) == 1


def test_what_no_step_has_is_said():
    one = ReturnedTensor("pooled", (1, 8), "float32")
    assert unaccounted_note([one]) == "no step has what forward returns as 'pooled'"
    assert unaccounted_note([dataclasses.replace(one, step="pool")]) == ""
