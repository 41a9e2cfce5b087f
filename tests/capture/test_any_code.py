"""Code of any kind: losses, folds, transforms, linear algebra … trace with all they compute in a step, or are refused
in one sentence."""

import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import flex_attention as flex

import tracer

LABELS, WEIGHTS = torch.tensor([1, 3, 0, 2, 4, 1]), torch.tensor([0.5, 1.0, 2.0, 0.3, 1.5])
KERNEL = "PyTorch's own kernel"


class Runs(nn.Module):
    """A function of inputs, with the modules that it calls."""

    def __init__(self, function, **modules):
        super().__init__()
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def random_tensor(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def trace_function(function, *inputs: torch.Tensor, symbols=None, **modules):
    torch.manual_seed(0)
    return tracer.trace(Runs(function, **modules), *inputs, symbols=symbols)


def assert_complete(trace) -> None:
    """Assert that everything that computes is in a step, and every step is verified."""
    assert trace.coverage >= 0.97
    assert {step.verdict for step in trace.steps} == {"verified"}, [(step.id, step.note) for step in trace.steps]


LOSSES = {
    "cross entropy": (F.cross_entropy, LABELS, {}),
    "of a sum": (F.cross_entropy, LABELS, {"reduction": "sum"}),
    "of each": (F.cross_entropy, LABELS, {"reduction": "none"}),
    "without a label": (F.cross_entropy, LABELS, {"ignore_index": 1}),
    "without a label that is none": (F.cross_entropy, LABELS.where(LABELS > 0, -100), {}),
    "with weights": (F.cross_entropy, LABELS, {"weight": WEIGHTS}),
    "with weights, without a label": (F.cross_entropy, LABELS, {"weight": WEIGHTS, "ignore_index": 3}),
    "smoothed": (F.cross_entropy, LABELS, {"label_smoothing": 0.1}),
    "of probabilities": (F.cross_entropy, random_tensor(6, 5).softmax(-1), {}),
    "likelihood": (lambda z, y: F.nll_loss(z.log_softmax(-1), y), LABELS, {}),
    "squares": (F.mse_loss, random_tensor(6, 5), {}),
    "squares of each": (F.mse_loss, random_tensor(6, 5), {"reduction": "none"}),
    "absolute": (F.l1_loss, random_tensor(6, 5), {}),
    "Huber": (F.huber_loss, random_tensor(6, 5), {"delta": 0.5}),
    "smooth": (F.smooth_l1_loss, random_tensor(6, 5), {}),
    "binary": (lambda z, y: F.binary_cross_entropy(z.sigmoid(), y), random_tensor(6, 5).sigmoid(), {}),
    "binary of logits": (F.binary_cross_entropy_with_logits, random_tensor(6, 5).sigmoid(), {"pos_weight": WEIGHTS}),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
def test_a_loss_has_a_formula(name, grad):
    loss, target, settings = LOSSES[name]
    with torch.set_grad_enabled(grad):
        trace = trace_function(
            lambda self, x, y: loss(self.head(x), y, **settings), random_tensor(6, 8), target, head=nn.Linear(8, 5)
        )
    assert_complete(trace)
    assert not any(KERNEL in step.note for step in trace.steps)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("sort", [torch.argsort, lambda x, **settings: x.sort(**settings)[1]])
def test_the_indices_of_a_sort_say_their_direction(sort, descending):
    step = tracer.trace(lambda x: sort(x, descending=descending), random_tensor(6, 5)).check().steps[-1]
    assert step.verdict == "verified" and KERNEL not in step.note
    assert (r"\operatorname{argsort}_{\downarrow}" in step.latex) == descending


@pytest.mark.parametrize(("ignored", "printed"), [(0, True), (-100, False)])
def test_a_loss_says_which_class_it_leaves_out_where_no_label_is_of_it(ignored, printed):
    step = tracer.trace(
        lambda logits, labels: F.cross_entropy(logits, labels, ignore_index=ignored),
        random_tensor(6, 5),
        LABELS.clamp(min=1),
    ).steps[-1]
    assert (r"\ne 0" in step.latex) == printed and step.verdict == "verified"


def test_cross_entropy_is_printed_as_the_field_has_it():
    trace = trace_function(
        lambda self, x, y: F.cross_entropy(self.head(x), y),
        random_tensor(6, 8),
        LABELS,
        symbols={"B": 0},
        head=nn.Linear(8, 5),
    )
    line = trace.steps[-1].latex.partition(" = ")[2]
    assert line.startswith(r"-\frac{1}{B} \sum_{i} \log\operatorname{softmax}\left(")
    assert line.endswith(r"\right)_{i,\,{\mathbf{x}_{\text{inputs.1}}}_{i}}")


def test_labels_that_are_left_out_are_said_where_there_are_some():
    def lines(labels):
        trace = trace_function(
            lambda self, x, y: F.cross_entropy(self.head(x), y), random_tensor(6, 8), labels, head=nn.Linear(8, 5)
        )
        return trace.steps[-1].latex

    assert r"\ne -100" in lines(LABELS.where(LABELS > 0, -100))
    assert r"\ne" not in lines(LABELS)


def test_a_bilinear_map_is_a_sum_of_products():
    inputs = random_tensor(2, 3, 4), random_tensor(2, 3, 5)
    trace = trace_function(lambda self, x, y: self.map(x, y), *inputs, map=nn.Bilinear(4, 5, 6))
    assert_complete(trace)
    assert r"\sum_{lm}" in trace.steps[-1].latex


FOLDS = {
    "windows": (nn.Unfold(3, padding=1, stride=2), random_tensor(2, 3, 6, 8)),
    "patches": (nn.Unfold((2, 4), stride=(2, 4)), random_tensor(2, 3, 6, 8)),
    "sums": (nn.Fold((6, 8), 3, padding=1), random_tensor(2, 27, 48)),
    "one picture": (nn.Fold((6, 8), 2, stride=2), random_tensor(12, 12)),
}


@pytest.mark.parametrize("name", FOLDS)
def test_windows_as_columns_have_a_formula(name):
    module, x = FOLDS[name]
    trace = tracer.trace(module, x)
    assert_complete(trace)
    assert not any(KERNEL in step.note for step in trace.steps)
    assert re.search(r"im2col|col2im", trace.steps[-1].latex)


def test_sizes_of_windows_are_symbols():
    trace = trace_function(
        lambda self, x: self.fold(self.unfold(x) * 2), random_tensor(2, 3, 6, 8), symbols={"B": 0}, **WINDOWS
    )
    assert_complete(trace)
    assert trace.steps[-1].symbolic == ("B", "3", "6", "8")


WINDOWS = {"unfold": nn.Unfold(2, stride=2), "fold": nn.Fold((6, 8), 2, stride=2)}


def positive_definite(x: torch.Tensor) -> torch.Tensor:
    return x @ x.mT + torch.eye(x.shape[-1])


DECOMPOSITIONS = {
    "qr": lambda x, b: torch.linalg.qr(x)[0],
    "both of qr": lambda x, b: torch.matmul(*torch.linalg.qr(x)),
    "solve": torch.linalg.solve,
    "inverse": lambda x, b: torch.linalg.inv(x),
    "cholesky": lambda x, b: torch.linalg.cholesky(positive_definite(x)),
    "svd": lambda x, b: torch.linalg.svd(x)[0],
    "eigenvectors": lambda x, b: torch.linalg.eigh(positive_definite(x))[1],
    "least squares": lambda x, b: torch.linalg.lstsq(x, b).solution,
    "determinant": lambda x, b: torch.linalg.det(x),
}


@pytest.mark.parametrize("name", DECOMPOSITIONS)
def test_linear_algebra_is_covered(name):
    compute = DECOMPOSITIONS[name]
    inputs = random_tensor(4, 6, 6), random_tensor(4, 6, 2)
    assert_complete(trace_function(lambda self, x, b: compute(self.linear(x), b), *inputs, linear=nn.Linear(6, 6)))


def derivative(self, x):
    return torch.func.jvp(lambda v: self.linear(v).tanh(), (x,), (torch.ones_like(x),))[1]


def of_each_sample(self, x):
    def loss(parameters, row):
        return torch.func.functional_call(self.linear, parameters, (row,)).pow(2).sum()

    return torch.func.vmap(torch.func.grad(loss), (None, 0))(dict(self.linear.named_parameters()), x)["weight"]


TRANSFORMS = {
    "functional_call": lambda self, x: torch.func.functional_call(self.linear, dict(self.linear.named_parameters()), x),
    "vmap": lambda self, x: torch.vmap(self.linear)(x),
    "vmap of attention": lambda self, x: torch.vmap(lambda r: (r[None].T @ r[None]).softmax(-1) @ r)(x),
    "grad": lambda self, x: torch.func.grad(lambda v: self.linear(v).pow(2).sum())(x),
    "vjp": lambda self, x: torch.func.vjp(lambda v: self.linear(v).tanh(), x)[1](torch.ones(6, 5))[0],
    "jvp": derivative,
    "of each sample": of_each_sample,
    "jacrev": lambda self, x: torch.func.jacrev(lambda v: self.linear(v).tanh())(x[0]),
    "functionalize": lambda self, x: torch.func.functionalize(lambda v: self.linear(v).relu_())(x),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_inside_forward_are_covered(name):
    trace = trace_function(TRANSFORMS[name], random_tensor(6, 8), linear=nn.Linear(8, 5))
    assert trace.coverage >= 0.97
    verdicts = [step.verdict for step in trace.steps]
    assert "refuted" not in verdicts and verdicts.count("verified") >= len(verdicts) - 1


def forwards(self, x):
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        return torch.autograd.forward_ad.unpack_dual(self.linear(dual)).tangent


@pytest.mark.parametrize("compute", [forwards, lambda self, x: torch.func.linearize(self.linear, x)[1](x)])
def test_derivatives_whose_zeros_have_no_memory_are_refused_in_words(compute):
    with pytest.raises(ValueError, match=r"^it takes derivatives by .*: torch.func.jvp computes the same$"):
        trace_function(compute, random_tensor(6, 8), linear=nn.Linear(8, 5))


SCALE = nn.Parameter(torch.tensor(0.5 + 0.2j))
MATRIX = nn.Parameter(torch.randn(5, 5, dtype=torch.complex64, generator=torch.Generator().manual_seed(0)))
COMPLEX = {
    "scalar": lambda self, x: (self.linear(x) * (1 + 2j)).abs(),
    "sum with a scalar": lambda self, x: (self.linear(x) + 2j).real,
    "exponential": lambda self, x: torch.exp(1j * self.linear(x)).imag,
    "power": lambda self, x: (self.linear(x).to(torch.complex64) ** (2 + 1j)).real,
    "parameter without axes": lambda self, x: (self.linear(x) * SCALE).real,
    "parameter": lambda self, x: (self.linear(x).to(torch.complex64) @ MATRIX).abs(),
    "filter": lambda self, x: torch.fft.irfft(torch.fft.rfft(self.linear(x)) * MATRIX[0, :3], n=5),
    "returned": lambda self, x: self.linear(x) * 1j,
}


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_numbers_are_verified(name):
    assert_complete(trace_function(COMPLEX[name], random_tensor(6, 8), linear=nn.Linear(8, 5)))


ADJACENCY = (random_tensor(6, 6) > 0).float()
SPARSE = {
    "COO": lambda self, x: torch.sparse.mm(ADJACENCY.to_sparse(), self.linear(x)),
    "of another": lambda self, x: torch.sparse.mm(self.linear(x).relu().to_sparse(), self.linear.weight),
    "softmax": lambda self, x: torch.sparse.softmax(ADJACENCY.to_sparse(), 1).to_dense() @ self.linear(x),
    "returned": lambda self, x: self.linear(x).relu().to_sparse(),
    "quantized": lambda self, x: torch.quantize_per_tensor(self.linear(x), 0.1, 0, torch.qint8).dequantize(),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SPARSE)
def test_sparse_and_quantized_tensors_are_verified(name):
    assert_complete(trace_function(SPARSE[name], random_tensor(6, 8), linear=nn.Linear(8, 5)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=str)
def test_a_sparse_buffer_is_verified(layout):
    class Graph(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 5)
            self.register_buffer("adjacency", ADJACENCY.to_sparse(layout=layout))

        def forward(self, x):
            return self.adjacency @ self.linear(x)

    assert_complete(tracer.trace(Graph(), random_tensor(6, 8)))


@pytest.mark.parametrize("score", [None, lambda s, b, h, i, j: s + (j - i) * 0.5], ids=["plain", "alibi"])
@pytest.mark.parametrize("masked", [False, True])
def test_flex_attention_is_verified(score, masked):
    mask = flex.create_block_mask(lambda b, h, i, j: i >= j, None, None, 6, 6, device="cpu") if masked else None

    def attend(self, x):
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.packed(x).chunk(3, -1))
        return flex.flex_attention(q, k, v, score_mod=score, block_mask=mask).transpose(1, 2).flatten(2)

    with torch.no_grad():
        assert_complete(trace_function(attend, random_tensor(2, 6, 8), packed=nn.Linear(8, 24)))


def attend(self, x):
    B, T, D = x.shape
    q, k, v = self.packed(x).chunk(3, -1)
    return ((q @ k.transpose(-2, -1) / 8**0.5).softmax(-1) @ v).reshape(B, T, D)


GRAPHS = {
    "symbolic_trace": lambda net, x: torch.fx.symbolic_trace(net),
    "export": lambda net, x: torch.export.export(net, (x,)).module(),
    "jit": torch.jit.trace,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_are_verified_and_have_symbols_where_they_run_at_other_sizes(name):
    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.packed = nn.Linear(8, 24)

        def forward(self, x):
            return attend(self, x)

    x = random_tensor(2, 6, 8)
    trace = tracer.trace(GRAPHS[name](Attends(), x), x, symbols={"B": 0, "T": 1})
    assert_complete(trace)
    if name == "export":  # it is of these sizes alone
        assert "the shapes stay numbers" in trace.notes[0] and "Guard failed" in trace.notes[0]
    else:
        assert trace.ops[-1].outputs[0].symbolic == ("B", "T", "8")


def test_a_model_without_values_is_covered_and_says_why_nothing_is_verified():
    trace = tracer.trace(nn.Sequential(nn.Linear(8, 5), nn.GELU()).to("meta"), torch.empty(6, 8, device="meta"))
    assert trace.coverage == 1
    assert all("on the device 'meta' tensors have no values" in step.note for step in trace.steps)


def test_what_meets_without_values_is_refused_in_words():
    with pytest.raises(ValueError, match=r"^'weight' is on the device 'meta'.*'input' is not: put both on one device$"):
        tracer.trace(nn.Linear(8, 5, device="meta"), random_tensor(6, 8))
    with pytest.raises(ValueError, match=r"^'input' is on the device 'meta'.*'weight' is not"):
        tracer.trace(nn.Linear(8, 5), random_tensor(6, 8).to("meta"))


@pytest.mark.parametrize("compute", [lambda x: x * x.sum().item(), lambda x: x[x > 0], lambda x: x if x.sum() else -x])
def test_values_where_there_are_none_are_refused_in_words(compute):
    with pytest.raises(ValueError, match=r"^it asks for values, and on the device 'meta' tensors have none \("):
        tracer.trace(compute, torch.empty(6, 8, device="meta"))


def join_with_whole_numbers(net, tokens):
    causal = torch.tril(torch.ones(6, 6)).to(torch.uint8)
    return (tokens != 0)[:, None, None, :] & causal


def join_with_compared_triangle(net, tokens):
    causal = (torch.triu(torch.ones(1, 6, 6), diagonal=1) == 0).int()
    return causal & (tokens != 0)[:, None, None, :]


def join_bits_by_or(net, tokens):
    return (tokens == 0)[:, None] | torch.ones(6, 6).triu(1).bool().to(torch.int32)


@pytest.mark.parametrize("join", [join_with_whole_numbers, join_with_compared_triangle, join_bits_by_or])
def test_masks_of_bools_and_of_whole_numbers_are_joined(join):
    run = trace_function(join, torch.tensor([[1, 2, 0, 3, 0, 4], [0, 1, 1, 2, 3, 4]]))
    assert_complete(run)
    assert KERNEL not in run.steps[-1].note


def test_bits_of_other_whole_numbers_are_those_of_the_kernel():
    run = trace_function(lambda net, tokens: (tokens != 1) & tokens, torch.tensor([[1, 2, 0], [3, 5, 6]]))
    assert_complete(run)
    assert KERNEL in run.steps[-1].note


COUNTED_BOOLEANS = {
    "row of each": lambda net, x: net.table(x)[torch.arange(3), torch.ne(x, 0).sum(-1).sub(1)],
    "looked up": lambda net, x: net.table(torch.ne(x, 0).sum(-1)) * 2,
    "gathered": lambda net, x: x.gather(1, torch.ne(x, 0).sum(-1, keepdim=True).sub(1)),
}


@pytest.mark.parametrize("name", COUNTED_BOOLEANS)
def test_counted_booleans_are_whole_numbers(name):
    tokens = torch.tensor([[4, 2, 3, 0], [1, 0, 0, 0], [5, 6, 7, 8]])
    assert_complete(trace_function(COUNTED_BOOLEANS[name], tokens, table=nn.Embedding(9, 5)))


RESHAPES_BY_ANOTHER = {
    "relative shift": lambda net, x, y: torch.cat([x.new_zeros(2, 5, 1), x], -1).view(2, 10, 5)[:, 1:].view_as(x) + y,
    "as": lambda net, x, y: x.transpose(1, 2).reshape_as(y) @ y.transpose(1, 2),
}


@pytest.mark.parametrize("name", RESHAPES_BY_ANOTHER)
def test_a_layout_takes_its_shape_from_another_tensor(name):
    assert_complete(trace_function(RESHAPES_BY_ANOTHER[name], random_tensor(2, 5, 9), random_tensor(2, 5, 9)))


def fill_beyond_lengths(net, scores, lengths):
    rows = torch.repeat_interleave(torch.repeat_interleave(lengths, repeats=3, dim=0), 4)
    flat = torch.tanh(scores).reshape(-1, 4)
    flat[~(torch.arange(4)[None, :] < rows[:, None])] = -1e6
    return flat.reshape(scores.shape).softmax(-1)


def fill_rows_repeated(net, scores, lengths):
    rows = torch.tanh(scores)
    rows[lengths.repeat(3) > 2] = 0.0
    return rows


@pytest.mark.parametrize("fill", [fill_beyond_lengths, fill_rows_repeated])
def test_a_masked_assignment_after_repeated_lengths_is_verified(fill):
    assert_complete(trace_function(fill, random_tensor(6, 4, 4), torch.tensor([3, 2])))


def test_one_tensor_of_two_arguments_goes_by_the_first_name():
    class Losing(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(9, 5)

        def forward(self, input_ids, labels=None):
            logits = self.table(input_ids) @ self.table.weight.T
            return logits, F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    same, copied = (tracer.trace(Losing(), input_ids=ids, labels=labels) for labels in (ids, ids.clone()))
    assert all(run.steps[0].latex.endswith(r"\mathbf{E}\left[\mathbf{t}\right]") for run in (same, copied))
    assert r"\mathbf{x}_{\text{labels}}" not in "".join(step.latex for step in same.steps)
    assert r"\mathbf{x}_{\text{labels}}" in copied.steps[-1].latex
    x = random_tensor(2, 3, 8)
    attention = tracer.trace(nn.MultiheadAttention(8, 2, batch_first=True).eval(), x, x, x)
    assert "value" not in attention.steps[0].latex
