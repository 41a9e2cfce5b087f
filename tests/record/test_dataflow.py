"""What each step reads, and its role: of the equation and the textbook, in every record of a run."""

import torch
from torch import nn

import tracer
from tracer import changes
from tracer.textbook.names import words


def test_a_step_reads_the_lines_inputs_and_parameters_of_its_equation_in_order():
    trace = tracer.load("vit", D=8, h=2, L=1).trace()
    reads = {step.id: step.reads for step in trace.steps}
    assert reads["patches"] == ("input image",)
    assert reads["sequence"] == ("parameter cls", "embedding")
    assert reads["block1.attention.scores"] == ("block1.attention.query", "block1.attention.key")
    assert reads["block1.attention.residual"] == ("position", "block1.attention.output")
    assert trace.producers["sequence"] == ("embedding",) and trace.producers["patches"] == ("input image",)


def test_an_op_that_takes_a_shape_alone_reads_nothing():
    trace = tracer.load("transformer", positions="relative", L=2).trace()
    assert trace.step("block2.attention.shares").reads == ("block2.attention.weights", "distances")


def test_parts_of_a_packed_product_read_it():
    layer = nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    trace = tracer.trace(layer, torch.randn(2, 5, 8))
    packed = [step for step in trace.steps if step.role == "attention output"]
    assert [trace.producers[step.id] for step in packed] == [("attention.context",)]


def test_a_recurrence_reads_itself_and_leads_not_to_itself():
    class Decay(nn.Module):
        def forward(self, x):
            state = torch.zeros(x.shape[0])
            for t in range(x.shape[1]):
                state = 0.5 * state + x[:, t]
            return state

    trace = tracer.trace(Decay(), torch.randn(2, 5))
    (state,) = (step for step in trace.steps if step.id in step.reads)
    assert set(state.reads) == {state.id, "input x"} and trace.producers[state.id] == ("input x",)


def test_a_change_that_reads_nothing_comes_after_the_line_that_it_replaces():
    model = tracer.load("nanogpt", D=8, h=2, L=2)
    line = "block2.attention.weights"
    zero = model.trace(change={line: changes.zero(), "parameter block1.norm1.weight": changes.zero()})
    changed, context = zero.step(f"{line}.changed"), zero.step("block2.attention.context")
    assert changed.reads == () and zero.producers[changed.id] == (line,) and changed.role == "attention weights"
    assert zero.producers["parameters.block1.norm1.weight.changed"] == ()
    assert context.reads == (changed.id, "block2.attention.value")


def test_roles_are_those_of_the_papers_however_a_module_is_called():
    roles = {step.id: step.role for step in tracer.load("llama").trace(prove="later").steps}
    block = [role for id, role in roles.items() if id.startswith("block1.")]
    assert block == [
        "norm", "queries", "keys", "values", "queries", "keys", "scores", "attention weights", "context",
        "attention output", "residual stream", "norm", "gate", "activation", "MLP hidden", "gated activation",
        "MLP output", "residual stream",
    ]  # fmt: skip
    assert [role for id, role in roles.items() if "block" not in id] == [
        "rotary angles", "rotary cosines", "rotary sines", "mask", "token embeddings", "norm", "logits",
    ]  # fmt: skip
    trace = tracer.trace(nn.TransformerEncoderLayer(8, 2, batch_first=True).eval(), torch.randn(2, 5, 8))
    assert {"queries", "keys", "values", "scores", "attention weights", "context"} <= {s.role for s in trace.steps}
    assert tracer.trace(nn.Linear(3, 2), torch.randn(2, 3)).steps[0].role == words("Z") == "logits"
