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
    assert said["Scores"] == r"\mathbf{S} = \frac{\mathbf{Q}\,{\mathbf{K}}^{\top}}{2}"


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


class RelativeTables(nn.Module):
    """Scores that queries also have with a table of relative positions, added to those with the keys."""

    def __init__(self):
        super().__init__()
        self.qkv, self.o, self.table = nn.Linear(8, 24), nn.Linear(8, 8), nn.Parameter(torch.randn(5, 8))

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        place = torch.arange(x.shape[1])
        rows = self.table[(place[:, None] - place).clamp(-2, 2) + 2]
        scores = q @ k.transpose(1, 2) / 8**0.5 + torch.einsum("bqd,qkd->bqk", q, rows)
        return self.o(scores.softmax(-1) @ v)


def test_what_a_table_of_positions_adds_to_scores_is_no_key():
    said = {step.title: step.latex for step in run(RelativeTables(), torch.randn(2, 5, 8)).steps}
    assert {"Queries", "Keys", "Values"} <= said.keys()
    assert [r"\mathbf{QKV}" in said[title] for title in ("Queries", "Keys", "Values")] == [True] * 3


class ConvolvedQueries(nn.Module):
    """Patches that are embedded and normalised; their queries come from convolutions over the grid."""

    def __init__(self, D=12):
        super().__init__()
        self.embed, self.norm, self.kv = nn.Linear(48, D), nn.LayerNorm(D), nn.Linear(D, 2 * D)
        self.deep, self.point = nn.Conv2d(D, D, 3, padding=1, groups=D), nn.Conv2d(D, D, 1)

    def forward(self, image):
        B, C, H, W = image.shape
        cut = image.reshape(B, C, H // 4, 4, W // 4, 4).permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        x = self.norm(self.embed(cut))
        grid = x.transpose(1, 2).unflatten(2, (H // 4, W // 4))
        q = self.point(self.deep(grid)).flatten(2).transpose(1, 2)
        k, v = self.kv(x).chunk(2, -1)
        return (q @ k.transpose(1, 2) / 12**0.5).softmax(-1) @ v + x


def test_an_embedding_of_patches_is_no_query():
    steps = tracer.trace(ConvolvedQueries().eval(), torch.randn(2, 3, 16, 8), symbols={"B": 0}).steps
    said = {step.title: step.latex for step in steps}
    assert r"\mathbf{W}_{E}" in said["Embed the patches"] and r"\mathbf{W}_{Q} \star" in said["Queries"]


class Widths(nn.Module):
    """A step in time of a state-space model: its outer product with a matrix is the exponent of the decay."""

    def __init__(self):
        super().__init__()
        self.width, self.a, self.o = nn.Linear(8, 8), nn.Parameter(torch.randn(8, 4)), nn.Linear(8, 8)

    def forward(self, x):
        step = nn.functional.softplus(self.width(x))
        decay = torch.exp(torch.einsum("bld,dn->bldn", step, -torch.exp(self.a)))
        enter, h, read = step[..., None] * x[..., None], x.new_zeros(len(x), 8, 4), []
        for t in range(x.shape[1]):
            h = decay[:, t] * h + enter[:, t]
            read.append(h.sum(-1))
        return x + self.o(torch.stack(read, 1))


def test_an_outer_product_contracts_nothing():
    titles = [step.title for step in run(nn.Sequential(Widths(), Widths()), torch.randn(2, 5, 8)).steps]
    assert titles.count("Step in time") == titles.count("State decay") == titles.count("Outer product") == 2
    assert not {"Expand", "Activate"} & set(titles)


@pytest.mark.parametrize("names", [("weight", "bias"), ("scale", "shift"), ("a_2", "b_2"), ("alpha", "bias")])
def test_the_vectors_of_a_norm_have_its_letters_whatever_their_names(names):
    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            for name in names:
                setattr(self, name, nn.Parameter(torch.randn(8)))

        def forward(self, x):
            mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
            return getattr(self, names[0]) * (x - mean) / torch.sqrt(variance + 1e-5) + getattr(self, names[1])

    (step,) = run(Norm(), torch.randn(2, 5, 8)).steps
    assert step.latex.endswith(r"\odot \boldsymbol{\gamma} + \boldsymbol{\beta}")


class Scales(nn.Module):
    """A residual stream and the first embedding, each times a learned number."""

    def __init__(self):
        super().__init__()
        self.lambdas, self.map = nn.Parameter(torch.rand(2)), nn.Linear(8, 8)

    def forward(self, x):
        return self.map(self.lambdas[0] * x + self.lambdas[1] * x.tanh())


def test_a_learned_number_mixes_no_tokens():
    steps = run(Scales(), torch.randn(2, 5, 8)).steps
    assert not any("parameter" in step.symbol or step.title == "Mix of two" for step in steps)


@pytest.mark.parametrize(
    ("function", "shape", "title", "symbol"),
    [
        (lambda scores: scores.softmax(-1), (2, 3, 5, 5), "Output", r"\mathbf{x}_{\text{scores}}"),
        (lambda x: x.view(*x.shape[:2], 2, 4), (2, 5, 8), "Output", r"\mathbf{x}"),
        (lambda x: x.flatten(2).relu(), (2, 3, 4, 6), "Output", r"\mathbf{X}_{\mathrm{img}}"),
    ],
)
def test_axes_alone_make_no_picture_and_no_patches(function, shape, title, symbol):
    steps = tracer.trace(function, torch.randn(shape), symbols={"B": 0}).steps
    assert steps[-1].title == title and symbol in "".join(step.latex for step in steps)
    assert not {"Cut into patches", "Unpatchify"} & {step.title for step in steps}


class Rotated(nn.Module):
    """Attention with rotary positions from stored tables: of complex numbers, or of cosines and sines."""

    def __init__(self, complex_numbers):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8, bias=False) for _ in range(3))
        angles = torch.outer(torch.arange(16.0), 100 ** (-torch.arange(0, 4, 2) / 4))
        self.complex_numbers = complex_numbers
        self.register_buffer("table", torch.polar(torch.ones_like(angles), angles))
        self.register_buffer("cosines", angles.cos())
        self.register_buffer("sines", angles.sin())

    def rotate(self, x):
        rows, pairs = slice(x.shape[1]), x.unflatten(-1, (2, 2))
        if self.complex_numbers:
            return torch.view_as_real(torch.view_as_complex(pairs) * self.table[rows, None]).flatten(3)
        (a, b), c, s = pairs.unbind(-1), self.cosines[rows, None], self.sines[rows, None]
        return torch.stack([a * c - b * s, a * s + b * c], -1).flatten(3)

    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (2, 4)) for part in (self.q, self.k, self.v))
        q, k, v = (part.transpose(1, 2) for part in (self.rotate(q), self.rotate(k), v))
        return (q @ k.mT / 2).softmax(-1) @ v


@pytest.mark.parametrize("complex_numbers", [False, True])
def test_a_rotation_is_called_one_and_has_a_reason_of_its_own(complex_numbers):
    said = {step.title: step for step in run(Rotated(complex_numbers), torch.randn(2, 5, 8)).steps}
    rotated = said["Rotate queries (RoPE)"]
    assert rotated.why == "Pairs of numbers are rotated, each by an angle of its own."
    assert r"\operatorname{rotate\_every\_two}" in rotated.latex and said["Queries"].why != rotated.why


class Cached(nn.Module):
    """Keys and values that are written into a cache, and read back."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.keys, self.values = torch.zeros(4, 32, 8), torch.zeros(4, 32, 8)

    def forward(self, x):
        B, T, _ = x.shape
        self.keys[:B, :T], self.values[:B, :T] = self.k(x), self.v(x)
        k, v = self.keys[:B, :T], self.values[:B, :T]
        return (self.q(x) @ k.transpose(1, 2) / 8**0.5).softmax(-1) @ v


def test_keys_that_a_cache_gives_back_are_the_keys():
    with torch.no_grad():
        said = {step.title: step.latex for step in run(Cached(), torch.randn(2, 5, 8)).steps}
    assert said["Scores"] == r"\mathbf{S} = \frac{\mathbf{Q}\,{\mathbf{K}}^{\top}}{\sqrt{8}}"
    assert said["Context"] == r"\mathbf{H} = \mathbf{A}\,\mathbf{V}"


MASKS = {
    "tril": ("Causal mask", lambda s, m, ids: s.masked_fill(m.tril[: s.shape[1], : s.shape[1]] == 0, -torch.inf)),
    "bool": ("Causal mask", lambda s, m, ids: s.masked_fill(~m.tril.bool()[: s.shape[1], : s.shape[1]], -torch.inf)),
    "padding": ("Padding mask", lambda s, m, ids: s.masked_fill((ids != 0)[:, None, :] == 0, -1e9)),
    "added": ("Causal mask", lambda s, m, ids: s + torch.full(s.shape[1:], -torch.inf).triu_(1)),
}


@pytest.mark.parametrize("how", MASKS)
def test_what_hides_scores_is_a_mask(how):
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v, self.e = *(nn.Linear(8, 8) for _ in range(3)), nn.Embedding(9, 8)
            self.register_buffer("tril", torch.ones(16, 16).tril())

        def forward(self, ids):
            x = self.e(ids)
            scores = self.q(x) @ self.k(x).transpose(1, 2) / 8**0.5
            return MASKS[how][1](scores, self, ids).softmax(-1) @ self.v(x)

    said = {step.title: step for step in run(Masked(), torch.randint(1, 9, (2, 5))).steps}
    title, _ = MASKS[how]
    assert said[title].symbol == r"\mathbf{M}" and r"\mathbf{M}" in said["Scores"].latex


class Averaged(SelfAttention):
    """Attention of which the mean over the heads, of weights or of scores with ALiBi, weighs whole values."""

    def __init__(self, of_scores):
        super().__init__()
        self.of_scores = of_scores

    def forward(self, x):
        q, k = (part(x).unflatten(-1, (2, 4)).transpose(1, 2) for part in (self.q, self.k))
        scores, places = q @ k.mT / 2, torch.arange(x.shape[1])
        if self.of_scores:
            slopes = 2.0 ** -(torch.arange(1, 3) * 4.0)
            scores = scores - slopes[:, None, None] * (places[:, None] - places).abs()
        weights = scores.mean(1).softmax(-1) if self.of_scores else scores.softmax(-1).mean(1)
        return weights @ self.v(x)


@pytest.mark.parametrize("of_scores", [False, True])
def test_a_mean_over_heads_is_neither_values_nor_scores(of_scores):
    said = {step.title: step.latex for step in run(Averaged(of_scores), torch.randn(2, 5, 8)).steps}
    assert r"\mathbf{x}\," in said["Values"] and "softmax" in said["Attention weights"]
    assert r"\mathbf{Q}\,{\mathbf{K}}^{\top}" in said["Scores"]
    assert not of_scores or r"\mathbf{M}_{\mathrm{ALiBi}}" in said["ALiBi: slopes times positions"]
