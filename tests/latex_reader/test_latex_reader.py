"""Printed equations are those that run: each equation parsed again from its LaTeX, and mistakes in it that are
found."""

import ast
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import tracer
from pages.ui.texts import in_the_code
from tests.support.model_equations import choices, printed_equations
from tests.support.sweeping import cases
from tracer import latex_reader, models, verify, zoo
from tracer.export import to_html
from tracer.latex_reader.evaluator import evaluate, names
from tracer.latex_reader.parser import UnreadableLatex, read
from tracer.verify.checks.printed import check_printed_equations, differences

KERNELS = [{"attention": "sdpa"}, {"attention": "eager"}]
FOREIGN_MODELS = {"torchvision:vit_b_16": [{}], "timm:vit_tiny_patch16_224": [{}]}
FOREIGN_MODELS |= dict.fromkeys(("hf:bert", "hf:gpt2", "hf:llama", "hf:vit"), KERNELS)
"""Models of libraries with their options, stated: to read them takes seconds wherever tests are collected."""
CASES = [(name, options) for name in models.names() for options in choices(models.spec_of(name))]
CASES += [(name, options) for name, every in FOREIGN_MODELS.items() for options in every]


def tiny_model(name: str, options: dict):
    """Return a model at tiny sizes, two blocks deep; with the letters of its own sample where it reads text."""
    spec = models.spec_of(name)
    if zoo.is_foreign(name):
        assert FOREIGN_MODELS[name] == list(choices(spec))
        return tracer.load(name, **zoo.tiny(name), **options)
    sizes = {} if "text" in spec.takes else {size: spec.probes[0][size] for size in spec.sizes if size[0] != "L"}
    return tracer.load(name, **sizes, **{size: 2 for size in spec.sizes if size[0] == "L"}, **options)


def read_problems(model, trace=None, **given) -> list[str]:
    """Return the problems of a model's printed lines, or of a trace instead of its own."""
    trace = trace or model.trace(keep=2**30, **given)
    return list(check_printed_equations(SimpleNamespace(trace=trace, model=model, inputs=model.inputs())))


QUICK_CASES = [(name, next(choices(models.spec_of(name)))) for name in models.names() if name != "saliency"]
QUICK_CASES += [(name, FOREIGN_MODELS[name][0]) for name in FOREIGN_MODELS if name not in ("hf:bert", "hf:vit")]
QUICK_CASES += [case for case in CASES if "prefix" in case[1].values() or "relative" in case[1].values()]
"""Each model as it is by default, and options that print other lines; models whose lines others print are swept."""


@pytest.mark.parametrize(
    ("name", "options"),
    cases(CASES, QUICK_CASES),
    ids=[" ".join(map(str, (n, *o.values()))) for n, o in CASES],
)
def test_what_is_printed_is_what_ran(name, options):
    assert read_problems(tiny_model(name, options)) == []


READER = sorted(Path(latex_reader.__path__[0]).glob("*.py"))


@pytest.mark.parametrize("path", READER, ids=lambda path: path.stem)
def test_the_reader_shares_nothing_with_what_it_checks(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    asked = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    asked |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    utils = {"tracer.utils.errors", "tracer.utils.child_processes"}
    known = utils | {f"{latex_reader.__name__}.{part.stem}" for part in READER}
    assert asked <= known | {
        "__future__",
        "collections.abc",
        "contextlib",
        "dataclasses",
        "functools",
        "itertools",
        "json",
        "math",
        "numpy",
        "re",
        "resource",
        "sys",
        "time",
        "typing",
    }


MODELS = {
    "vit": ("vit", {}),
    "nanogpt": ("nanogpt", {}),
    "prefix": ("vit-text", {"mask": "prefix"}),
    "mae": ("mae", {}),
    "clip": ("clip", {}),
    "segmenter": ("segmenter", {}),
    "sinusoidal": ("transformer", {}),
    "relative": ("transformer", {"positions": "relative"}),
    "torchvision": ("torchvision:vit_b_16", {}),
    "gpt2": ("hf:gpt2", {"attention": "eager"}),
    "llama": ("hf:llama", {}),
}


@pytest.fixture(scope="module")
def runs():
    """Return the run of each of those models, with everything parsed from it, cached: `runs(key)`."""
    kept = {}

    def of(key: str):
        if key not in kept:
            model = tiny_model(*MODELS[key])
            kept[key] = model.trace(keep=2**30), model.net, model.inputs()
        return kept[key]

    return of


MISTAKES = [
    ("vit", "block1.attention.scores", r"^{\top}", ""),
    ("vit", "block1.attention.scores", r"\mathbf{Q}^{(1)}", r"\mathbf{K}^{(1)}"),
    ("vit", "block1.attention.scores", r"{\sqrt{d_k}}", "{d_k}"),
    ("vit", "block1.attention.scores", "d_k", "h"),
    ("vit", "block1.attention.query", r"\operatorname{heads}_{h}", r"\operatorname{heads}_{d_k}"),
    ("vit", "block1.attention.query", r"\mathbf{W}_{Q}^{(1)}", r"\mathbf{W}_{K}^{(1)}"),
    ("vit", "block2.attention.query", r"\mathbf{W}_{Q}^{(2)}", r"\mathbf{W}_{Q}^{(1)}"),
    ("vit", "block1.attention.query", r"\mathbf{W}_{Q}^{(1)}", r"{\mathbf{W}_{Q}^{(1)}}^{\top}"),
    ("vit", "block1.attention.context", r"\operatorname{concat}_{h}", ""),
    ("vit", "block1.norm1", r"10^{-6}", r"10^{-5}"),
    ("vit", "block1.norm1", r" + 10^{-6}", ""),
    ("vit", "block1.norm1", r"\boldsymbol{\gamma}_{1}", r"\boldsymbol{\gamma}_{2}"),
    ("vit", "block1.norm1", r"\sigma^2", r"\mu"),
    ("vit", "block1.mlp.activation", r"\operatorname{GELU}", r"\operatorname{GELU}_{\tanh}"),
    ("vit", "patches", "hwc", "chw"),
    ("vit", "sequence", r"\mathbf{x}_{\mathrm{cls}}\ ;\ \mathbf{I}", r"\mathbf{I}\ ;\ \mathbf{x}_{\mathrm{cls}}"),
    ("vit", "cls", "0", "1"),
    ("nanogpt", "mask", r"j \le i", "j < i"),
    ("nanogpt", "mask", "j > i", r"j \ge i"),
    ("nanogpt", "mask", "{ij}", "{ji}"),
    ("nanogpt", "position", "[:T]", "[T:]"),
    ("nanogpt", "embedding", r"\mathbf{E}", r"\mathbf{P}"),
    ("prefix", "mask", "j < N", r"j \le N"),
    ("prefix", "mask", "j < N", "j < T"),
    ("prefix", "text", "[N:]", "[T:]"),
    ("prefix", "patches", "chw", "hwc"),
    ("mae", "visible", r"\boldsymbol{\pi}", "0"),
    ("mae", "unshuffle", r"j = \boldsymbol{\pi}_{i}", r"i = \boldsymbol{\pi}_{j}"),
    ("mae", "masked", "{N}", "{N_v}"),
    ("clip", "text.ends", "= 1", "= 2"),
    ("clip", "cosines", r"^{\mathrm{txt}}}^{\top}", r"^{\mathrm{txt}}}"),
    ("clip", "image.unit", r"\right\rVert_2", r"\right\rVert_1"),
    ("clip", "logits", "e^", "2^"),
    ("segmenter", "grid", r"\frac{H}{P} \times \frac{W}{P}", r"\frac{W}{P} \times \frac{H}{P}"),
    ("segmenter", "tokens", "[1:]", "[0:]"),
    ("sinusoidal", "positions", r"\sin", r"\cos"),
    ("sinusoidal", "positions", "2k + 1", "2k"),
    ("sinusoidal", "positions", "10000", "1000"),
    ("relative", "distances", "j - i", "i - j"),
    ("relative", "distances", r"\right) + R", r"\right)"),
    ("relative", "block1.attention.relative", "{ij}", "{ji}"),
    ("relative", "block1.attention.shares", r"\mathbf{C}_{ij} = c", r"\mathbf{C}_{ji} = c"),
    ("torchvision", "encoder.layers.encoder_layer_0.attention.query", "0:D", r"D:2\,D"),
    ("torchvision", "encoder.layers.encoder_layer_0.attention.query", r"^{N + 1 \leftrightarrow B}", ""),
    ("torchvision", "encoder.layers.encoder_layer_0.attention.packed", r"^{B \leftrightarrow N + 1}", ""),
    ("torchvision", "encoder.layers.encoder_layer_0.attention.output", r"\operatorname{concat}_{h}", ""),
    ("torchvision", "encoder.layers.encoder_layer_0.attention.scores", r"^{\top}", ""),
    ("torchvision", "encoder.layers.encoder_layer_0.attention.scores", r"\sqrt{d_k}", "d_k"),
    ("torchvision", "embedding", r"\operatorname{unroll}", ""),
    ("gpt2", "mask", "38", "37"),
    ("gpt2", "mask", "r = 1", "r = 0"),
    ("gpt2", "transformer.h.0.attention.scores", r"\sqrt{d_k}", "d_k"),
    ("gpt2", "transformer.h.0.attention.key", "D:2", "0:2"),
    ("llama", "angles", r"\ ,\ ", r"\ ;\ "),
    ("llama", "model.layers.0.norm1", "^2", ""),
    ("llama", "model.layers.0.attention.rotated query", r"\operatorname{rotate\_half}", ""),
    ("llama", "model.layers.0.attention.rotated key", r"\mathbf{c}", r"\mathbf{s}"),
    ("llama", "model.layers.0.attention.scores", r"\operatorname{repeat}_{h}", ""),
]


@pytest.mark.parametrize(("key", "id", "right", "wrong"), MISTAKES)
def test_a_mistake_in_what_is_printed_is_found(runs, key, id, right, wrong):
    trace, *rest = runs(key)
    assert right in trace.step(id).latex
    steps = [replace(s, latex=s.latex.replace(right, wrong)) if s.id == id else s for s in trace.steps]
    changed = replace(trace, steps=tuple(steps))
    found = {where for where, _ in differences(changed, *rest)}
    found = found or {step.id for step in changed.check().steps if step.refuted}  # in other runs
    assert found
    assert trace.step(id).recomputed or found == {id}


def test_verify_says_which_step_prints_what_did_not_run():
    model = tiny_model("nanogpt", {})
    trace = model.trace(keep=2**30)
    steps = [replace(s, latex=s.latex.replace("<", r"\le")) if s.id == "mask" else s for s in trace.steps]
    steps = [replace(s, latex=s.latex.replace(r"\le i", "< i")) if s.id == "mask" else s for s in steps]
    model.trace = lambda **given: replace(trace, steps=tuple(steps))
    said = [line for line in verify.failures(verify.report(model)) if "mask" in line]
    assert len(said) == 1 and "step 'mask' prints" in said[0] and "none of its cases holds" in said[0]


def test_no_two_things_have_one_name():
    trace = tiny_model("clip", {}).trace()
    assert all(len(things) == 1 for things in names(trace.steps).values())
    assert {r"\mathbf{W}_{Q}^{\mathrm{img} (1)}", r"\mathbf{W}_{Q}^{\mathrm{img} (2)}"} < names(trace.steps).keys()


def test_two_things_of_one_name_are_told():
    model = tiny_model("nanogpt", {})
    trace = model.trace(keep=2**30)
    twice = [replace(s, symbol="D") if s.id == "block1.norm1" else s for s in trace.steps]
    twice = [replace(s, symbol=twice[0].symbol) if s.id == "block2.norm1" else s for s in twice]
    said = [line for line in read_problems(model, replace(trace, steps=tuple(twice))) if "is the name" in line]
    assert said[0].startswith(rf"'{twice[0].symbol}' is the name of ".replace("\\", "\\\\"))
    assert any(line.startswith("'D' is the name of 'step block1.norm1' and 'size'") for line in said)


def test_letters_that_the_page_names():
    latex = {step.id: step.latex for step in tiny_model("vit-text", {"mask": "prefix"}).trace().steps}
    assert r"j < N" in latex["mask"] and latex["mask"].startswith(r"\mathbf{M}_{ij} = ")
    assert r") + 10^{-5}}" in latex["block1.norm1"]
    assert r"\boldsymbol{\gamma}_{1}^{(1)} + \boldsymbol{\beta}_{1}^{(1)}" in latex["block1.norm1"]
    assert r"\mathcal{U}^{\mathrm{chw}}_{P}" in latex["patches"]
    trace = tiny_model("vit", {}).trace()
    assert r"\mathcal{U}^{\mathrm{hwc}}_{P}" in trace.step("patches").latex
    assert in_the_code(trace.step("block1.attention.query").names) == (
        r"In the code, $\mathbf{W}_{Q}^{(1)}$ is `block1.attention.query.weight.T`, "
        r"$\mathbf{b}_{Q}^{(1)}$ is `block1.attention.query.bias`."
    )


@pytest.mark.parametrize(
    "name", cases([*models.names(), *FOREIGN_MODELS], ("vit", "vit-text", "clip", "torchvision:vit_b_16"))
)
def test_the_order_of_pixels_is_explained_where_it_is_printed(name):
    said = {"hwc": "hwc: row, column, channel", "chw": "chw: channel, row, column"}
    for step in tiny_model(name, next(choices(models.spec_of(name)))).trace(prove=False).steps:
        orders = [order for order in said if rf"\mathrm{{{order}}}" in step.latex]
        assert all(said[order] in " ".join(step.why.split()) for order in orders), step.id


@pytest.mark.sweep
def test_every_equation_has_its_mathml():
    assert [latex for latex in printed_equations() if not to_html.equation(latex).startswith("<math ")] == []


VALUES = {
    "A": np.arange(6.0).reshape(2, 3),
    "B": np.arange(12.0).reshape(2, 2, 3),
    "t": np.array([[4, 1, 1], [1, 5, 6]]),
    "s": np.array(2.0),
    "n": np.array(3),
}
READING_CASES = [
    ("A + 2 s", (2, 3), VALUES["A"] + 4),
    (r"A\,{A}^{\top}", (2, 2), VALUES["A"] @ VALUES["A"].T),
    (r"\frac{A}{\sqrt{s}} - A", (2, 3), VALUES["A"] / 2**0.5 - VALUES["A"]),
    (r"{A}_{[\,1\,]}", (3,), VALUES["A"][1]),
    (r"{B}_{[\ldots,\,1:n]}", (2, 2, 2), VALUES["B"][..., 1:]),
    (r"\min\left\{ j : t_j = 1 \right\}", (2,), np.array([1, 0])),
    (r"\left[A\ ;\ A\right]", (4, 3), np.concatenate([VALUES["A"]] * 2)),
    (r"\left(0, 1, \ldots, n - 1\right)", (1, 3), np.arange(3)[None]),
]


@pytest.mark.parametrize(("latex", "shape", "expected"), READING_CASES)
def test_what_a_line_says(latex, shape, expected):
    line = read(f"Y = {latex}", [*VALUES, "Y"])
    assert np.array_equal(evaluate(line, VALUES.__getitem__, shape), expected)


UNREAD = {
    r"A + \mathbf{Q}": r"expected a tensor or a size that the page names at",
    "A +": "expected a tensor or a size that the page names at its end",
    r"\operatorname{magic}\left(A\right)": "expected a function that the grammar has, got 'magic'",
    "A_{": "expected a tensor or a size that the page names at its end",
    r"\left[A_{ij\right]": r"expected } at '\\\\right\]'",
    r"A\,A": "its shapes don't fit",
    r"A + \epsilon": "expected a tensor or a size that the page names at",
    "A + z": "z is not a tensor, a size or an index that runs",
    "A_{[5]}": "an index runs from 5 to 5 over 2",
    r"\sum_{n\,:\,t_n = 1} A_{ij}": "expected an index at",
    "A^3": "only squares of its cells",
    r"A \quad \text{since } s = 1": "what it is only true since does not hold",
    r"\begin{cases} 0 & s = 1 \\ 1 & s = 3 \end{cases}": "none of its cases holds",
    r"\begin{cases} A & s = 2 \\ A & s > 1 \end{cases}": "two of its cases hold at once",
    "t": r"it gives \[2, 3\], the run \[4, 3\]",
}


@pytest.mark.parametrize("latex", UNREAD)
def test_what_can_not_be_read_is_told_in_a_sentence(latex):
    with pytest.raises(UnreadableLatex, match=UNREAD[latex]):
        evaluate(read(f"Y = {latex}", [*VALUES, "Y"]), VALUES.__getitem__, (4, 3))
