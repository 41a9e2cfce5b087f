"""Parameters changed by name: equal to a copy whose weights were edited, and a line of its own in the textbook."""

import copy

import pytest
import torch
from torch import nn

import tracer
from tracer import changes

MATRIX = "block3.attention.output.weight"


def run_edited(model, edits):
    """Return the output of a copy of the net whose parameters were replaced: `edits[path]` gives the new one."""
    net = copy.deepcopy(model.net)
    with torch.no_grad():
        for path, edit in edits.items():
            net.get_parameter(path).copy_(edit(net.get_parameter(path).clone()))
        return net(*model.inputs())


@pytest.mark.parametrize(
    ("path", "change", "edit"),
    [
        (MATRIX, "zero", torch.zeros_like),
        (MATRIX, "scale(-0.5)", lambda weight: -0.5 * weight),
        ("block2.norm1.bias", lambda bias: bias + 1, lambda bias: bias + 1),
        ("position", ["scale(2)", "scale(3)"], lambda table: 6 * table),
    ],
)
def test_a_changed_parameter_is_the_same_as_an_edited_one(vit, plain, path, change, edit):
    before = {name: parameter.clone() for name, parameter in vit.net.named_parameters()}
    trace = vit.trace(change={f"parameter {path}": change})
    assert torch.equal(trace.output, run_edited(vit, {path: edit})) and not torch.equal(trace.output, plain.output)
    assert {step.verdict for step in trace.steps} == {"verified"} and trace.coverage == 1
    assert [step.id for step in trace.steps if step.id.endswith(".changed")] == [f"parameters.{path}.changed"]
    assert all(torch.equal(before[name], parameter) for name, parameter in vit.net.named_parameters())
    assert torch.equal(vit.trace(prove=False).output, plain.output)


def test_the_textbook_shows_the_parameter_before_the_line_that_reads_it(vit, plain):
    trace = vit.trace(change={f"parameter {MATRIX}": changes.take("parameter block2.attention.output.weight")}).check()
    ids = [step.id for step in trace.steps]
    place = ids.index("block3.attention.output")
    assert ids[place - 1] == f"parameters.{MATRIX}.changed"
    assert trace.steps[place - 1].latex == (
        r"\check{\mathbf{W}}_{O}^{(3)} = {\mathbf{W}_{O}^{(2)}}^{\top}"  # equations have matrices as [in, out]
    )
    assert r"\check{\mathbf{W}}_{O}^{(3)}" in trace.steps[place].latex
    assert {step.verdict for step in trace.steps} == {"verified"} and {step.checked for step in trace.steps} == {3}
    assert [id for id in ids if not id.endswith(".changed")] == [step.id for step in plain.steps]
    assert trace.changes == (f"parameter {MATRIX}=take(parameter block2.attention.output.weight)",)
    assert changes.write(changes.parse_all(trace.changes)) == trace.changes


def test_patterns_of_parameters_match_no_lines_and_patterns_of_lines_no_parameters(vit):
    biases = vit.trace(change={"parameter *.norm1.bias": "zero"}, prove=False)
    changed = [step.id for step in biases.steps if step.id.endswith(".changed")]
    assert changed == [f"parameters.block{block}.norm1.bias.changed" for block in range(1, 4)]
    lines = vit.trace(change={"*position*": "scale(2)"}, prove=False)
    assert [step.id for step in lines.steps if step.id.endswith(".changed")] == ["position.changed"]
    both = vit.trace(change={"parameter position": "zero", "position": "scale(2)"})
    assert {step.id for step in both.steps if step.id.endswith(".changed")} == {
        "parameters.position.changed",
        "position.changed",
    }
    assert {step.verdict for step in both.steps} == {"verified"}


def test_a_parameter_of_two_names_changes_wherever_it_is_read():
    model = tracer.load("nanogpt")
    trace = model.trace(change={"parameter tokens.weight": "scale(2)"})
    readers = [step.id for step in trace.steps if r"\check" in step.latex and not step.id.endswith(".changed")]
    assert readers == ["embedding", "logits"]
    assert torch.equal(trace.output, run_edited(model, {"tokens.weight": lambda table: 2 * table}))


def test_an_alias_of_a_parameter_is_changed_and_a_buffer_is_written_nowhere():
    class Aliased(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x):
            self.count.add_(1)
            return x * self.weight.data + self.count

    module, x = Aliased(), torch.ones(2, 3)
    trace = tracer.trace(module, x, change={"parameter weight": "scale(5)", "parameter count": lambda c: c + 10})
    assert torch.equal(trace.output, torch.full((2, 3), 16.0)) and not module.count.any()
    assert {step.verdict for step in trace.steps} == {"verified"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parameter norm.bais": "zero"}, "no parameter 'norm.bais' to change; the nearest are 'parameter norm.bias'"),
        ({"parameter *.foo": "zero"}, "no parameter '*.foo' to change; the nearest are 'parameter "),
        ({MATRIX: "zero"}, f"no line '{MATRIX}' to change; the nearest are 'parameter {MATRIX}'"),
        ({"parameter norm.bias": "drop_heads(0)"}, "'parameter norm.bias' has no axis of heads"),
        ({"parameter norm.bias": "take(block2.mlp.output)"}, "'block2.mlp.output' is computed after"),
        ({"parameter norm.bias": torch.zeros(3)}, "has shape [128], but was to be replaced by one of [3]"),
        ({"parameter norm.bias": "causal"}, "expected the scores of an attention"),
    ],
)
def test_parameters_that_can_not_be_changed_are_refused(vit, change, message):
    with pytest.raises(ValueError) as error:
        vit.trace(change=change)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_gradients_reach_the_parameter_through_its_change(vit):
    net, (x,) = (
        vit.with_changes({"parameter head.weight": "scale(3)", "block3.mlp.output": "scale(0.5)"}).net,
        vit.inputs(),
    )
    gradients = torch.autograd.grad(net(x)[0, 0], [net.head.weight, net.block3.mlp.contract.bias])
    plain = copy.deepcopy(vit.net)
    plain.block3.mlp.register_forward_hook(lambda module, args, output: output * 0.5)
    expected = torch.func.functional_call(plain, {"head.weight": 3 * plain.head.weight}, (x,))[0, 0]
    for ours, theirs in zip(
        gradients, torch.autograd.grad(expected, [plain.head.weight, plain.block3.mlp.contract.bias]), strict=True
    ):
        torch.testing.assert_close(ours, theirs)
