"""A run with values of lines replaced: equal to edited weights or hooks of plain PyTorch, derived and verified anew."""

import copy
import pickle
import threading
from dataclasses import replace

import pytest
import torch
from torch import nn

import tracer
from tests.support.loaded_models import load
from tests.support.sweeping import cases
from tracer import changes, zoo
from tracer.attention import masks
from tracer.capture.interventions import CallSite, Intervention, with_interventions
from tracer.inputs.model_inputs import Inputs
from tracer.verify.checks.reference_run import plain as plain_of
from tracer.verify.checks.sentences import check_explanation_numbers

WEIGHTS = "block3.attention.weights"


def run_edited(model, path, edit):
    """Return the output of a copy of the net, one module of which was edited."""
    net = copy.deepcopy(model.net)
    with torch.no_grad():
        edit(net.get_submodule(path))
        return net(*model.inputs())


def run_with_hook(model, path, hook):
    """Return the output of a copy of the net with a forward hook."""
    net = copy.deepcopy(model.net)
    net.get_submodule(path).register_forward_hook(lambda module, args, output: hook(output, *args))
    with torch.no_grad():
        return net(*model.inputs())


def lines(trace):
    return {step.id: step.latex for step in trace.steps}


def test_one_head_off_is_the_same_as_zeroed_columns_of_the_output_projection(vit):
    def zero_columns(attention):
        attention.output.weight[:, 32:64] = 0

    trace = vit.trace(change={WEIGHTS: changes.drop_heads([1])})
    torch.testing.assert_close(trace.output, run_edited(vit, "block3.attention", zero_columns), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("line", "change", "path", "hook"),
    [
        ("block2.mlp.output", changes.zero(), "block2.mlp", lambda y, x: 0 * y),
        ("block2.mlp.output", changes.scale(-0.5), "block2.mlp", lambda y, x: -0.5 * y),
        ("block2.mlp.output", changes.mean(), "block2.mlp", lambda y, x: y.mean(1, keepdim=True).expand_as(y)),
        ("block2.norm1", changes.off(), "block2.norm1", lambda y, x: x),
        ("block2.mlp.output", lambda y: y.clamp(0), "block2.mlp", lambda y, x: y.clamp(0)),
        ("block2.mlp.output", ["zero", lambda y: y + 1], "block2.mlp", lambda y, x: torch.ones_like(y)),
    ],
)
def test_a_change_is_the_same_as_a_hook(vit, line, change, path, hook):
    trace = vit.trace(change={line: change})
    torch.testing.assert_close(trace.output, run_with_hook(vit, path, hook), rtol=1e-5, atol=1e-5)
    assert {step.verdict for step in trace.steps} == {"verified"} and trace.coverage == 1


def test_the_change_is_a_line_and_all_others_stay(vit, plain):
    trace = vit.trace(change={WEIGHTS: "drop_heads(1)"})
    before, after = lines(plain), lines(trace)
    assert set(after) - set(before) == {f"{WEIGHTS}.changed"} and not set(before) - set(after)
    assert [id for id in before if before[id] != after[id]] == ["block3.attention.context"]
    assert r"\check{\mathbf{A}}^{(3)}" in after["block3.attention.context"]
    assert [step.symbolic for step in plain.steps] == [s.symbolic for s in trace.steps if not s.id.endswith(".changed")]
    assert trace.changes == (f"{WEIGHTS}=drop_heads(1)",) and trace.changes[0] in trace.notes[0]


def test_changed_lines_hold_on_other_runs(vit):
    trace = vit.trace(change={WEIGHTS: "drop_heads(1)", "block2.mlp.output": "scale(2)"}).check()
    assert {step.verdict for step in trace.steps} == {"verified"} and {step.checked for step in trace.steps} == {3}


def test_the_attention_of_a_changed_run_is_what_values_were_multiplied_by(vit, plain):
    dropped = vit.trace(change={WEIGHTS: "drop_heads(1)"}).attention(2)
    assert not dropped[:, 1].any() and torch.equal(dropped[:, 0], plain.attention(2)[:, 0])
    uniform = vit.trace(change={"block3.attention.scores": "zero"}).attention(2)
    torch.testing.assert_close(uniform, torch.full_like(uniform, 1 / 65))


def test_a_value_of_the_same_run_or_of_another_takes_its_place(vit, plain):
    same = vit.trace(change={"block3.mlp.residual": plain})
    assert torch.equal(same.output, plain.output)
    assert all(size.isdigit() or size != "?" for size in same.step("block3.mlp.residual.changed").symbolic)
    skipped = vit.trace(change={"block3.mlp.residual": changes.take("block2.mlp.residual")})
    other = vit.trace(change={f"block3.{part}.output": "zero" for part in ("attention", "mlp")})
    torch.testing.assert_close(skipped.output, other.output, rtol=1e-5, atol=1e-5)


def test_noise_is_drawn_from_its_seed(vit):
    first, again, third = (vit.trace(change={"embedding": f"noise(0.1,{seed})"}).output for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, third)


def test_the_model_is_left_alone_after_an_error_too(vit, plain):
    with pytest.raises(ZeroDivisionError):
        vit.trace(change={WEIGHTS: lambda weights: 1 / 0})
    vit.trace(change={WEIGHTS: "zero"})
    assert torch.equal(vit.trace().output, plain.output) and not vit.changes


def test_a_change_does_not_write_into_the_value_that_it_was_given(vit, plain):
    trace = vit.trace(change={"block1.attention.output": lambda x: x.mul_(0)})
    assert torch.equal(trace.value("block1.attention.output"), plain.value("block1.attention.output"))
    zeroed = vit.trace(change={"block1.attention.output": "zero"})
    assert torch.equal(trace.output, zeroed.output)


def test_threads_change_one_model_at_once(vit):
    outputs = {}

    def run(head):
        outputs[head] = vit.trace(change={WEIGHTS: changes.drop_heads([head])}, prove=False).output

    threads = [threading.Thread(target=run, args=(head,)) for head in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for head in range(4):
        assert torch.equal(outputs[head], vit.trace(change={WEIGHTS: changes.drop_heads([head])}, prove=False).output)


@pytest.mark.parametrize("name", cases(("hf:llama", "hf:gpt2"), ("hf:gpt2",)))
def test_fused_attention_is_opened_where_a_line_inside_is_changed(name):
    model = load(name)
    plain = model.trace(prove=False)
    layer = next(step.id for step in plain.steps if step.id.endswith("attention.weights")).removesuffix(".weights")
    assert plain.step(f"{layer}.weights").recomputed
    trace = model.trace(change={f"{layer}.weights": "drop_heads(1)"})
    assert not trace.step(f"{layer}.weights").recomputed and trace.step(f"{layer}.weights").verdict == "verified"
    assert {step.verdict for step in trace.steps} <= {"verified", "recomputed"}
    other = model.trace(change={f"{layer}.value": "scale(1)"}, prove=False)
    logits = next(iter(trace.result.values())) if isinstance(trace.output, dict) else trace.output
    assert logits is not None and other.changes


def test_opened_attention_is_solved_once_for_changes_with_and_without_sizes(monkeypatch):
    model, solved = tracer.load("hf:gpt2", **zoo.tiny("hf:gpt2")), []
    own = type(model)._solved_now
    monkeypatch.setattr(type(model), "_solved_now", lambda *given: solved.append(1) or own(*given))
    model.with_changes({"transformer.h.0.attention.scores": "zero"})
    assert len(solved) == 2  # as it runs, and opened
    model.with_changes({"transformer.h.0.attention.scores": "close(0;2)"})
    assert len(solved) == 2


@pytest.mark.parametrize(
    ("one", "another", "third"),
    [("drop_heads(0)", "drop_heads(2)", "drop_heads(0,2)"), ("scale(0.5)", "scale(0.25)", "zero")],
)
def test_changes_that_differ_in_numbers_alone_are_solved_once(monkeypatch, one, another, third):
    sizes = {"L": 2, "D": 16, "h": 4, "d_ff": 24}
    model, alone = tracer.load("nanogpt", **sizes), tracer.load("nanogpt", **sizes)
    solved, own = [], type(model)._solved_now
    monkeypatch.setattr(type(model), "_solved_now", lambda *given: solved.append(1) or own(*given))
    model.trace(change={"block1.attention.weights": one})
    assert len(solved) == 2  # the run whose lines are looked up, and the changed one
    trace = model.trace(change={"block1.attention.weights": another})
    assert len(solved) == 2
    by_itself = alone.trace(change={"block1.attention.weights": another})
    assert [(s.latex, s.symbolic) for s in trace.steps] == [(s.latex, s.symbolic) for s in by_itself.steps]
    before = len(solved)
    model.trace(change={"block1.attention.weights": third})
    assert len(solved) == before + 1


def test_fused_attention_written_out_is_the_kernel():
    from tracer.capture.interventions import explicit_attention

    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 6)
    for given in (
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": torch.randn(5, 7)},
        {"attn_mask": torch.rand(5, 7) > 0.3},
    ):
        kernel = nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True, **given)
        torch.testing.assert_close(explicit_attention(q, k, v, enable_gqa=True, **given), kernel)


def test_a_module_of_ones_own_and_a_function_can_be_changed():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(1, 5, 8)
    with torch.no_grad():
        trace = tracer.trace(layer, x, symbols={"B": 0, "T": 1}, change={"linear1.linear": "zero"})
        assert trace.step("linear1.linear.changed").symbolic == ("B", "T", "16")
        hook = layer.linear1.register_forward_hook(lambda module, args, output: 0 * output)
        torch.testing.assert_close(trace.output, layer(x), rtol=1e-5, atol=1e-5)
        hook.remove()
    changed = tracer.trace(lambda y: torch.relu(y @ y.T), torch.eye(3), change={"matmul": lambda y: y - 1})
    assert not changed.output.any() and changed.step("matmul.changed").verdict == "verified"


def test_written_tensors_keep_their_memory():
    class Adds(nn.Module):
        def forward(self, x):
            y = x * 2
            view = y.view(-1)
            y.add_(1)
            return view.sum()

    times_ten = Intervention(CallSite("", 0, "add_", 0), change=lambda y: y * 10)
    assert with_interventions(Adds(), [times_ten])(torch.ones(2, 3)) == 180


class Outer(nn.Module):
    """A module that calls another one between two additions."""

    class Inner(nn.Module):
        def __init__(self, fails):
            super().__init__()
            self.again, self.fails = True, fails

        def forward(self, x):
            if self.fails:
                raise RuntimeError("it fails here")
            if again := self.again:
                self.again = False
                x = self(x)  # it calls itself once
                self.again = True
            return x + 1 if again else x * 5

    def __init__(self, fails=False):
        super().__init__()
        self.layer = nn.Sequential(self.Inner(fails))

    def forward(self, x):
        return self.layer(x + 1) + 1


def test_calls_of_a_module_and_of_one_inside_it_are_replaced_once():
    def times_ten(path, call, name):
        return Intervention(CallSite(path, call, name, 0), change=lambda y: y * 10)

    x = torch.ones(1)
    assert Outer()(x) == 12
    inner = times_ten("layer.0", 0, "add")
    assert with_interventions(Outer(), [inner])(x) == 111
    assert with_interventions(Outer(), [inner, times_ten("layer.0", 1, "mul")])(x) == 1011
    assert with_interventions(Outer(), [inner, times_ten("", 0, "add")])(x) == 1011


def test_an_error_in_a_changed_module_leaves_no_mode_behind():
    zero = Intervention(CallSite("layer.0", 0, "add", 0), change=torch.zeros_like)
    with pytest.raises(RuntimeError, match="it fails here"):
        with_interventions(Outer(fails=True), [zero])(torch.ones(1))
    assert (torch.ones(1, requires_grad=True) + 1).requires_grad, "inside the mode, autograd is left out"


def test_a_call_that_never_comes_is_an_error():
    never = Intervention(CallSite("linear1", 0, "linear", 1), change=torch.zeros_like, text="zero")
    layer = with_interventions(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), [never])
    with pytest.raises(ValueError, match=r"'zero' had nothing to change: .* 'linear1' did not call linear 2 times"):
        layer(torch.randn(1, 5, 8))


def test_a_changed_run_is_saved_and_opened(vit, tmp_path):
    trace = vit.trace(change={WEIGHTS: "drop_heads(1)"})
    trace.save(tmp_path / "changed.safetensors")
    opened = tracer.open(tmp_path / "changed.safetensors")
    assert opened.changes == trace.changes and torch.equal(opened.attention(2), trace.attention(2))
    assert opened.prove().step(f"{WEIGHTS}.changed").verdict == "verified"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block3.attention.weight": "zero"}, "no line 'block3.attention.weight' to change; the nearest are 'block3"),
        ({WEIGHTS: "zer"}, "no change 'zer'; did you mean 'zero'?"),
        ({WEIGHTS: "drop_heads(9)"}, "no head 9, expected 0 to 3"),
        ({WEIGHTS: changes.zero}, "a kind of change, expected one with its arguments, as in zero()"),
        ({WEIGHTS: 3}, "3 is not a change"),
        ({"block3.mlp.output": "drop_heads(1)"}, "'block3.mlp.output' has no axis of heads"),
        ({"block3.mlp.output": lambda x: x[0]}, "returned shape [65, 128], expected [1, 65, 128]"),
        ({"block3.mlp.output": lambda x: 3}, "returned 3, expected a tensor"),
        ({"block3.mlp.output": torch.zeros(3)}, "was to be replaced by one of [3]"),
        ({"block3.mlp.output": "take(logits)"}, "'logits' is computed after 'block3.mlp.output'"),
        ({"block3.mlp.output": "scale(a)"}, "'scale(a)' can't be read: expected something like scale(0.5)"),
    ],
)
def test_what_can_not_be_changed_is_refused_in_a_sentence(vit, change, message):
    with pytest.raises(ValueError) as error:
        vit.trace(change=change)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("line", "change", "equation"),
    [
        ("*.attention.scores", "unscale", r"\check{\mathbf{S}}^{(1)} = \mathbf{Q}^{(1)}\,{\mathbf{K}^{(1)}}^{\top}"),
        ("position", "off", r"\check{\mathbf{X}}^{(0)} = \mathbf{X}_{\mathrm{seq}}"),
        ("block1.attention.residual", "off", r"\check{\mathbf{X}}'^{(1)} = \mathbf{O}^{(1)}"),
        pytest.param(
            "block1.attention.scores",
            "scale(0.5)",
            r"\check{\mathbf{S}}^{(1)} = 0.5\,\mathbf{S}^{(1)}",
            marks=pytest.mark.sweep,
        ),
    ],
)
def test_parts_of_the_structure_are_switched_off(vit, line, change, equation):
    trace = vit.trace(change={line: change}).check()
    changed = [step for step in trace.steps if step.id.endswith(".changed")]
    assert changed[0].latex == equation and len(changed) == (3 if "*" in line else 1)
    assert {step.verdict for step in trace.steps} == {"verified"} and {step.checked for step in changed} == {3}


def test_masks_close_keys(vit):
    causal = vit.trace(change={"block1.attention.scores": "causal"}).attention(0)
    assert torch.equal(causal > 0, torch.ones(65, 65).tril().bool().expand(1, 4, -1, -1))
    near = vit.trace(change={"block1.attention.scores": "window(3)"}).attention(0)[0, 0]
    assert (near > 0).sum(-1).tolist() == [3, 4, *[5] * 61, 4, 3]


def test_cells_are_closed_at_the_sizes_of_each_text():
    model, line = tracer.load("nanogpt"), "block1.attention.scores"
    for text in ("To be", "To be, or not"):
        last = len(text) - 1
        weights = model.trace(text=text, change={line: changes.close([0, 1], [last])}).attention(0)
        assert not weights[..., last, :2].any() and weights[..., last, 2:].all()
    with pytest.raises(ValueError, match="there is no query 12, expected 0 to 4"):
        model.trace(text="To be", change={line: changes.close([0], [12])})


def test_shuffled_positions_keep_the_tokens(vit):
    trace = vit.trace(change={"position": "shuffle_positions(0)"})
    tokens, before, after = (trace.value(id) for id in ("sequence", "position", "position.changed"))
    added, shuffled = before - tokens, after - tokens
    assert torch.allclose(added.sort(1).values, shuffled.sort(1).values, atol=1e-5)
    assert not torch.allclose(added, shuffled)


@pytest.mark.parametrize("fill", ["grey", "mean", "blur"])
def test_patches_of_the_photo_are_hidden(vit, fill):
    plain, hidden = vit.inputs(), vit.with_changes({"image": changes.hide([0, 9], fill)}).inputs()
    moved = (plain[0] != hidden[0]).any(1)[0].view(8, 4, 8, 4).any(3).any(1)
    assert moved.nonzero().tolist() == [[0, 0], [1, 1]]
    assert plain.photo.shape == hidden.photo.shape and (plain.photo != hidden.photo).any()
    trace = vit.trace(change={"image": changes.hide([0, 9], fill)})
    assert trace.changes == (f"image=hide(0,9,{fill})",) and {step.verdict for step in trace.steps} == {"verified"}
    assert torch.equal(trace.output, vit.net(hidden[0]).detach())


def test_removed_patches_leave_the_sequence(vit, tmp_path):
    trace = vit.trace(change={"image": changes.hide([0, 9], "removed")})
    stay = [0, *(1 + patch for patch in range(64) if patch not in (0, 9))]
    net = copy.deepcopy(vit.net)
    net.block1.register_forward_pre_hook(lambda module, args: (args[0][:, stay], *args[1:]))
    with torch.no_grad():
        expected, whole = net(*vit.inputs()), vit.net(*vit.inputs())
    torch.testing.assert_close(trace.output, expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(trace.output, whole, atol=1e-3)
    assert trace.step("kept").symbolic == ("B", "N_v + 1", "D") and trace.attention(0).shape[-1] == 63
    assert {step.verdict for step in trace.steps} == {"verified"} and trace.coverage == 1
    assert tracer.attention.unseen(trace)[1] == (0, 9)
    trace.save(tmp_path / "run.safetensors")
    opened = tracer.open(tmp_path / "run.safetensors")
    assert opened.changes == trace.changes and tracer.attention.places(opened) == tracer.attention.places(trace)


def test_a_changed_run_prepares_its_inputs_once(vit, plain, monkeypatch):
    calls = []

    def prepare(*arguments):
        calls.append(arguments)
        return own(*arguments)

    own = vit.spec.prepare
    monkeypatch.setattr(vit, "spec", replace(vit.spec, prepare=prepare))
    model = vit.with_changes({"image": "hide(0)"}, vit.inputs())
    calls.clear()
    trace = model.trace(change={WEIGHTS: "drop_heads(1)"}, prove=False)
    assert len(calls) == 1 and trace.changes == ("image=hide(0,mean)", f"{WEIGHTS}=drop_heads(1)")
    both = vit.trace(change={"image": "hide(0)", WEIGHTS: "drop_heads(1)"}, prove=False)
    assert torch.equal(trace.output, both.output) and not torch.equal(trace.output, plain.output)


def test_tensors_by_name_are_mapped_alone_where_names_are_said():
    inputs = Inputs((torch.zeros(1),), named={"input_ids": torch.zeros(1), "more": (torch.zeros(2), None)})
    every = inputs.map_tensors(lambda tensor: tensor + 1)
    assert every[0] == every.named["input_ids"] == 1 and every.named["more"][0].sum() == 2 and not inputs[0]
    ids = inputs.map_tensors(lambda tensor: tensor + 1, ["input_ids"])
    assert ids[0] == ids.named["input_ids"] == 1 and not ids.named["more"][0].any()


def test_words_are_masked():
    model = tracer.load("nanogpt")
    plain, masked = model.inputs(), model.with_changes({"text": changes.mask_words([0, 3], 5)}).inputs()
    assert masked[0][0, [0, 3]].tolist() == [5, 5] and torch.equal(masked[0][:, 4:], plain[0][:, 4:])
    assert [at for at, (a, b) in enumerate(zip(plain.words, masked.words, strict=True)) if a != b] == [0, 3]


def test_patches_are_not_removed_where_the_model_can_not_leave_any_out():
    with pytest.raises(ValueError, match="can't run on some of its patches alone"):
        tracer.load("segmenter").trace(change={"image": "hide(3,removed)"})


def test_permuted_weights_leave_the_model_alone(vit, plain):
    before = {name: parameter.clone() for name, parameter in vit.net.named_parameters()}
    trace = vit.trace(change={"weights": changes.permute(0)})
    assert not torch.equal(trace.output, plain.output) and {step.verdict for step in trace.steps} == {"verified"}
    assert all(torch.equal(before[name], parameter) for name, parameter in vit.net.named_parameters())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image": "hide(99)"}, "no patch 99, expected 0 to 63"),
        ({"image": f"hide({','.join(map(str, range(64)))},removed)"}, "leaves no patch, expected one at least"),
        ({"image": "zero"}, "'image' can't be changed by zero, expected hide(27,28,grey)"),
        ({"text": "mask_words(0;1)"}, "the model takes no text"),
        ({"block1.mlp.output": "causal"}, "expected the scores of an attention"),
        ({"block1.mlp.output": "hide(1)"}, "which is a change of 'image'"),
        ({"x.*.y": "zero"}, "no line 'x.*.y' to change"),
        ({"image": "hide(1,pink)"}, "'hide(1,pink)' can't be read: expected something like hide(27,28,grey)"),
    ],
)
def test_inputs_that_can_not_be_changed_are_refused(vit, change, message):
    with pytest.raises(ValueError) as error:
        vit.trace(change=change)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "zero",
        "scale(0.5)",
        "drop_heads(1,3)",
        "keep_heads(0)",
        "noise(0.1,7)",
        "take(a.b)",
        "window(8)",
        "close(0,1;5)",
        "open(5;0,1)",
        "prefix(3)",
        "bidirectional",
    ],
)
def test_texts_of_changes_are_read_as_they_are_written(text):
    assert changes.write(changes.parse_all([f"x.y={text}"])) == (f"x.y={text}",)


def test_a_function_has_no_text():
    with pytest.raises(ValueError, match="no name that can be written"):
        changes.write(changes.changes_of({"x": lambda x: x}))


@pytest.mark.parametrize("scores", ["zero", "scale(0.5)"])
def test_masks_are_read_from_changed_scores_and_saved_with_them(scores, tmp_path):
    ran = tracer.load("nanogpt").trace(change={"block2.attention.scores": scores})
    ran.save(tmp_path / "run.safetensors")
    size = ran.attentions[1].queries
    expected = torch.ones(size, size).bool() if scores == "zero" else torch.ones(size, size).tril().bool()
    for trace in (ran, tracer.open(tmp_path / "run.safetensors")):
        assert torch.equal(masks.visible(trace, 1), expected) and trace.changes == ran.changes
        assert masks.whole(trace, [0, 1], 1).before.shape[-2:] == (2, size)
        assert torch.equal(trace.attention(1), ran.attention(1))
    (source,) = ran.producers["block2.attention.scores.changed"]
    assert source == "block2.attention.scores"


@pytest.mark.parametrize(
    ("forward", "x", "change"),
    [
        (lambda x: (x * 2).max(0), torch.arange(4.0), {"logits": "zero", "max": "zero"}),
        (lambda x: torch.fft.fft(x) * 2, torch.randn(3, 4), {"logits": "noise(0.1,3)"}),
        (lambda x: x.relu().sum(), torch.arange(4.0), {"logits": ["noise(1,0)", "mean"]}),
    ],
)
def test_single_numbers_places_and_complex_numbers_can_be_changed(forward, x, change):
    trace = tracer.trace(forward, x, change=change)
    assert {step.verdict for step in trace.steps} == {"verified"}, [(step.id, step.latex) for step in trace.steps]
    assert {step.id for step in trace.steps if step.id.endswith(".changed")} == {f"{line}.changed" for line in change}


def test_a_recurrent_line_reads_its_own_value_of_the_step_before():
    torch.manual_seed(0)
    take, keep = nn.Linear(4, 5), nn.Linear(5, 5)

    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.take, self.keep = take, keep

        def forward(self, x):
            h, states = x.new_zeros(x.shape[0], 5), []
            for token in range(x.shape[1]):
                h = torch.tanh(self.take(x[:, token]) + self.keep(h))
                states.append(h)
            return torch.stack(states, 1)

    model, x = Loop(), torch.randn(2, 6, 4)
    with torch.no_grad():
        trace = tracer.trace(model, x, change={"state": "scale(3)"})
        assert torch.equal(trace.output, 3 * model(x))
    assert [step.verdict for step in trace.steps] == ["verified", "verified"]
    assert r"\mathbf{h}_{t-1}" in trace.step("state").latex and "check" not in trace.step("state").latex


def test_off_keeps_no_mask_of_scores():
    def attend(x):
        return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    x = torch.randn(2, 3, 5, 4)
    trace = tracer.trace(attend, x, change={"attention.scores": "off"})
    torch.testing.assert_close(trace.output, x.mean(2, keepdim=True).expand_as(x))


def test_changes_of_two_patterns_that_match_one_line_are_both_done(vit):
    trace = vit.trace(change={"*.attention.scores": "scale(2)", "block1.attention.scores": "causal"}, prove=False)
    both = vit.trace(change={"block1.attention.scores": ["scale(2)", "causal"]}, prove=False)
    assert torch.equal(trace.attention(0), both.attention(0))


def test_weights_after_dropout_inside_of_a_kernel_are_refused():
    def attend(x):
        return nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)

    with pytest.raises(ValueError, match=r"'attention.weights' can't be changed: no call of the model returns it"):
        tracer.trace(attend, torch.randn(1, 2, 5, 4), change={"attention.weights": "zero"})


def test_numbers_in_texts_keep_all_their_digits(vit):
    texts = ["x=scale(1.23456789)", "x=noise(0.123456789,3)", "x=scale(1e+30)"]
    for text in texts:
        assert changes.write(changes.parse_all([text])) == (text,)
    near, nearer = (vit.trace(change={"logits": f"scale({factor})"}, prove=False) for factor in (1.0000001, 1.0000002))
    assert near.changes != nearer.changes and not torch.equal(near.output, nearer.output)


@pytest.mark.parametrize("kind", ["shuffle", "shuffle_positions", "permute", "noise"])
@pytest.mark.parametrize("seed", ["-1", "1.5", "nan", "1e3", f"1{'0' * 30}", "²"])
def test_seeds_are_whole_numbers(kind, seed):
    with pytest.raises(ValueError, match=rf"the change '{kind}\(.*' can't be read: expected something like {kind}\("):
        changes.parse(f"{kind}({'0.1,' if kind == 'noise' else ''}{seed})")


@pytest.mark.parametrize(
    "text",
    [
        "x=drop_heads(" + ",".join(map(str, range(10_000))) + ")",
        "x=drop_heads(" + "9" * 4000 + ")",
        "image=hide(" + ",".join(map(str, range(10_000))) + ")",
        "image=hide(" + "9" * 4000 + ")",
        "image=take(a\nb" + "c" * 5000 + ")",
        "block1.mlp.output=take(a\nb" + "c" * 5000 + ")",
        "block1.mlp.output=" + "z" * 100_000,
        "*" * 5000 + "q=zero",
        "block1.attention.weights=" + "(" * 100_000,
    ],
)
def test_texts_of_strangers_are_refused_in_one_short_sentence(vit, text):
    with pytest.raises(ValueError) as error:
        vit.trace(change=changes.parse_all([text.replace("x=", f"{WEIGHTS}=")]), prove=False)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("change", "what"), [("mean", "int64"), ("noise(1)", "int64"), ("shuffle(0)", "single number")]
)
def test_places_have_no_mean_and_no_noise(change, what):
    with pytest.raises(ValueError, match=what):
        tracer.trace(lambda x: x.argmax(), torch.arange(3.0), change={"logits": change})


def test_weights_of_cross_attention_inside_of_a_kernel_are_changed():
    torch.manual_seed(0)
    net = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True).eval()
    target, memory = torch.randn(1, 4, 8), torch.randn(1, 5, 8)
    with torch.no_grad():
        trace = tracer.trace(net, target, memory, change={"attention.weights2": "drop_heads(0)"})
        net.multihead_attn.out_proj.weight[:, :4] = 0
        torch.testing.assert_close(trace.output, net(target, memory))
    assert {step.verdict for step in trace.steps} <= {"verified", "recomputed"}
    assert not trace.attention(1)[:, 0].any()


def test_a_mean_of_the_lowest_numbers_goes_beyond_the_range_and_says_so():
    lowest = torch.finfo(torch.float32).min

    def attend(x):
        scores = x @ x.mT + torch.full((4, 4), lowest).triu(1)
        return torch.softmax(scores, -1) @ x

    trace = tracer.trace(attend, torch.randn(1, 4, 3), change={"attention.scores": "mean"})
    changed = trace.step("attention.scores.changed")
    assert changed.verdict == "verified" and "8 of 16 cells go beyond the range" in changed.note


def test_a_changed_module_is_pickled_and_copied_with_its_changes(vit):
    net, inputs = vit.with_changes({WEIGHTS: "drop_heads(1)", "*.scores": "unscale", "norm": "off"}).net, vit.inputs()
    with torch.no_grad():
        expected = net(*inputs)
        for again in (pickle.loads(pickle.dumps(net)), copy.deepcopy(net), copy.copy(net)):
            assert type(again) is type(net) and torch.equal(again(*inputs), expected)
    assert torch.equal(
        copy.deepcopy(vit.with_changes({WEIGHTS: "zero"})).trace(prove=False).output,
        vit.trace(change={WEIGHTS: "zero"}, prove=False).output,
    )


class Styled(nn.Module):
    """Two layers and a nonlinearity, in one of the styles that modules are written in."""

    def __init__(self, style):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.style = style
        match style:
            case "shared":
                self.second = self.first
            case "compiled":
                self.first = torch.compile(self.first)
            case "scripted":
                self.first = torch.jit.script(self.first)
            case "hooked":
                self.first.register_forward_hook(lambda module, args, output: output + 1)
                self.first.register_forward_pre_hook(lambda module, args: (args[0] * 2,))

    def forward(self, x):
        y = self.first(x)
        if self.style == "in place":
            y.mul_(2)
            y[:, 0] = 0
        return self.second(torch.relu(y))


@pytest.mark.parametrize("change", [changes.zero(), changes.mean(), changes.scale(0.5)])
@pytest.mark.parametrize("line", ["query", "scores", "weights", "context"])
def test_a_changed_attention_is_still_an_attention(line, change):
    """Also where nothing of what was there is left, so that no op leads from the softmax to the values."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(12, 3, 16, batch_first=True).eval()
    net, x = nn.Sequential(layer, copy.deepcopy(layer), copy.deepcopy(layer)), torch.randn(2, 5, 12)
    before = tracer.trace(net, x)
    trace = tracer.trace(net, x, change={f"1.attention.{line}": change})
    assert [(record.layer, record.module) for record in trace.attentions] == [
        (record.layer, record.module) for record in before.attentions
    ]
    shown = trace.attention(layer=1)
    ran = trace.value(trace.changed_step("1.attention.weights") if line == "weights" else "1.attention.weights")
    if ran is not None:  # a fused kernel leaves none
        torch.testing.assert_close(shown, ran, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(trace.attention(layer=0), before.attention(layer=0))


@pytest.mark.parametrize("style", ["plain", "shared", "in place", "scripted", "hooked"])
@pytest.mark.parametrize("line", ["first.linear", "parameter first.bias"])
def test_modules_of_any_style_are_changed(style, line):
    torch.manual_seed(0)
    net, x = Styled(style), torch.randn(2, 4)
    with torch.no_grad():
        before, trace = net(x), tracer.trace(net, x, change={line: lambda y: y + 1})
        assert torch.equal(net(x), before)
        if style == "shared" and line == "first.linear":  # the line is that of the first call
            expected = net.second(torch.relu(net.first(x) + 1))
        else:
            net.first.bias += 1
            expected = net(x)
    torch.testing.assert_close(trace.output, expected)
    assert {step.verdict for step in trace.steps} == {"verified"}


def test_a_compiled_submodule_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match=r"'first' was compiled by torch\.compile, whose kernels hide the ops"):
        tracer.trace(Styled("compiled"), torch.randn(2, 4), change={"first.linear": "zero"})


def test_changes_hold_at_sizes_that_build_makes_and_on_the_device_meta():
    def build(sizes):
        net = nn.Sequential(nn.Linear(sizes["D"], sizes["D"]), nn.GELU(), nn.Linear(sizes["D"], 3))
        return net, (torch.randn(sizes["B"], sizes["D"]),)

    net, (x,) = build({"B": 4, "D": 6})
    changes_of_lines = {"parameter 0.weight": "scale(2)", "1.gelu": "noise(0.1)"}
    trace = tracer.trace(net, x, symbols={"B": 0, "D": ("0.weight", 0)}, build=build, change=changes_of_lines)
    assert trace.step("parameters.0.weight.changed").symbolic == ("D", "D")
    assert trace.step("1.gelu.changed").symbolic == ("B", "D") and {s.verdict for s in trace.steps} == {"verified"}
    bare = tracer.trace(net.to("meta"), x.to("meta"), prove=False, change=changes_of_lines)
    assert [step.id for step in bare.steps] == [step.id for step in trace.steps] and bare.output.is_meta


class Tied(nn.Module):
    """A table of tokens that the head has, too."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
        self.head.weight = self.table.weight

    def forward(self, t):
        return self.head(self.table(t).tanh())


@pytest.mark.parametrize("name", ["table.weight", "head.weight", "*.weight"])
def test_a_tied_parameter_is_changed_by_any_of_its_names(name):
    module, tokens = Tied().eval(), torch.randint(0, 11, (2, 5))
    changed = tracer.trace(module, tokens, change={f"parameter {name}": "scale(0.5)"})
    half = copy.deepcopy(module)
    half.table.weight.data.mul_(0.5)
    assert torch.allclose(changed.output, half(tokens))


def test_sentences_of_a_changed_run_say_what_its_values_are():
    model = load("nanogpt")
    weights, context, output = (f"block1.attention.{end}" for end in ("weights", "context", "output"))
    mean, head = (model.trace(change={weights: change}) for change in ("mean", "drop_heads(1)"))
    assert "adds something" not in mean.step(context).why and "mixture of the values" in mean.step(context).why
    assert "attention maps show" not in head.step(weights).why
    assert "attention maps show" in head.step("block2.attention.weights").why
    zero = model.trace(change={output: "zero"})
    assert "what it found" not in zero.step("block1.attention.residual").why
    assert "What the change put in place of the result of attention" in zero.step("block1.attention.residual").why
    assert "what it found" in zero.step("block2.attention.residual").why
    assert list(check_explanation_numbers(plain_of(model, model.inputs(), zero))) == []
