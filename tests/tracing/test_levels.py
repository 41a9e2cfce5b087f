"""Levels of modules and calls, the costs of fused attention by its parts, and the primitives of one op alone."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import tracer
from tracer.capture import record
from tracer.capture.modes import as_module
from tracer.record import costs
from tracer.shapes import value_of
from tracer.tracing.records import OpSequence, account, levels
from tracer.verify.checks import run as checked


class Causal(nn.Module):
    """Fused attention between projections; the second module receives its tensor by name."""

    def __init__(self, D: int = 8, h: int = 2):
        super().__init__()
        self.h, self.packed, self.drop, self.output = h, nn.Linear(D, 3 * D), nn.Dropout(0.1), nn.Linear(D, D)

    def forward(self, x):
        B, S, D = x.shape
        q, k, v = self.packed(x).view(B, S, 3, self.h, D // self.h).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, S, D)
        return x + self.output(input=self.drop(mixed))


@pytest.fixture(scope="module")
def vit():
    model = tracer.load("vit", D=16, h=2, d_ff=24, L=2)
    return model, model.trace()


@pytest.fixture(scope="module")
def causal():
    with torch.no_grad():
        return tracer.trace(Causal().eval(), torch.randn(2, 5, 8), symbols={"B": 0, "T": 1})


def record_modules():
    """Return the calls of one module in another, and its ops."""
    with torch.no_grad():
        found = record(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), (torch.randn(2, 3),), calls=True)
    return found.calls, account(OpSequence(found.ops), (), (), None, (), ()).ops


def test_modules_are_what_hooks_saw_and_cost_what_their_ops_cost(vit):
    _, trace = vit
    root, sizes = trace.modules[0], {symbol.name: symbol.value for symbol in trace.symbols}
    assert (root.path, root.kind, root.around, root.params, root.flops) == ("", "ViT", None, trace.params, trace.flops)
    assert {module.verdict for module in trace.modules} == {"verified"}
    for module in trace.modules:
        cost = costs.of_module(trace, module)
        assert value_of(cost.params_symbolic, sizes) == cost.params == module.params
        assert value_of(cost.flops_symbolic, sizes) == cost.flops == module.flops
    attention = next(module for module in trace.modules if module.path == "block2.attention")
    assert attention.inputs[0].symbolic == ("B", "N + 1", "D") and trace.modules[attention.around].path == "block2"


@pytest.mark.parametrize("wrong", ["input", "output", "shape", "op"])
def test_hooks_that_saw_another_run_than_the_ops_are_refuted(wrong):
    assert all(module.verdict == "verified" for module in levels(*record_modules())[0])
    calls, ops = record_modules()
    linear, relu = calls.modules[1:]
    if wrong == "input":
        linear.inputs = linear.outputs
    elif wrong == "output":
        linear.outputs = relu.outputs
    elif wrong == "shape":
        linear.outputs = (linear.outputs[0]._replace(shape=(4, 2)),)
    else:
        ops = (replace(ops[0], module="1"), *ops[1:])
    found = levels(calls, ops)[0]
    assert [module.verdict for module in found] == ["verified", "refuted", "verified"] and found[1].problem


def test_what_is_given_by_name_went_in_too_and_dropout_hands_on(causal):
    by_path = {module.path: module for module in causal.modules}
    assert by_path["output"].inputs == by_path["drop"].outputs == by_path["drop"].inputs
    assert by_path["drop"].first == by_path["drop"].last and by_path["drop"].verdict == "verified"


def test_calls_have_the_arguments_of_their_schema(causal):
    texts = [call.text for call in causal.calls]
    assert "scaled_dot_product_attention(query, key, value, is_causal=True)" in texts
    assert "linear(input, weight, bias)" in texts and "dropout(input, p=0.1, train=False)" in texts
    assert [i for call in causal.calls for i in range(call.first, call.last)] == list(range(len(causal.ops)))
    fused = next(call for call in causal.calls if "attention" in call.name)
    assert [one.op for one in causal.ops[fused.first : fused.last]] == ["_scaled_dot_product_flash_attention_for_cpu"]


def test_a_fused_op_is_shared_out_among_the_steps_inside_of_it(causal):
    scores = next(step for step in causal.steps if step.id.endswith("scores"))
    op = causal.ops[scores.inside]
    assert scores.ops == () and scores.recomputed and costs.cost_of_step(causal, scores).flops == 2 * 2 * 2 * 5 * 5 * 4
    parts = costs.parts_of_step(causal, op.index)
    assert sum(flops for flops, _ in parts.values()) == op.flops and set(parts) == {scores.id, op.step}
    sizes = {symbol.name: symbol.value for symbol in causal.symbols}
    assert all(value_of(formula, sizes) == flops for flops, formula in parts.values())
    assert sum(costs.cost_of_step(causal, step).flops for step in causal.steps) == causal.flops


def test_one_op_is_opened_alone_and_as_all_of_them_are(vit):
    model, trace = vit
    norm = next(op.index for op in trace.ops if op.op == "native_layer_norm")
    alone, every = model.trace(prove=False, primitives=[norm]), model.trace(prove=False, primitives=True)
    assert alone.decompositions == (every.decompositions[norm],)
    assert {tensor.symbolic for part in alone.decompositions[0].primitives for tensor in part.outputs} > {
        ("B", "N + 1", "D")
    }


def test_pytorchs_own_tools_see_the_same(vit):
    model, trace = vit

    def problems(**changes):
        run = SimpleNamespace(model=model, inputs=model.inputs(), trace=replace(trace, **changes))
        return " ".join(checked.check_module_records(run))

    assert problems() == ""
    first, *others = trace.modules
    assert "PyTorch counts" in problems(modules=(replace(first, flops=1), *others))
    assert "hooks saw" in problems(modules=(first, replace(others[0], inputs=()), *others[1:]))
    assert "it fails" in problems(modules=(replace(first, problem="it fails"), *others))
    assert "it holds" in problems(modules=(replace(first, params=1), *others))
    assert "profiler lists" in problems(calls=trace.calls[1:])
    linear = replace(trace.calls[3], arguments=trace.calls[3].arguments[::-1])
    assert "profiler saw" in problems(calls=(*trace.calls[:3], linear, *trace.calls[4:]))


def test_a_module_traced_by_its_factory_has_steps_and_modules(monkeypatch, tmp_path, capsys):
    from tracer import cli

    (tmp_path / "made_here.py").write_text(
        "import torch\n\ndef small(B=1, D=4):\n    return torch.nn.Linear(D, 3), (torch.ones(B, D),)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for level, word in (("steps", "W}_"), ("modules", "Linear"), ("calls", "linear(input, weight, bias)")):
        assert cli.main(["trace", "--module", "made_here:small", "--zoom", level]) == 0
        assert word in capsys.readouterr().out


def mask_scores(x):
    """Compute a softmax with tensors that the code builds itself, a view, a write and an op that PyTorch decomposes."""
    scores = x @ x.mT * torch.tensor(2.0) + torch.full((3, 3), 1.0).triu(1)
    scores[..., 0] = 0
    return scores.softmax(-1).transpose(-2, -1).contiguous()


def test_a_call_that_is_one_op_is_seen_as_where_gradients_have_it_looked_into():
    x, seen = torch.randn(2, 3, 4), []
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            seen.append(record(as_module(mask_scores), (x,), cap=2**20, calls=True))
    assert seen[0].ops == seen[1].ops and seen[0].calls.signature == seen[1].calls.signature
    assert seen[0].calls.entries == seen[1].calls.entries
