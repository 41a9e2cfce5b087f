"""The idea in one file: short, on torch and sympy alone, right about its model, and able to fail."""

import ast
import functools
import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location

import pytest
import torch
from sympy import Eq, Integer, Symbol, sqrt

from tests.support.serving import ROOT

FILE = ROOT / "docs" / "tiny_tracer.py"
PAGE = ROOT / "docs" / "tiny_tracer.md"
UNKNOWN = Symbol("?")
EQUATIONS = (
    "layer norm",
    "queries, keys, values",
    "scores",
    "attention weights",
    "context",
    "residual stream",
    "GELU",
    "logits",
)
each_equation = pytest.mark.parametrize("title", EQUATIONS)


@functools.cache
def tiny():
    """Return the file as a module."""
    spec = spec_from_file_location("tiny_tracer", FILE)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def runs():
    """Return runs at four sizes: the file's three, and one more."""
    at = tiny().run_at
    return (
        at(seed=1, B=2, T=5, T_max=19, D=12, h=4, V=31),
        at(seed=2, B=7, T=2, T_max=11, D=15, h=3, V=23),
        at(seed=3, B=3, T=7, T_max=17, D=10, h=2, V=29),
        at(seed=4, B=5, T=3, T_max=23, D=14, h=2, V=37),
    )


def is_refuted(title, term, runs) -> bool:
    """Return whether the tensor of an equation is not what another term computes, if that runs at all."""
    equation = Eq(tiny().textbook()[title].lhs, term, evaluate=False)
    try:
        return tiny().verify(equation, runs)[0] == "✗ refuted"
    except RuntimeError:  # shapes that do not fit
        return True


def without_one(term):
    """Yield a term without one operand of one of its sums, products and quotients, for each of these."""
    if isinstance(term, tiny().Letter):
        return
    if type(term).__name__ in ("Plus", "Minus", "Times", "Product", "Over"):
        yield from (argument for argument in term.args if isinstance(argument, tiny().Node))
    for place, argument in enumerate(term.args):
        for less in without_one(argument):
            yield term.func(*term.args[:place], less, *term.args[place + 1 :])


def test_it_is_short():
    lines = FILE.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 300
    assert max(map(len, lines)) <= 100


def test_it_needs_torch_and_sympy_alone():
    imported = set()
    for found in ast.walk(ast.parse(FILE.read_text(encoding="utf-8"))):
        if isinstance(found, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in found.names}
        elif isinstance(found, ast.ImportFrom):
            imported.add(found.module.partition(".")[0])
    assert imported - sys.stdlib_module_names == {"sympy", "torch"}


def test_the_script_verifies_eight_equations_and_refutes_one():
    script = subprocess.run(
        [sys.executable, "-X", "utf8", FILE], capture_output=True, encoding="utf-8", check=True, cwd=ROOT
    )
    summary, _, head, *rows = script.stdout.splitlines()
    assert summary.endswith("without a formula: 0")
    assert re.split(r"\s{2,}", head) == ["step", "symbolic shape", "shape", "verdict", "error", "equation"]
    table = [re.split(r"\s{2,}", row) for row in rows]
    assert {row[0]: row[3] for row in table} == {
        **dict.fromkeys(EQUATIONS, "✓ verified"),
        "scores without √d_k": "✗ refuted",
    }
    assert [row[1] for row in table] == [
        "B, T, D",
        "3, B, h, T, D/h",
        "B, h, T, T",
        "B, h, T, T",
        "B, T, D",
        "B, T, D",
        "B, T, 4*D",
        "B, T, V",
        "B, h, T, T",
    ]
    assert table[2][5] == r"\mathbf{S} = \frac{\mathbf{Q}\,{\mathbf{K}}^{\top}}{\sqrt{d_{k}}} + \mathbf{M}"


@pytest.mark.parametrize("chosen", [(0, 1, 2), (2, 0, 1)])
def test_each_dimension_of_each_tensor_has_a_formula_that_is_right(chosen):
    """The formulas are also tried at sizes that they were not solved from."""
    chosen = [runs()[i] for i in chosen]
    for run in runs():
        for op, solved in zip(run.ops, tiny().solve_shapes(chosen), strict=True):
            for tensor, shape in zip(op.inputs + op.outputs, solved.inputs + solved.outputs, strict=True):
                assert UNKNOWN not in shape
                assert tuple(formula.subs(run.sizes) for formula in shape) == tensor.shape, op.place


def test_a_formula_is_never_guessed():
    solve, predictions = tiny().solve, tiny().predict(runs()[:3])
    T, D, h = Symbol("T"), Symbol("D"), Symbol("h")
    assert solve((5, 2, 7), predictions) == T
    assert solve((3, 5, 5), predictions) == D / h
    assert solve((5, 2, 8), predictions) == UNKNOWN  # T fits two runs, and fails in the third
    assert solve((1, 3, 9), predictions) == UNKNOWN  # no formula fits
    two = {T: (5, 2, 7), D: (5, 2, 9)}
    assert solve((5, 2, 7), two) == UNKNOWN  # two formulas fit, so the third run would choose, not confirm


def test_runs_of_other_ops_are_refused():
    first, second, _, _ = runs()
    changed = second._replace(ops=[second.ops[0]._replace(place="gpt/relu"), *second.ops[1:]])
    with pytest.raises(ValueError, match=r"the same op in all runs, got gpt\.tokens\.weight, gpt/relu"):
        tiny().solve_shapes([first, changed])


@each_equation
def test_each_equation_holds_at_sizes_that_the_file_has_not(title):
    verdict, largest = tiny().verify(tiny().textbook()[title], runs())
    assert verdict == "✓ verified" and largest < 1e-6


@each_equation
def test_each_equation_without_a_term_is_refuted(title):
    """Also without ε of the layer norm, whose share is 10⁻⁵."""
    changed = list(without_one(tiny().textbook()[title].rhs))
    assert changed or title == "attention weights"
    assert [tiny().latex(term) for term in changed if not is_refuted(title, term, runs()[:3])] == []


@pytest.mark.parametrize(
    "title, mistake",
    [
        ("scores", lambda scaled, mask: scaled),
        ("residual stream", lambda product, bias: product),
    ],
    ids=["no mask", "no bias"],
)
def test_a_mistake_is_refuted(title, mistake):
    assert is_refuted(title, mistake(*tiny().textbook()[title].rhs.args), runs())


def test_a_number_that_is_right_at_one_size_alone_is_refuted():
    scaled, mask = tiny().textbook()["scores"].rhs.args
    term = scaled.args[0] / sqrt(3) + mask  # d_k is 3 in the first run
    assert not is_refuted("scores", term, runs()[:1])
    assert is_refuted("scores", term, runs()[:2])


def test_a_result_that_is_not_a_number_is_refuted():
    weights = tiny().textbook()["attention weights"].rhs
    assert is_refuted("attention weights", weights - weights / Integer(0), runs())


def test_brackets_keep_the_order_in_which_terms_are_written():
    a, b, c = (tiny().Letter(letter, "place") for letter in "abc")
    printed = {a + b + c: "a + b + c", a + (b + c): r"a + \left(b + c\right)", c - b: "c - b", b + a: "b + a"}
    printed |= {(a + b) @ c: r"\left(a + b\right)\,c", (a @ b).T: r"{\left(a\,b\right)}^{\top}"}
    printed |= {a - (a + b): r"a - \left(a + b\right)", (a + b) / c: r"\frac{a + b}{c}", a * b @ c: r"a \odot b\,c"}
    assert {term: tiny().latex(term) for term in printed} == printed


def test_recording_leaves_the_model_as_it_was():
    model = tiny().GPT(T_max=7, D=6, h=2, V=11)
    tokens = torch.arange(5)[None]
    expected = model(tokens)
    ops = tiny().record(model, tokens)
    assert torch.equal(ops[-1].outputs[0], expected)
    with pytest.raises(IndexError):
        tiny().record(model, tokens + 11)  # tokens beyond the vocabulary
    assert torch.equal(model(tokens), expected)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_the_page_quotes_the_file():
    source, page = FILE.read_text(encoding="utf-8"), PAGE.read_text(encoding="utf-8")
    quotes = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    assert len(quotes) >= 6
    for quote in quotes:
        assert quote in source
