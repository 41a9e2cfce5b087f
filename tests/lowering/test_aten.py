"""Words of ops: the value of a call's node, its shape, and its LaTeX, at two sets of sizes."""

import math
import pickle

import latex2mathml.converter
import numpy as np
import pytest
import sympy
import torch

from tests.support.sweeping import cases
from tests.support.word_cases import CASES, KERNELS, SIZES, Case, Size, T, value
from tracer.expr import Kernel, Tensor, execute, infer, latex
from tracer.latex_reader.evaluator import evaluate
from tracer.latex_reader.parser import read
from tracer.lowering import aten
from tracer.lowering.call_arguments import BoundCall
from tracer.ops import UNINITIALISED_OPS, base
from tracer.symbols import notation
from tracer.symbols.notation import symbol

EXACT, READ = 1e-10, 1e-9
NAMES = [rf"\mathbf{{{letter}}}" for letter in "XYUVGFQRPMOTSEIJLAHKWBCDN"]


def draw_arguments(case: Case, sizes: dict) -> dict:
    """Return the arguments of a case at some sizes."""
    generator = torch.Generator().manual_seed(0)

    def real(one):
        if isinstance(one, T):
            return one.draw(sizes, generator)
        if isinstance(one, Size):
            return value(one, sizes)
        return [real(inner) for inner in one] if isinstance(one, list) else one

    return {name: real(one) for name, one in case.arguments.items()}


def call_op(case: Case, arguments: dict):
    positional, named = [], dict(arguments)
    for argument in case.op._schema.arguments:
        if argument.kwarg_only or argument.name not in named:
            break
        positional.append(named.pop(argument.name))
    copies = [one.clone() if isinstance(one, torch.Tensor) else one for one in positional]
    if case.single:
        copies = [one.float() if isinstance(one, torch.Tensor) and one.is_floating_point() else one for one in copies]
    made = case.op(*copies, **named)
    return made[case.position] if isinstance(made, (tuple, list)) else made


def symbolic(shapes: list[tuple[int, ...]], extra: list[dict]) -> tuple:
    """Return the symbolic sizes of results: constants, sizes that have these values, or new ones."""
    found = []
    for values in zip(*shapes, strict=True):
        if len(set(values)) == 1:
            found.append(sympy.Integer(values[0]))
            continue
        name = next((name for name in SIZES[0] if tuple(sizes[name] for sizes in SIZES) == values), None)
        if name is None:
            name = f"R_{len(extra[0]) - len(SIZES[0])}"
            for sizes, one in zip(extra, values, strict=True):
                sizes[name] = one
        found.append(symbol(name))
    return tuple(found)


class Written:
    """A case's node, with its operands at both sets of sizes."""

    def __init__(self, case: Case):
        self.case, self.sizes = case, [dict(sizes) for sizes in SIZES]
        self.arguments = [draw_arguments(case, sizes) for sizes in SIZES]
        self.results = [call_op(case, arguments) for arguments in self.arguments]
        self.values: list[dict[str, torch.Tensor]] = [{}, {}]
        self.tensors: dict[str, Tensor] = {}
        nodes, shapes, numerics, dtypes = {}, {}, {}, {}
        for name, one in case.arguments.items():
            several = isinstance(one, list) and any(isinstance(inner, T) for inner in one)
            places = [(i, inner) for i, inner in enumerate(one)] if several else [(None, one)]
            found = [self.operand(name, i, inner) for i, inner in places]
            nodes[name], shapes[name], numerics[name], dtypes[name] = (
                [entry[k] for entry in found] if several else found[0][k] for k in range(4)
            )
        shapes_made = [tuple(result.shape) for result in self.results]
        result = symbolic(shapes_made, self.sizes)
        numbers = {
            (name, place): str(sympy.nsimplify(sympy.sympify(str(one), {known: symbol(known) for known in SIZES[0]})))
            for name, several in case.arguments.items()
            for place, one in enumerate(several if isinstance(several, list) else [several])
            if isinstance(one, Size)
        }
        self.given = BoundCall(case.op, nodes, shapes, numerics, dtypes, case.position, result, shapes_made[0], numbers)
        self.node = aten.node(self.given)

    def operand(self, name: str, place: int | None, one):
        here = [arguments[name] if place is None else arguments[name][place] for arguments in self.arguments]
        if not isinstance(one, T):
            return here[0], None, None, None
        key = f"{'parameter' if one.parameter else 'step'} {name}{'' if place is None else place}"
        tensor = Tensor(NAMES[len(self.tensors)], one.symbolic, key)
        self.tensors[key] = tensor
        for values, found in zip(self.values, here, strict=True):
            values[key] = found
        return tensor, one.symbolic, tuple(here[0].shape), here[0].dtype

    def size(self, at: int):
        numbers = {symbol(name): number for name, number in self.sizes[at].items()}
        return lambda expression: float(sympy.sympify(expression).subs(numbers))

    def reads(self, at: int) -> np.ndarray:
        """Return the value of the printed LaTeX."""
        values = {tensor.name: self.values[at][key] for key, tensor in self.tensors.items()}
        values |= {
            tensor.name: self.values[at][tensor.key].T if tensor.transposed else self.values[at][tensor.key]
            for tensor in self.node.atoms(Tensor)
        }
        sizes = {notation.latex(symbol(name)): number for name, number in self.sizes[at].items()}

        def array(name: str) -> np.ndarray:
            if name in sizes:
                return np.asarray(sizes[name])
            found = values[name]
            return (found.double() if found.dtype == torch.bool else found.resolve_conj()).numpy()

        line = read(rf"\mathbf{{Z}} = {latex(self.node)}", {r"\mathbf{Z}", *values, *sizes})
        return evaluate(line, array, tuple(self.results[at].shape))


def off(made, expected) -> float:
    """Return max|computed - expected| / max|expected|, equal infinities and NaNs left out."""
    made, expected = (
        np.asarray(one.numpy(force=True) if isinstance(one, torch.Tensor) else one) * 1.0 for one in (made, expected)
    )
    with np.errstate(all="ignore"):
        same = (made == expected) | (np.isnan(made) & np.isnan(expected))
        largest = np.abs(expected[np.isfinite(expected)]).max(initial=0) or 1
        return float(np.where(same, 0, np.abs(made - expected) / largest).max(initial=0))


ALL = [(f"{name} {i}", case) for name, cases in CASES.items() for i, case in enumerate(cases)]


@pytest.fixture(scope="module", params=ALL, ids=[name for name, _ in ALL])
def written_op(request):
    return Written(request.param[1])


def test_a_call_has_a_formula(written_op):
    assert not aten.kernels(written_op.node), latex(written_op.node)


@pytest.mark.parametrize("at", cases((0, 1), (0,)))
def test_it_computes_what_the_op_does(written_op, at):
    def exact(tensor):
        found = written_op.values[at][tensor.key]
        return found.double() if found.is_floating_point() else found

    made = execute(written_op.node, exact, written_op.size(at))
    assert made.shape == written_op.results[at].shape
    assert off(made, written_op.results[at]) <= (1e-5 if written_op.case.single else EXACT), latex(written_op.node)


def test_its_shape_is_that_of_the_op_at_any_size(written_op):
    shape = infer(written_op.node)
    for at, result in enumerate(written_op.results):
        assert tuple(written_op.size(at)(one) for one in shape) == tuple(result.shape), shape


@pytest.mark.parametrize("at", cases((0, 1), (0,)))
def test_what_is_printed_is_what_the_op_does(written_op, at):
    assert off(written_op.reads(at), written_op.results[at]) <= (1e-5 if written_op.case.single else READ), latex(
        written_op.node
    )


def test_it_is_drawn(written_op):
    text = latex(written_op.node)
    assert "<math" in latex2mathml.converter.convert(text)
    assert text.count("{") == text.count("}") and text.count(r"\left") == text.count(r"\right")


def test_it_can_be_made_again_with_other_names(written_op):
    """Rename a line's operands and back: the node is the same again."""
    node = written_op.node
    assert node.func(*node.args) == node and pickle.loads(pickle.dumps(node)) == node
    others = {
        tensor: Tensor(rf"{tensor.name}'", tensor.shape, tensor.key, tensor.transposed) for tensor in node.atoms(Tensor)
    }
    renamed = node.xreplace(others)
    assert not others or latex(renamed) != latex(node)
    assert renamed.xreplace({new: old for old, new in others.items()}) == node


COMPOSED_WORDS = (
    "experts",
    "sinusoids",
    "rope",
    "deviation_norm",
    "channel_norm",
    "unit_length",
    "triangle",
    "label_entropy",
    "vector_cosine",
)
"""Words of what no op is: `test_mixture_of_experts` and `test_idioms` try them."""


def test_every_word_has_a_case():
    assert set(aten.names()) - {base(name) for name in CASES} == {*UNINITIALISED_OPS, *COMPOSED_WORDS}


@pytest.mark.parametrize("name", ["aten::add_.Tensor", "relu_", "aten.addmm.default", "native_layer_norm"])
def test_names_of_ops_in_place_and_with_overloads_are_known(name):
    assert aten.has_lowering(name)


@pytest.mark.parametrize("name", KERNELS)
def test_what_has_no_formula_is_listed(name):
    assert hasattr(torch.ops.aten, name) and not aten.has_lowering(name)


def test_what_has_no_word_runs_as_a_kernel():
    func, x = torch.ops.aten.cummax.default, torch.randn(2, 5)
    size = symbol("B"), symbol("N")
    tensor = Tensor(r"\mathbf{X}", size, "step x")
    given = BoundCall(
        func, {"self": tensor, "dim": 1}, {"self": size}, {"self": (2, 5)}, {"self": x.dtype}, 1, size, (2, 5)
    )
    node = aten.node(given)
    assert isinstance(node, Kernel) and aten.kernels(node) == (node,)
    assert infer(node) == size and latex(node) == r"\operatorname{cummax}\left(\mathbf{X}\right)"
    assert execute(node, lambda tensor: x, float).equal(x.cummax(1).indices)


@pytest.mark.parametrize("name", ["native_layer_norm", "max_pool2d_with_indices", "log_sigmoid_forward"])
def test_an_output_beside_the_formula_is_a_kernel(name):
    """The mean of a norm, or the places of the largest numbers, is not what the formula says."""
    assert aten.kernels(Written(CASES[name][0]._replace(position=1)).node)


def test_no_op_has_two_lowerings():
    with pytest.raises(ValueError, match="'relu' has two lowerings"):
        aten.register_lowering("relu")(lambda call: None)


def test_roots_of_widths_are_found():
    """√n is written for a number that never moves where n, which does not move either, is what a product sums over, or
    where no fraction says it the width of what is scaled."""
    sixteen, T = sympy.Integer(16), symbol("T")
    q, k = (Tensor(rf"\mathbf{{{name}}}", (T, sixteen), f"step {name}") for name in "QK")
    given = BoundCall(
        torch.ops.aten.mul.Scalar, {"self": q}, {"self": q.shape}, {"self": (5, 16)}, {"self": torch.float32}
    )
    assert (
        given.match_sqrt_of_size(0.25, q @ k.T) == sympy.Rational(1, 4) and given.match_sqrt_of_size(4.0, q @ k.T) == 4
    )
    assert given.match_sqrt_of_size(0.25, q) is None and given.match_sqrt_of_size(4.0, q) is None
    assert given.match_sqrt_of_size((16 + 1e-5) ** 0.5, q @ k.T) is None, "near the root, and not it"
    wide = Tensor(r"\mathbf{W}", (T, sympy.Integer(32)), "step w")
    assert given.match_sqrt_of_size(32**-0.5, wide) == 1 / sympy.sqrt(32)
    square = Tensor(r"\mathbf{S}", (T, T), "step s")
    assert (
        given.match_sqrt_of_size(5**0.5, square) is None and given.match_sqrt_of_size(5**-0.5, square @ square) is None
    ), "a size that moves"
    assert (
        given.match_sqrt_of_size(8, q) is None
        and given.match_sqrt_of_size(0.3, q) is None
        and given.match_sqrt_of_size(math.inf, q) is None
    )


def test_numbers_are_those_of_all_runs():
    """A number is a formula where one fits all runs, itself where it never moves, and has a remark otherwise."""
    x = Tensor(r"\mathbf{X}", (symbol("B"), symbol("T")), "step x")
    said: list[str] = []

    def bind_call(func, numbers, **arguments):
        shapes, numerics = {"self": x.shape}, {"self": (2, 16)}
        found = {"self": x, **arguments}
        return BoundCall(func, found, shapes, numerics, {}, 0, x.shape, (2, 16), numbers, said.append)

    times, over, roll = torch.ops.aten.mul.Scalar, torch.ops.aten.div.Scalar, torch.ops.aten.roll.default
    assert latex(aten.node(bind_call(times, {}, other=0.25))) == r"0.25\,\mathbf{X}"
    other = ("other", 0)
    assert latex(aten.node(bind_call(times, {other: "1/sqrt(T)"}, other=0.25))) == r"\frac{\mathbf{X}}{\sqrt{T}}"
    assert latex(aten.node(bind_call(times, {other: "log(T)"}, other=2.77))) == r"\log\left(T\right)\,\mathbf{X}"
    assert latex(aten.node(bind_call(over, {other: "T - 1"}, other=15))) == r"\frac{\mathbf{X}}{T - 1}"
    moved = aten.node(bind_call(roll, {("shifts", 0): "floor(T/2)"}, shifts=[8], dims=[1]))
    assert r"\left\lfloor \frac{T}{2} \right\rfloor" in latex(moved) and not said
    aten.node(bind_call(times, {other: "?"}, other=0.3))
    aten.node(bind_call(times, {other: "data"}, other=0.7))
    assert [text.partition(" ")[0] for text in said] == ["It", "0.7"] and "0.3 moves" in said[0]
