"""Letters, titles and ids that derived lines have by structure, on nets written by hand."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tracer
from tracer.inputs.model_inputs import Inputs
from tracer.latex_reader.evaluator import names
from tracer.verify import surveys
from tracer.verify.checks import printed


def run(net, *given, **symbols):
    """Return the trace of a net with random weights; every line of it is verified, and parsed from its printed form."""
    torch.manual_seed(0)
    net = net.eval()
    surveys.perturb_parameters(net)
    with torch.no_grad():
        found = tracer.trace(net, *given, symbols=symbols or {"B": 0, "T": 1})
    assert {step.verdict for step in found.steps if not step.recomputed} == {"verified"} and found.coverage == 1
    assert dict(printed.differences(found, net, Inputs(given))) == {}
    assert all(len(things) == 1 for things in names(found.steps).values())
    return found


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8, bias=False) for _ in range(4))

    def forward(self, x):
        y = self.norm(x)
        q, k, v = (one(y).unflatten(-1, (2, 4)).transpose(1, 2) for one in (self.q, self.k, self.v))
        weights = (q @ k.transpose(-2, -1) / 2).softmax(-1)
        return x + self.o((weights @ v).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Listed(nn.Module):
    """A block whose parts are numbered, as those of T5."""

    def __init__(self):
        super().__init__()
        self.layer = nn.ModuleList([SelfAttention(), FeedForward()])

    def forward(self, x):
        for one in self.layer:
            x = one(x)
        return x


def test_parts_of_a_block_that_are_counted_are_one_block():
    found = run(nn.Sequential(Listed(), Listed()), torch.randn(2, 5, 8))
    said = {step.id: step.symbol for step in found.steps}
    assert said["0.attention.residual"] == r"\mathbf{X}'^{(1)}" and said["0.mlp.residual"] == r"\mathbf{X}^{(1)}"
    assert said["1.norm1"] == r"\tilde{\mathbf{X}}^{(2)}" and said["1.norm2"] == r"\hat{\mathbf{X}}^{(2)}"


class Biased(nn.Module):
    """Attention with a bias for each head: slopes times positions, or learned, looked up by distance."""

    def __init__(self, learned):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(12, 12, bias=False) for _ in range(4))
        self.table = nn.Embedding(9, 3) if learned else None

    def forward(self, x):
        q, k, v = (one(x).unflatten(-1, (3, 4)).transpose(1, 2) for one in (self.q, self.k, self.v))
        places = torch.arange(x.shape[1])
        if self.table is None:
            bias = (2.0 ** -torch.arange(1, 4))[:, None, None] * places
        else:
            bias = self.table((places - places[:, None]).clamp(-4, 4) + 4).permute(2, 0, 1)
        mask = torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(1)
        weights = (q @ k.transpose(-2, -1) / 2 + bias + mask).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).flatten(2))


def test_alibi_and_learned_biases_are_steps_of_their_own():
    for learned, letter, id in ((False, r"\mathbf{M}_{\mathrm{ALiBi}}", "alibi"), (True, r"\mathbf{B}", "bias")):
        found = run(Biased(learned), torch.randn(2, 5, 12))
        step, scores = found.step(id), found.step("attention.scores")
        assert (step.symbol, step.stage) == (letter, "position") and scores.latex.endswith(
            f"}}{{2}} + {letter} + \\mathbf{{M}}"
        )
        if not learned:
            assert r"{2}^{-\left(1, 2, 3\right)}" in step.latex
            assert step.latex.endswith(r"\odot \left(0, 1, \ldots, T - 1\right)")


class Mixing(nn.Module):
    """A block that mixes each token with the one before, by learned shares, as RWKV does."""

    def __init__(self):
        super().__init__()
        self.key_mix, self.value_mix = nn.Parameter(torch.rand(8)), nn.Parameter(torch.rand(8))
        self.norm, self.key, self.value = nn.LayerNorm(8), nn.Linear(8, 12), nn.Linear(12, 8)
        self.gate = nn.Linear(8, 8)

    def forward(self, x):
        y = self.norm(x)
        before = nn.functional.pad(y, (0, 0, 1, -1))
        key = y * self.key_mix + before * (1 - self.key_mix)
        value = y * self.value_mix + before * (1 - self.value_mix)
        return x + self.gate(value).sigmoid() * self.value(torch.relu(self.key(key)) ** 2)


def test_a_mix_of_two_tokens_is_no_residual_sum_and_has_the_name_of_its_shares():
    found = run(nn.Sequential(Mixing(), Mixing()), torch.randn(2, 5, 8))
    said = {step.symbol: step.title for step in found.steps}
    assert said[r"\mathbf{X}_{\text{key\_mix}}^{(1)}"] == said[r"\mathbf{X}_{\text{value\_mix}}^{(2)}"] == "Mix of two"
    assert said[r"\mathbf{X}^{(1)}"] == said[r"\mathbf{X}^{(2)}"] == "Residual sum"
    assert not any("''" in symbol for symbol in said)


class Fused(SelfAttention):
    """Causal attention by PyTorch's own kernel, after a convolution over time."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(8, 8, 3, groups=8)

    def forward(self, x):
        y = self.conv(nn.functional.pad(self.norm(x).transpose(1, 2), (2, 0))).transpose(1, 2)
        q, k, v = (one(y).unflatten(-1, (2, 4)).transpose(1, 2) for one in (self.q, self.k, self.v))
        made = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.o(made.transpose(1, 2).flatten(2))


def test_the_mask_of_all_blocks_stands_before_them_so_that_they_repeat():
    net = nn.Sequential(nn.Embedding(9, 8), Fused(), Fused(), nn.Linear(8, 9))
    found = run(net, torch.tensor([[1, 2, 3, 4, 5]]))
    assert [repeat.times for repeat in found.repeats] == [2]
    ids = [step.id for step in found.steps]
    assert ids.index("mask") < ids.index("1.norm1")


class Scanned(nn.Module):
    """A state-space block: a convolution over time, then a loop."""

    def __init__(self):
        super().__init__()
        self.norm, self.conv, self.out = nn.LayerNorm(8), nn.Conv1d(8, 8, 3, groups=8), nn.Linear(8, 8)
        self.stays = nn.Parameter(torch.rand(8))

    def forward(self, x):
        y = self.conv(nn.functional.pad(self.norm(x).transpose(1, 2), (2, 0))).transpose(1, 2)
        h, made = torch.zeros(x.shape[0], 8), []
        for t in range(x.shape[1]):
            h = self.stays * h + y[:, t]
            made.append(h)
        return x + self.out(torch.stack(made, 1))


def test_tokens_that_are_convolved_over_time_are_no_feature_maps():
    net = nn.Sequential(nn.Embedding(9, 8), Scanned(), Scanned(), nn.LayerNorm(8), nn.Linear(8, 9))
    said = {step.id: step.symbol for step in run(net, torch.tensor([[1, 2, 3, 4, 5]])).steps}
    assert said["1.norm1"] == r"\tilde{\mathbf{X}}^{(1)}" and r"\mathbf{X}_f" in said.values()


class FrozenNorm(nn.Module):
    """A batch norm with constant statistics, as in detectors: a scale and a shift."""

    def __init__(self):
        super().__init__()
        for name, value in (("weight", 0.5), ("bias", -0.5), ("running_mean", 0.3), ("running_var", 0.7)):
            self.register_buffer(name, torch.linspace(value, value + 1, 6))

    def forward(self, x):
        weight, bias, mean, variance = (one.reshape(1, -1, 1, 1) for one in self.buffers())
        scale = weight * (variance + 1e-5).rsqrt()
        return x * scale + (bias - mean * scale)


def test_a_batch_norm_that_is_written_out_is_one_line_in_the_words_of_one():
    net = nn.Sequential(nn.Conv2d(3, 6, 3), FrozenNorm(), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 4, 3))
    found = run(net, torch.rand(2, 3, 12, 10), B=0, H=2, W=3)
    assert [step.title for step in found.steps] == [
        *("Convolution", "Normalise each channel", "ReLU", "Max pooling", "Output"),
    ]
    plain = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 4, 3))
    other = run(plain, torch.rand(2, 3, 12, 10), B=0, H=2, W=3)
    assert [step.latex for step in found.steps] == [step.latex for step in other.steps]


class Positions(nn.Module):
    """Sines of the positions along the sequence, computed from its length alone."""

    def forward(self, x):
        places = torch.ones_like(x[0, :, 0]).cumsum(0)[:, None] / torch.arange(1, 9)
        return places.sin() + places.cos()


class Asking(nn.Module):
    """A block of a detector's decoder: positions are added to queries and keys, not to values."""

    def __init__(self):
        super().__init__()
        self.own, self.other = SelfAttention(), SelfAttention()

    def attend(self, part, x, y, at, there):
        heads = (one.unflatten(-1, (2, 4)).transpose(1, 2) for one in (part.q(x + at), part.k(y + there), part.v(y)))
        return part.o(nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))

    def forward(self, x, y, at, there):
        x = self.own.norm(x + self.attend(self.own, x, x, at, at))
        return self.other.norm(x + self.attend(self.other, x, y, at, there))


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.position, self.query_position = Positions(), nn.Embedding(3, 8)
        self.blocks = nn.ModuleList([Asking(), Asking()])

    def forward(self, y):
        at, there = self.query_position.weight[None].expand(len(y), -1, -1), self.position(y)
        x = torch.zeros_like(at)
        for block in self.blocks:
            x = block(x, y, at, there)
        return x


def test_positions_that_are_added_to_queries_and_keys_have_the_letters_of_positions():
    found = run(Detector(), torch.randn(2, 5, 8))
    said = {step.symbol: step for step in found.steps}
    assert said[r"\mathbf{X}_P"].title == "Positions"
    first, other = said[r"\mathbf{X}_P^{(1)}"], said[r"\mathbf{X}_P^{(2)}"]
    assert first.title == other.title == "Add positions" and other.latex.endswith(r"\mathbf{X}^{(1)} + \mathbf{P}")
    sums = [step.symbol for step in found.steps if step.title == "Residual sum"]
    assert len(sums) == 4 and [symbol.replace("(1)", "(2)") for symbol in sums[:2]] == sums[2:]


class ScaledBefore(SelfAttention):
    """Queries that are scaled before they are split into heads, for a kernel without a scale."""

    def forward(self, x):
        y = self.norm(x)
        q, k, v = (one.unflatten(-1, (2, 4)).transpose(1, 2) for one in (self.q(y) * 0.5, self.k(y), self.v(y)))
        made = nn.functional.scaled_dot_product_attention(q, k, v, scale=1.0)
        return x + self.o(made.transpose(1, 2).flatten(2))


def test_queries_that_are_scaled_before_make_scores_over_the_root_of_their_width():
    scores = run(ScaledBefore(), torch.randn(2, 5, 8)).step("attention.scores")
    assert scores.latex.startswith(
        r"\mathbf{S} = \frac{\operatorname{heads}_{2}\left(\mathbf{Q}\right)"
    ) and scores.latex.endswith(r"^{\top}}{2}")


class TokenNorm(nn.Module):
    """A batch norm over the features of tokens."""

    def __init__(self):
        super().__init__()
        self.batchnorm = nn.BatchNorm1d(8)

    def forward(self, x):
        return self.batchnorm(x.transpose(1, 2)).transpose(1, 2)


class Patched(nn.Module):
    """A block of a model of series: variates are folded into its batch, and its norms are numbered."""

    def __init__(self):
        super().__init__()
        self.norm_sublayer1, self.norm_sublayer2 = TokenNorm(), TokenNorm()
        self.attend, self.up, self.down = SelfAttention(), nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x):
        y = x.view(-1, *x.shape[2:])
        x = (y + self.attend(self.norm_sublayer1(y))).view(x.shape)
        y = x.view(-1, *x.shape[2:])
        return (y + self.down(torch.relu(self.up(self.norm_sublayer2(y))))).view(x.shape)


def test_norms_that_are_counted_are_no_blocks_and_axes_of_size_1_stay_apart():
    net = nn.Sequential(nn.Linear(8, 8), Patched(), Patched(), nn.Linear(8, 3))
    found = run(net, torch.randn(1, 1, 5, 8), B=0, m=1, T=2)
    said = {step.id: step for step in found.steps}
    assert said["1.norm1"].symbol == r"\tilde{\mathbf{X}}^{(1)}" and said["2.norm1"].title == "Normalise each channel"
    assert not [step.note for step in found.steps if step.note and not step.recomputed]
    assert said["2.mlp.residual"].symbolic == ("B", "m", "T", "8")


class AskedForWeights(nn.Module):
    """PyTorch's own attention called with default arguments, which scales queries before the product; one block
    alone."""

    def __init__(self):
        super().__init__()
        self.norm, self.attend = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        x = self.norm(x)
        return x + self.attend(x, x, x)[0]


def test_scaled_queries_have_a_line_and_a_norm_before_attention_is_not_the_last():
    found = run(AskedForWeights(), torch.randn(2, 5, 8))
    said = {step.title: step.latex for step in found.steps}
    assert {"Queries", "Keys", "Values", "Normalise"} <= said.keys() and "Last norm" not in said
    assert said["Scores"] == r"\mathbf{S} = 0.5\,\mathbf{Q}\,{\mathbf{K}}^{\top}"


class Skipping(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 4, 3, 2, 1), nn.ConvTranspose2d(4, 3, 4, 2, 1)

    def forward(self, x):
        bent = torch.relu(self.down(x))
        return torch.sigmoid(self.up(nn.functional.silu(bent) + torch.ones_like(bent)))


def test_what_has_no_module_has_no_letter_below_and_ones_are_a_figure():
    found = run(Skipping(), torch.randn(1, 3, 8, 12), B=0)
    assert [step.latex.partition(" = ")[0] for step in found.steps][:2] == [
        r"\mathbf{Z}_{\text{down}}",
        r"\mathbf{X}",
    ]
    assert any(r"\mathbf{1}_{" in step.latex for step in found.steps)


class TwoLayouts(nn.Module):
    """A matrix that a linear map and another call read, in a loop too."""

    def __init__(self, read, columns=6):
        super().__init__()
        self.layer, self.read = nn.Linear(6, columns, bias=False), read

    def forward(self, x):
        return self.read(self.layer(x), self.layer.weight)


@pytest.mark.parametrize(
    ("read", "columns"),
    [
        (lambda y, w: y.relu() @ w, 4),
        (lambda y, w: y.relu() @ w, 6),
        (lambda y, w: y + w.mean(1), 6),
        (lambda y, w: torch.stack([nn.functional.linear(y[:, t], w) + w[0] for t in range(y.shape[1])], 1), 6),
        (lambda y, w: nn.functional.linear(y, w.T), 6),
    ],
)
def test_one_letter_is_one_matrix(read, columns):
    trace = tracer.trace(TwoLayouts(read, columns).eval(), torch.randn(2, 5, 6), symbols={"B": 0, "T": 1}).check()
    assert {step.verdict for step in trace.steps} == {"verified"} and all(step.checked for step in trace.steps)
    assert {name.transposed for step in trace.steps for name in step.names if name.of == "parameter layer.weight"} == {
        False
    }
    assert r"\mathbf{x}\,{\mathbf{W}" in trace.steps[0].latex


def test_what_is_taken_of_a_product_stands_behind_brackets():
    def forward(x):
        order = x[..., 0].argsort(1)[..., None].expand_as(x)
        return (x @ x.mT @ x).gather(1, order) + torch.arange(x.shape[1]).sin()[:, None]

    steps = tracer.trace(forward, torch.randn(2, 5, 6), symbols={"B": 0, "T": 1}).check().steps
    assert r"\right)\left[" in steps[-1].latex or r"\right)}_" in steps[-1].latex
    assert r"{\left(\sin \left(0, 1, \ldots, T - 1\right)\right)}_{[T \to T\,1]}" in steps[-1].latex
    assert steps[-1].checked == 3 and steps[-1].verdict == "verified"


class ScaledStream(nn.Module):
    """A residual stream that learned numbers scale, with its first state added to each."""

    def __init__(self):
        super().__init__()
        self.lambdas, self.zeros = nn.Parameter(torch.ones(2)), nn.Parameter(torch.zeros(2))
        self.table, self.map = nn.Embedding(10, 4), nn.Linear(4, 4)

    def forward(self, ids):
        first = x = self.table(ids)
        for i in range(2):
            x = self.lambdas[i] * x + self.zeros[i] * first
            x = x + self.map(F.rms_norm(x, (4,)))
        return x


class SharesAtTheRoot(nn.Module):
    """A token is mixed with the one before by shares that are parameters of the module itself."""

    def __init__(self):
        super().__init__()
        self.share, self.rest = nn.Parameter(torch.rand(4)), nn.Parameter(torch.rand(4))

    def forward(self, x):
        before = torch.relu(x).roll(1, 1)
        return torch.tanh(self.share * torch.relu(x) + self.rest * before)


@pytest.mark.parametrize(
    ("net", "x"), [(ScaledStream(), torch.ones(2, 5).long()), (SharesAtTheRoot(), torch.rand(2, 5, 4))]
)
def test_no_letter_says_that_something_is_a_parameter(net, x):
    run = tracer.trace(net.eval(), x, symbols={"B": 0, "T": 1})
    assert not any("parameter" in step.symbol for step in run.steps)
    assert {step.verdict for step in run.steps} == {"verified"}


def test_only_a_photo_is_called_an_image():
    scores, photo = torch.rand(2, 3, 5, 5), torch.rand(2, 3, 8, 8)
    softmax = tracer.trace(lambda scores: torch.softmax(scores, -1), scores)
    product = tracer.trace(lambda q, k: torch.tanh(q @ k.mT), scores, scores.clone())
    assert not any("img" in step.latex for run in (softmax, product) for step in run.steps)
    convolved = tracer.trace(nn.Conv2d(3, 4, 4, 4), photo)
    patches = tracer.trace(nn.Sequential(nn.Unflatten(2, (2, 4)), nn.Flatten(3), nn.Linear(32, 4)), photo)
    assert all(r"\mathbf{X}_{\mathrm{img}}" in run.steps[0].latex for run in (convolved, patches))
