"""One step of training: each gradient as an equation, mistakes in them, the update, and the page of it."""

import dataclasses
import re

import pytest
import torch

import tracer
from tests.app.test_app import text, visit
from tests.support.sweeping import cases
from tracer.expr import latex
from tracer.lessons import training_step
from tracer.lessons.training_step import GradientLine, ParameterUses, loss_of
from tracer.verify.checks import outputs
from tracer.verify.checks.reference_run import plain

MODELS = [
    ("nanogpt", {}),
    ("nanogpt", {"tied": False, "L": 1}),
    ("llama", {}),
    ("vit-text", {}),
    ("vit-text", {"types": True, "L": 2}),
    ("hf:gpt2", {}),
    ("hf:llama", {}),
]


def step_of(name, **options):
    """Return the step of a model on its sample, the model, and its input."""
    model = tracer.load(name, **options)
    inputs = tuple(model.inputs())
    step = training_step.training_step(model.net, inputs, inputs[-1], model.trace(prove=False))
    return step, model, inputs


@pytest.fixture(scope="module")
def nanogpt():
    return step_of("nanogpt")


@pytest.mark.parametrize(("name", "options"), cases(MODELS, (MODELS[0], *MODELS[2:4], MODELS[5])))
def test_the_gradient_of_each_parameter_is_an_equation_that_is_verified(name, options):
    step, model, inputs = step_of(name, **options)
    paths = [path for line in step.lines for path in line.paths]
    assert sorted(paths) == sorted(dict(model.net.named_parameters()))
    assert {line.verdict for line in (step.logits, *step.lines)} == {"verified"}
    parameters = dict(model.net.named_parameters())
    with torch.enable_grad():
        gradients = torch.autograd.grad(loss_of(model.net, inputs, inputs[-1]), list(parameters.values()))
    norms = {path: float(each.norm()) for path, each in zip(parameters, gradients, strict=True)}
    shown = {path: norm for line in step.lines for path, norm in zip(line.paths, line.norms, strict=True)}
    assert shown == pytest.approx(norms, rel=1e-3, abs=1e-7)
    assert step.squared_norm == pytest.approx(sum(norm**2 for norm in norms.values()), rel=1e-4)


def test_equal_blocks_share_a_line_and_the_letters_are_those_of_the_textbook(nanogpt):
    lines = {line.paths[0]: line for line in nanogpt[0].lines}
    query = lines["block1.attention.query.weight"]
    assert len(query.paths) == len(query.norms) == 4 and query.symbolic == ("D", "D")
    assert r"{\tilde{\mathbf{X}}^{(\ell)}}^{\top}\,\operatorname{concat}_{h}" in query.latex
    wide = lines["block1.mlp.expand.weight"]
    assert (wide.symbolic, wide.shape) == (("D", "d_ff"), (128, 512))  # of W, which PyTorch stores transposed
    assert lines["tokens.weight"].latex.count(r"\partial \mathcal{L}") == 3  # its own, and one for each use


GRADIENT = r"\frac{\partial \mathcal{L}}{\partial %s}"
PRINTED_GRADIENTS = {
    (
        "nanogpt",
        "positions",
    ): r"\left[\sum_{B} <\mathbf{X}^{(0)}>\ ;\ \mathbf{0}_{\left(T_{\max} - T\right) \times D}\right]",
    ("nanogpt", "tokens.weight"): r"\sum_{B} {\operatorname{onehot}_{V}\left(\mathbf{t}\right)}^{\top}\,<\mathbf{X}_t>"
    r" + \sum_{B} {\left(<\mathbf{Z}>\right)}^{\top}\,\mathbf{X}_f",
    ("nanogpt", "norm.weight"): r"\sum_{B,\,T} \left(\frac{\mathbf{X}^{(1)} - \mu(\mathbf{X}^{(1)})}"
    r"{\sqrt{\sigma^2(\mathbf{X}^{(1)}) + 10^{-5}}} \odot <\mathbf{X}_f>\right)",
    ("nanogpt", "norm.bias"): r"\sum_{B,\,T} <\mathbf{X}_f>",
    ("nanogpt", "block1.attention.query.weight"): r"\sum_{B} {\tilde{\mathbf{X}}^{(1)}}^{\top}\,"
    r"\operatorname{concat}_{h}\left(<\mathbf{Q}^{(1)}>\right)",
    (
        "nanogpt",
        "block1.attention.query.bias",
    ): r"\sum_{B,\,T} \operatorname{concat}_{h}\left(<\mathbf{Q}^{(1)}>\right)",
    ("nanogpt", "block1.mlp.expand.weight"): r"\sum_{B} {\hat{\mathbf{X}}^{(1)}}^{\top}\,<\mathbf{U}^{(1)}>",
    ("llama", "norm.weight"): r"\sum_{B,\,T} \left(\frac{\mathbf{X}^{(1)}}"
    r"{\sqrt{\operatorname{mean}({\mathbf{X}^{(1)}}^2) + 10^{-5}}} \odot <\mathbf{X}_f>\right)",
}


@pytest.mark.parametrize("name", ["nanogpt", "llama"])
def test_each_rule_is_printed_as_it_stands_in_a_textbook(name):
    step = step_of(name, L=1)[0]
    lines = {line.paths[0]: line.latex.partition(" = ") for line in step.lines}
    for (model, path), equation in PRINTED_GRADIENTS.items():
        if model == name:
            assert lines[path][2] == re.sub("<(.*?)>", lambda letter: GRADIENT % letter[1], equation)
    assert lines["norm.weight"][0] == GRADIENT % r"\boldsymbol{\gamma}_{f}"
    assert step.logits.latex == GRADIENT % r"\mathbf{Z}" + (
        r" = \left[\frac{\operatorname{softmax}\left({\mathbf{Z}}_{[:T-1]}\right)"
        r" - \operatorname{onehot}_{V}\left({\mathbf{t}}_{[\ldots,\,1:]}\right)}{B\,\left(T - 1\right)}"
        r"\ ;\ \mathbf{0}_{1 \times V}\right]"
    )


def test_a_product_by_addmm_and_a_table_of_positions_have_their_rules():
    step, model, _ = step_of("hf:gpt2")
    lines = {line.paths[0]: line for line in step.lines}
    packed, bias = (lines[f"transformer.h.0.attn.c_attn.{name}"] for name in ("weight", "bias"))
    right = GRADIENT % r"\mathbf{QKV}^{(\ell)}"
    assert packed.latex.partition(" = ")[2] == rf"\sum_{{B}} {{\tilde{{\mathbf{{X}}}}^{{(\ell)}}}}^{{\top}}\,{right}"
    assert packed.symbolic == ("D", "3*D") and packed.shape == tuple(
        model.net.transformer.h[0].attn.c_attn.weight.shape
    )
    assert bias.latex.partition(" = ")[2] == rf"\sum_{{B,\,T}} {right}"
    positions = lines["transformer.wpe.weight"].latex.partition(" = ")[2]
    assert positions == (
        r"{\operatorname{onehot}_{T_{\max}}\left(\mathbf{p}\right)}^{\top}\,\sum_{B} " + GRADIENT % r"\mathbf{X}^{(0)}"
    )


def test_a_table_of_positions_sums_the_texts_of_a_batch():
    model = tracer.load("hf:gpt2")
    tokens = torch.randint(model.sizes["V"], (3, 7), generator=torch.Generator().manual_seed(0))
    trace = tracer.trace(model.net, tokens, prove=False, use_cache=False)
    step = training_step.training_step(model.net, (tokens,), tokens, trace)
    (line,) = (line for line in step.lines if line.paths == ("transformer.wpe.weight",))
    assert line.verdict == "verified" and r"\sum_{3} " in line.latex  # the batch of a run without symbols


def test_a_norm_that_the_code_writes_out_has_its_rule_and_is_refuted_with_another_operand(monkeypatch):
    path = "model.layers.0.input_layernorm.weight"
    lines = {line.paths[0]: line for line in step_of("hf:llama")[0].lines}
    x = r"\mathbf{X}^{(\ell-1)}"
    assert lines[path].latex.partition(" = ")[2] == (
        rf"\sum_{{B,\,T}} \left(\frac{{{x}}}{{\sqrt{{\operatorname{{mean}}({{{x}}}^2) + 10^{{-6}}}}}} \odot "
        + GRADIENT % r"\tilde{\mathbf{X}}^{(\ell)}"
        + r"\right)"
    )
    find = training_step._Letters._find_norm_operand
    monkeypatch.setattr(training_step._Letters, "_find_norm_operand", lambda *args: find(*args).roll(1, -1))
    verdicts = {line.paths[0]: line.verdict for line in step_of("hf:llama")[0].lines}
    assert verdicts[path] == "refuted" and verdicts["model.layers.0.self_attn.q_proj.weight"] == "verified"


def with_mistake(monkeypatch, node, run) -> dict[str, str]:
    """Return the verdicts on parameters by their paths, where a node computes something else."""
    monkeypatch.setattr(node, "run", run)
    return {line.paths[0]: line.verdict for line in step_of("nanogpt", L=1)[0].lines}


def test_a_product_with_the_wrong_rows_is_refuted(monkeypatch):
    def reversed_rows(self, size, left, right):
        return left.flatten(0, -2).T @ right.flatten(0, -2).flip(0)

    verdicts = with_mistake(monkeypatch, training_step.RowsProduct, reversed_rows)
    wrong = {path for path, verdict in verdicts.items() if verdict == "refuted"}
    assert wrong == {path for path in verdicts if path.endswith(".weight") and "norm" not in path}


@pytest.mark.parametrize(
    ("text", "mistake", "path"),
    [
        (r"}^{\top}\,", r"}\,", "block1.mlp.expand.weight"),
        (r"\sum_{B,\,T}", r"\sum_{B}", "block1.mlp.expand.bias"),
        (r"\mu(", "(", "norm.weight"),
        (r"10^{-5}", "10^{-1}", "norm.weight"),
        (r"\operatorname{concat}_{h}", r"\operatorname{concat}_{D}", "block1.attention.query.weight"),
        (r"\operatorname{onehot}_{V}", r"\operatorname{onehot}_{T}", "tokens.weight"),
        (r"T_{\max} - T", "T", "positions"),
        ("[:T-1]", "[1:]", ""),
        (r"[\ldots,\,1:]", r"[\ldots,\,:T-1]", ""),
        (r"\left(T - 1\right)", "T", ""),
    ],
)
def test_what_is_printed_is_read_again_and_a_mistake_in_it_is_refuted(monkeypatch, text, mistake, path):
    printed = []

    def print_mistake(node):
        printed.append(latex(node))
        return printed[-1].replace(text, mistake)

    monkeypatch.setattr(training_step, "latex", print_mistake)
    step = step_of("nanogpt", L=1)[0]
    verdicts = {"": step.logits.verdict} | {line.paths[0]: line.verdict for line in step.lines}
    assert verdicts[path] == "refuted" and any(text in each for each in printed)
    assert "verified" in verdicts.values()


def test_a_tied_matrix_without_its_second_term_is_refuted(monkeypatch):
    monkeypatch.setattr(training_step, "Plus", lambda first, second: first)
    lines = step_of("nanogpt", L=1)[0].lines
    assert {line.paths[0] for line in lines if line.verdict == "refuted"} == {"tokens.weight"}


def test_heads_that_are_joined_in_another_order_are_refuted(monkeypatch):
    def without_transpose(self, size, tensor):
        return tensor.reshape(tensor.shape[0], tensor.shape[-2], -1)

    verdicts = with_mistake(monkeypatch, training_step.MergeHeads, without_transpose)
    wrong = {path for path, verdict in verdicts.items() if verdict == "refuted"}
    assert {f"block1.attention.{name}.weight" for name in ("query", "key", "value")} <= wrong
    assert "block1.attention.output.weight" not in wrong


def test_a_call_without_a_rule_has_no_equation_and_no_verdict():
    class Scaled(torch.nn.Linear):
        def forward(self, x):
            return torch.nn.functional.linear(x, self.weight * 2)

    model = tracer.load("nanogpt", L=1, tied=False, bias=False)
    head = Scaled(128, 65, bias=False)
    head.weight = model.net.head.weight
    model.net.head = head
    inputs = tuple(model.inputs())
    lines = training_step.training_step(model.net, inputs, inputs[-1], model.trace(prove=False)).lines
    (line,) = (line for line in lines if line.paths == ("head.weight",))
    assert (line.verdict, line.latex, line.norms[0] > 0) == ("not executed", "", True)
    assert "no rule is known" in line.problem


def test_a_line_that_does_not_read_as_its_call_has_no_equation(nanogpt):
    _, model, inputs = nanogpt
    trace = model.trace(prove=False)
    steps = [
        dataclasses.replace(step, latex=f"{step.latex} + 1") if step.id == "block1.mlp.hidden" else step
        for step in trace.steps
    ]
    changed = dataclasses.replace(trace, steps=tuple(steps))
    lines = training_step.training_step(model.net, inputs, inputs[-1], changed).lines
    (line,) = (line for line in lines if line.paths == ("block1.mlp.expand.weight",))
    assert "not as its call" in line.problem and line.latex == "" and line.verdict == "not executed"


def test_equal_blocks_have_the_largest_of_their_errors():
    first = GradientLine(("block1.w",), r"\mathbf{W}^{(1)}", "", ("D",), (3,), (1.0,), 1e-8, 0.4)
    second = first._replace(paths=("block2.w",), symbol=r"\mathbf{W}^{(2)}", norms=(2.0,), error=3e-8, margin=0.1)
    for pair in ((first, second), (second, first)):
        (line,) = training_step._group(pair)
        assert (line.error, line.margin) == (3e-8, 0.4)


@pytest.mark.parametrize(("stop", "rows"), [(3, 3), (-2, None)])
def test_only_the_first_rows_of_a_table_are_a_use_of_it(stop, rows):
    net = torch.nn.Linear(4, 5, bias=False)
    with torch.enable_grad(), ParameterUses(net) as uses:
        _ = torch.zeros(2, 3, 4) + net.weight[:stop]
    assert uses.unknown == (set() if rows else {"weight"})
    assert [use.rows for use in uses.of["weight"]] == ([rows] if rows else [])


def test_a_small_step_lowers_the_loss_as_its_slope_says_and_a_long_one_does_not(nanogpt):
    step = nanogpt[0]
    small, twice = step.at(0.001), step.at(0.003)
    assert small.after < step.before and step.agrees(small)
    assert small.prediction == pytest.approx(step.before - 0.001 * step.squared_norm)
    gaps = [each.after - each.prediction for each in (small, twice)]
    assert gaps[1] / gaps[0] == pytest.approx(9, rel=0.05)  # what the slope leaves out grows with η²
    assert not step.agrees(step.at(3.0)) and step.at(3.0).after > step.before


def test_the_loss_is_the_mean_over_all_texts_of_a_batch():
    model = tracer.load("nanogpt", L=1)
    tokens = torch.randint(65, (3, 7), generator=torch.Generator().manual_seed(0))
    trace = tracer.trace(model.net, tokens, prove=False)
    step = training_step.training_step(model.net, (tokens,), tokens, trace)
    assert {line.verdict for line in step.lines if line.latex} == {"verified"}


def test_the_model_stays_as_it_is(nanogpt):
    _, model, _ = nanogpt
    before = {name: tensor.clone() for name, tensor in model.net.state_dict().items()}
    inputs = tuple(model.inputs())
    training_step.training_step(model.net, inputs, inputs[-1], model.trace(prove=False))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.net.state_dict().items())
    assert all(each.grad is None and each.dtype == torch.float32 for each in model.net.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.net.modules())


def test_single_tokens_and_large_nets_are_refused(nanogpt, monkeypatch):
    _, model, (tokens,) = nanogpt
    trace = model.trace(prove=False)
    with pytest.raises(ValueError, match="a single token has no next one"):
        training_step.training_step(model.net, (tokens[:, :1],), tokens[:, :1], trace)
    monkeypatch.setattr(training_step, "MOST_BYTES", 2**20)
    with pytest.raises(ValueError, match=r"would take 37 MB of memory, more than the 1 MB"):
        training_step.training_step(model.net, (tokens,), tokens, trace)


def test_the_page_takes_a_step_at_the_rate_that_is_chosen():
    at = visit("loss", model="nanogpt", rate="0.01")
    page = text(at)
    assert not at.exception and "At η = 0.01, the loss fell by 0.0497" in page and "They agree within a tenth" in page
    assert {"loss before": "0.835", "loss after": "0.786"}.items() <= {m.label: m.value for m in at.metric}.items()
    table = at.table[-1].value
    assert len(table) == 21 and all("verified" in proof and "dis" not in proof for proof in table["proof"])
    at.select_slider[0].set_value(3.0).run()
    assert "the loss rose by" in text(at) and "The step was too long" in text(at)


def test_verify_compares_the_norm_with_the_slope_of_the_loss(nanogpt, monkeypatch):
    step, model, _ = nanogpt
    run = plain(model, model.inputs(), model.trace(prove=False))
    assert list(outputs.check_training_gradient(run)) == []
    line = step.lines[0]._replace(margin=2.0)
    wrong = step._replace(squared_norm=1.01 * step.squared_norm, lines=(line,))
    monkeypatch.setattr(outputs, "training_step", lambda *_: wrong)
    first, second = outputs.check_training_gradient(run)
    assert first.startswith(f"the gradient of {line.paths[0]} is refuted")
    assert second.startswith("the norm of the gradient is 2.26")
    assert "and the slope of the loss 2.25" in second
