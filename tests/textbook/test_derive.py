"""Textbooks that are derived from a run: complete, verified, and in the notation of the papers."""

import tracemalloc

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tracer
from tracer.capture import record
from tracer.capture.modes import as_module
from tracer.graph.dataflow import Graph
from tracer.graph.index_maps import IndexMap, expand_pattern, factor_index_map, from_strides, index_map, invert_map
from tracer.inputs.model_inputs import Inputs
from tracer.latex_reader.evaluator import names
from tracer.ops import is_layout
from tracer.textbook.expression_builder import ExpressionBuilder
from tracer.verify import surveys
from tracer.verify.checks import printed


class Written(nn.Module):
    """A module that writes the slices of a tensor one after the other, through views, before it reads it."""

    def forward(self, x):
        made = torch.empty(x.shape[0], 4)
        made[:, :2] = x
        made[:, 2:] = x.flip(-1)
        made[1:] += 1
        return made * 2


class Chosen(nn.Module):
    """Experts of which each token selects the best."""

    def __init__(self):
        super().__init__()
        self.gate, self.table = nn.Linear(6, 3), nn.Parameter(torch.randn(3, 6, 5))

    def forward(self, x):
        best = self.gate(x).softmax(-1).max(-1)
        return best.values[..., None] * torch.einsum("btd,btde->bte", x, self.table[best.indices])


def images(*shape):
    return (torch.rand(2, 3, *shape),)


def sequence(*width):
    return (torch.randn(2, 7, *width),)


MODULES = {
    "encoder layer": (lambda: nn.TransformerEncoderLayer(24, 6, 26, batch_first=True), sequence(24)),
    "pre-norm encoder": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(24, 6, 26, batch_first=True, norm_first=True), 2, enable_nested_tensor=False
        ),
        sequence(24),
    ),
    "decoder layer": (lambda: nn.TransformerDecoderLayer(24, 6, 26, batch_first=True), sequence(24) * 2),
    "attention": (lambda: nn.MultiheadAttention(24, 6, batch_first=True), sequence(24) * 3),
    "lstm": (lambda: nn.LSTM(5, 4, 2, batch_first=True), sequence(5)),
    "projected lstm": (lambda: nn.LSTM(5, 6, bidirectional=True, proj_size=3, batch_first=True), sequence(5)),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=2, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 6, 3, groups=2),
            nn.GroupNorm(3, 6),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(6, 5),
        ),
        images(17, 13),
    ),
    "written": (Written, (torch.randn(3, 2),)),
    "chosen": (Chosen, sequence(6)),
}


@pytest.fixture(scope="module", params=MODULES)
def derived_run(request):
    make, given = MODULES[request.param]
    torch.manual_seed(0)
    net = make().eval()
    surveys.perturb_parameters(net)
    with torch.no_grad():
        return net, given, tracer.trace(net, *given, symbols={"B": 0})


def test_every_op_that_computes_is_in_a_step_that_is_verified(derived_run):
    _, _, run = derived_run
    assert run.steps and all(op.step for op in run.ops if not is_layout(op.op))
    shown = [step for step in run.steps if not step.recomputed]
    assert {step.verdict for step in shown} == {"verified"}
    assert max(step.error for step in shown) < 1e-5
    assert not [note for note in run.notes if "equation" in note]


def test_what_is_printed_is_what_ran(derived_run):
    net, given, run = derived_run

    given = Inputs(given)
    assert dict(printed.differences(run, net, given)) == {}


def test_no_two_letters_are_alike(derived_run):
    _, _, run = derived_run
    for name, things in names(run.steps).items():
        assert len(things) == 1, (name, things)
    assert len({step.id for step in run.steps}) == len(run.steps)


def test_attention_has_the_letters_of_the_papers():
    torch.manual_seed(0)
    net = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(24, 6, 26, batch_first=True, norm_first=True), 2, enable_nested_tensor=False
    ).eval()
    with torch.no_grad():
        run = tracer.trace(net, torch.randn(2, 7, 24), symbols={"B": 0, "T": 1})
    said = {step.symbol: step.latex for step in run.steps}
    assert said[r"\mathbf{A}^{(1)}"] == r"\mathbf{A}^{(1)} = \operatorname{softmax}\left(\mathbf{S}^{(1)}\right)"
    assert said[r"\mathbf{S}^{(2)}"] == (r"\mathbf{S}^{(2)} = \frac{\mathbf{Q}^{(2)}\,{\mathbf{K}^{(2)}}^{\top}}{2}")
    assert said[r"\mathbf{X}^{(2)}"] == r"\mathbf{X}^{(2)} = \mathbf{X}'^{(2)} + \mathbf{F}^{(2)}"
    assert run.step("layers.0.mlp.activation").symbolic == ("B", "T", "26")
    assert run.step("layers.1.attention.query").stage == "attention" and run.step("layers.1.attention.query").layer == 1


def test_a_net_of_convolutions_has_feature_maps():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()
    with torch.no_grad():
        run = tracer.trace(net, torch.randn(2, 3, 9, 8))
    letters = [step.symbol.partition("_")[0] for step in run.steps]
    assert letters == [r"\mathbf{Z}", r"\hat{\mathbf{Z}}", r"\mathbf{X}", r"\mathbf{Z}"]


def test_a_wrong_equation_would_be_refuted(monkeypatch):
    """The proof is of the equation: another one of the same shape fails."""
    from tracer.expr.arithmetic import ReLU, Tanh

    monkeypatch.setattr(ReLU, "compute", staticmethod(Tanh.compute))
    run = tracer.trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4))
    assert [step.verdict for step in run.steps] == ["verified", "refuted"]


@pytest.mark.parametrize("grad", [False, True])
def test_recording_calls_changes_neither_ops_nor_gradients(grad):
    torch.manual_seed(0)
    net, x = nn.TransformerEncoderLayer(24, 6, 26, batch_first=True).eval(), torch.randn(2, 7, 24)
    with torch.set_grad_enabled(grad):
        plain, both = record(net, (x,)), record(net, (x,), calls=True)
    assert [(op.name, op.module, op.inputs, op.outputs) for op in plain.ops] == [
        (op.name, op.module, op.inputs, op.outputs) for op in both.ops
    ]
    assert torch.equal(plain.output, both.output)
    names = [call.name for call in both.calls.entries]
    assert "linear" in names and "layer_norm" in names and "addmm" not in names
    assert [module.path for module in both.calls.modules][:3] == ["", "self_attn", "self_attn.out_proj"] or len(
        both.calls.modules
    ) > 3


@pytest.mark.parametrize(
    "move",
    [
        lambda x: x.transpose(1, 2),
        lambda x: x.unflatten(-1, (2, 3)).transpose(1, 2),
        lambda x: x[:, 1:].flatten(1),
        lambda x: x[..., ::2],
        lambda x: x.unsqueeze(1).expand(-1, 3, -1, -1).reshape(-1, 4, 6),
        lambda x: x.unflatten(1, (2, 2)).permute(0, 1, 3, 2).flatten(2),
        lambda x: x[:, 0],
    ],
)
def test_a_pattern_rebuilds_its_index_map(move):
    shape = (5, 4, 6)
    places = move(torch.arange(120).reshape(shape)).numpy()
    pattern = factor_index_map(IndexMap(places.shape, places.reshape(-1).__getitem__), shape)
    assert pattern is not None and (_laid_by(pattern, shape, places.shape) == places).all()
    assert (expand_pattern(pattern, shape, places.shape).table() == places).all()


def _laid_by(pattern, shape, result):
    """Return the index map of a pattern, by numpy's own slices, reshapes and transposes."""
    places = np.arange(np.prod(shape)).reshape(shape)
    places = places[tuple(slice(*taken) if taken else slice(None) for taken in pattern.slices)]
    order = [part for parts in pattern.left for part in parts]
    places = places.reshape([pattern.sizes[part] for part in order])
    for part in pattern.repeated:
        places = np.broadcast_to(places[..., None], (*places.shape, pattern.sizes[part]))
        order.append(part)
    return places.transpose([order.index(part) for parts in pattern.right for part in parts]).reshape(result)


CHAINS = {
    "heads of a packed product": lambda x: x.chunk(3, -1)[1].unflatten(-1, (4, 8)).transpose(1, 2),
    "rows that are joined, then cut": lambda x: x.transpose(0, 1).reshape(-1)[96:-96].view(-1, 96),
    "an offset that is not a multiple": lambda x: x.mT.flatten()[5:-91].view(-1, 32),
    "all but the last, two steps at a time": lambda x: x[:, :-1:2].flatten(1),
    "a diagonal": lambda x: x.diagonal(0, 1, 2),
    "repeated axes": lambda x: x.repeat(2, 3, 1, 2).flatten(0, 1),
    "tiles": lambda x: x.tile(2),
    "each several times": lambda x: x.repeat_interleave(3, 1).transpose(0, 1),
    "each of all several times": lambda x: x.repeat_interleave(2),
    "expanded": lambda x: x[:, None].expand(-1, 4, -1, -1).reshape(-1, *x.shape[1:]),
    "parts of a list": lambda x: x.unflatten(-1, (3, 32)).unbind(2)[2].split(7, 1)[-1],
    "pixels": lambda x: F.pixel_unshuffle(F.pixel_shuffle(x.view(-1, 96, 31, 1), 4)[..., 2:], 2),
}


@pytest.mark.parametrize("rows", [5, 31 * 12])
@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_the_map_of_a_chain_is_what_the_chain_does_at_any_size(chain, rows):
    shape = (rows, 31, 96)
    run = record(as_module(chain), (torch.zeros(shape),), calls=True).calls
    graph = Graph.of(run, lambda name: False)
    steps = [
        (call, [ref.key for ref in call.outputs].index(key))
        for key in graph.chain(run.outputs[0].key, "input x")
        for call in [graph.call_of(key)]
    ]
    expected = chain(torch.arange(rows * 31 * 96).view(shape)).numpy()
    places = index_map(shape, steps)
    assert places.shape == expected.shape and (places.table() == expected).all()
    pattern = factor_index_map(places, shape)
    if pattern is not None:
        assert (_laid_by(pattern, shape, expected.shape) == expected).all()
        if not any(pattern.slices) and not pattern.repeated:
            back = invert_map(places, shape, pattern).table()
            assert (expected.reshape(-1)[back] == np.arange(expected.size).reshape(shape)).all()


def test_a_map_takes_no_memory_for_its_cells():
    shape = (1, 16, 8192, 8192)
    tracemalloc.start()
    try:
        places = from_strides(shape, (8192**2, 0, 8192, 1))
        assert factor_index_map(places, (1, 8192, 8192)) == (
            (None,) * 3,
            (16, 8192, 8192),
            ((), (1,), (2,)),
            ((), (0,), (1,), (2,)),
            (0,),
        )
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_what_is_no_pattern_has_none():
    rolled, windows = np.roll(np.arange(12), 1), torch.arange(12).unfold(0, 4, 2).numpy()
    assert factor_index_map(IndexMap(rolled.shape, rolled.__getitem__), (12,)) is None
    assert factor_index_map(IndexMap(windows.shape, windows.reshape(-1).__getitem__), (12,)) is None


@pytest.mark.sweep
@pytest.mark.parametrize(
    "name", ["hf:t5", *(pytest.param(one, marks=pytest.mark.sweep) for one in ("hf:mistral", "timm:convnext_atto"))]
)
def test_textbooks_of_the_zoo_are_complete(name):
    found = surveys.book(name)
    assert not found.reason and not found.unverified
    assert found.covered == found.computing > 0 and found.steps == found.verified > 0
    assert found.kernels <= 0.05 * found.steps


def test_random_numbers_are_not_drawn_again():
    class Noisy(nn.Module):
        def forward(self, x):
            return x + torch.randn(3)

    torch.manual_seed(0)
    run = tracer.trace(Noisy(), torch.zeros(3))
    after = torch.rand(1)
    torch.manual_seed(0)  # a trace leaves the generator as it was
    assert torch.equal(after, torch.rand(1))
    noisy = next(step for step in run.steps if "randn" in step.id)
    assert noisy.verdict == "not executed" and "random" in noisy.note


class Laid(nn.Module):
    """Fused attention whose result PyTorch stores in the memory layout of its queries."""

    def forward(self, x):
        heads = nn.functional.scaled_dot_product_attention(*(x.unflatten(-1, (3, 4)).transpose(1, 2),) * 3)
        return heads.permute(0, 2, 1, 3).view(*x.shape)


class Counted(nn.Module):
    """A quotient of two numbers of the code."""

    def forward(self, x):
        return x * torch.div(x.shape[1], 2, rounding_mode="floor")


class OneRow(nn.Module):
    """Matrices of one row, built from vectors of a batch of one."""

    def forward(self, x):
        mean = x.mean(1, keepdim=True) * 2
        return mean.squeeze(0) @ mean.squeeze(0).mT


class Single(nn.Module):
    """One number, selected from a batch of one."""

    def forward(self, x):
        return (x.mean((1, 2)) * 2).view(()) * x


class Floored(nn.Module):
    """Scores that are no lower than a number."""

    def forward(self, x):
        scores = torch.maximum(x @ x.mT, torch.tensor(-0.5))
        return scores.softmax(-1) @ x


class Thrown(nn.Module):
    """A mask that is computed from nothing, rearranged, and then used by no block."""

    def forward(self, x):
        places = torch.arange(x.shape[1]) + 1
        (places[:, None] - places > 3)[None].expand(x.shape[0], -1, -1)
        return x * 2


@pytest.mark.parametrize("net", [Laid(), Counted(), OneRow(), Single(), Floored(), Thrown()])
def test_forms_that_models_of_libraries_brought_up_are_written(net):
    run = tracer.trace(net, torch.randn(1, 5, 12))
    assert run.coverage == 1 and not run.notes
    assert all(step.verdict == "verified" for step in run.steps if not step.recomputed)
    assert not any(record.problem for record in run.attentions)


def test_a_line_of_a_form_that_nobody_foresaw_is_left_open_and_said(monkeypatch):
    def unforeseen(self, key):
        return [][0] if "1" in self.ids[key] else known(self, key)

    known = ExpressionBuilder.equation
    monkeypatch.setattr(ExpressionBuilder, "equation", unforeseen)
    run = tracer.trace(nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), torch.randn(2, 5))
    assert [step.verdict for step in run.steps] == ["verified", "not executed", "verified"]
    left = run.steps[1]
    assert r"= \operatorname{relu}(" in left.latex.replace(r"\left", "") and left.shape == (2, 4)
    assert "no equation could be written for it (IndexError" in left.note
    assert run.coverage == 1 and not run.notes


def test_sizes_of_which_nothing_is_known_are_counted():
    net, x = nn.Linear(5, 3), torch.randn(2, 5)
    unknown = surveys.changing_sizes(tracer.trace(net, x, prove=False))
    assert len(unknown) > 2 and set(unknown) == {"?"}
    assert surveys.changing_sizes(tracer.trace(net, x, symbols={"B": 0}, prove=False)) == ["B", "B"]


class Signs(torch.nn.Module):
    """A sum and a difference that no role has a name for."""

    def __init__(self):
        super().__init__()
        self.f, self.g = torch.nn.Linear(5, 5), torch.nn.Linear(5, 5)

    def forward(self, a, b):
        return self.f((self.g(a) + b).view(-1)), a - b


def test_a_line_without_a_role_is_called_by_its_operation():
    steps = tracer.trace(Signs(), torch.randn(5), torch.randn(5)).steps
    titles = {step.title: step.latex for step in steps}
    assert " + " in titles["Sum"] and " - " in titles["Output: [1]"]
    assert all(("W" in step.latex) == (step.title in ("Linear map", "Output")) for step in steps)
