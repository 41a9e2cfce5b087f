"""Errata: differences between a note and the run, one sentence each, and the run's own version, measured."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

import tracer
from tracer.lessons.notes import torchvision_block_counts
from tracer.lessons.notes.claims import attention, vision
from tracer.lessons.notes.measurement import STANDARD, Provider, close, tensor_of
from tracer.lessons.notes.statements import BLOCK, Verdict
from tracer.lessons.tokenization import text
from tracer.ops import category, is_layout
from tracer.record import Trace, tolerance
from tracer.spec.spec import Model
from tracer.utils.text import scientific, shape_numbers

# An erratum, and its evidence in a run.


class Evidence(NamedTuple):
    """Run's version, in a sentence with numbers, whether it agrees with the erratum, and how it was measured."""

    sentence: str
    so: bool
    how: str = "measured"


Measure = Callable[[Provider, str], Evidence]


class Slip(NamedTuple):
    """A difference between a note and the run in a sentence, the verdict on the note's words, and its measurement.

    The measurement takes the runs, and the name of the run in which the statement is looked up.
    """

    sentence: str
    verdict: Verdict
    measure: Measure


SLIPS: dict[str, Slip] = {}
"""Errata by name. "sense": the note holds in this sense; "not": the run has something else."""


def slip(sentence: str, verdict: Verdict) -> Callable[[Measure], Measure]:
    """Return a decorator that lists a measurement among the errata, by its name."""

    def add(measure: Measure) -> Measure:
        SLIPS[measure.__name__] = Slip(sentence, verdict, measure)
        return measure

    return add


# Errata of note 003, from torchvision's block.

FLASH_OP = "_scaled_dot_product_flash_attention_for_cpu"
TOLERANCE = tolerance("float32")
DROPOUT_RATE = 0.1
DROPOUT_MODULES = ["self_attention", "dropout", "mlp.2", "mlp.4"]
"""The modules of a block with dropout: on the weights, after attention, and twice in the MLP."""


@slip("Note 003 does not list that positions are added.", "sense")
def positions_missing(run: Provider, of: str) -> Evidence:
    added = [op for op in run("torchvision")[1].ops if "encoder.pos_embedding" in op.parameters]
    evidence = "; ".join(f"op {op.index} `{op.op}` adds `encoder.pos_embedding`, {op.outputs[0].shape}" for op in added)
    return Evidence(evidence, [op.op for op in added] == ["add"])


@slip("Note 003 calls the batch N; here that is B, and N is the number of patches.", "sense")
def batch_letter(run: Provider, of: str) -> Evidence:
    sizes = {symbol.name: symbol.value for symbol in run("torchvision")[1].symbols}
    return Evidence(
        f"in this run the batch B is {sizes['B']}, and the patches N are {sizes['N']}", sizes["B"] != sizes["N"]
    )


@slip("Note 003 lists dropout; it drops numbers in training only, and in evaluation passes its input on.", "sense")
def dropout(run: Provider, of: str) -> Evidence:
    model, trace = run("torchvision")
    with torch.no_grad():
        handed_on = torch.equal(_dropping(model)(*model.inputs(B=2)), model.net(*model.inputs(B=2)))
        trained = tracer.trace(_dropping(model).train(), *model.inputs(B=2), prove=False).ops
    evaluated = [op for op in trace.ops if "dropout" in op.op or "dropout" in op.module]
    dropouts = [op.module.removeprefix(BLOCK) for op in trained if op.op.startswith("bernoulli")]
    evidence = (
        f"in evaluation they leave {len(evaluated)} of the {len(trace.ops)} ops that ran; a copy that drops a share of "
        f"{DROPOUT_RATE} gives {'the very same' if handed_on else 'another'} output there, and in training it draws "
        f"random numbers {len(dropouts)} times: in {', '.join(f'`{module}`' for module in dropouts)}"
    )
    return Evidence(
        evidence,
        handed_on
        and not evaluated
        and not torchvision_block_counts.dispatch_ops("dropout")
        and dropouts == DROPOUT_MODULES,
    )


def _dropping(model: Model) -> nn.Module:
    """Return the model's net in evaluation mode, with dropout in its block: torchvision's own share is 0."""
    net: Any = copy.deepcopy(model.net).eval()
    for module in net.encoder.layers.modules():
        if isinstance(module, nn.Dropout):
            module.p = DROPOUT_RATE
        elif isinstance(module, nn.MultiheadAttention):
            module.dropout = DROPOUT_RATE
    return net


def _inside(trace: Trace) -> list:
    return [op for op in trace.ops if op.module == f"{BLOCK}self_attention"]


@slip("Inside, torchvision's attention has the sequence as its first axis, not the batch as in note 003.", "sense")
def sequence_first(run: Provider, of: str) -> Evidence:
    inside = _inside(run("torchvision")[1])
    first, last = inside[0], inside[-1]
    evidence = (
        f"`{first.op}` gives {first.outputs[0].shape} first, and `{last.op}` gives {last.outputs[0].shape} in the end"
    )
    so = first.op == last.op == "transpose" and first.outputs[0].shape == last.inputs[0].shape == (197, 2, 768)
    return Evidence(evidence, so and not [op for op in inside[1:-1] if op.outputs[0].shape[:2] == (2, 197)])


@slip("torchvision never asks for attention weights, so note 003's standard path does not run by itself.", "sense")
def fused_only(run: Provider, of: str) -> Evidence:
    fused, standard = ({op.op for op in run(name)[1].ops} for name in ("torchvision", STANDARD))
    kernels = [op for op in run("torchvision")[1].ops if op.op == FLASH_OP]
    skips_weights = bool(kernels) and kernels[0].source is not None and "need_weights=False" in kernels[0].source.text
    evidence = "its own code asks with `need_weights=False`: `bmm` and `_softmax` run only when weights are asked for"
    return Evidence(evidence, skips_weights and not {"bmm", "_softmax"} & fused and {"bmm", "_softmax"} <= standard)


@slip("On the fused path heads are merged by permute and view; note 003's contiguous does not run.", "sense")
def merged_by_permute(run: Provider, of: str) -> Evidence:
    after = {}
    for name in ("torchvision", STANDARD):
        inside = [op.op for op in _inside(run(name)[1])]
        start = max(i for i, op in enumerate(inside) if op in (FLASH_OP, "bmm"))
        after[name] = inside[start + 1 : inside.index("addmm")]
    evidence = "; ".join(
        f"{way} path: {', '.join(ops)}" for way, ops in zip(("fused", "standard"), after.values(), strict=True)
    )
    return Evidence(evidence, "clone" not in after["torchvision"] and "clone" in after[STANDARD])


def _steps_of(trace: Trace, name: str) -> list[list[str]]:
    """Return the computing primitives of each op of that name."""
    opened = [trace.decompositions[op.index] for op in trace.ops if op.op == name]
    return [[part.name for part in decomposition.primitives if not is_layout(part.name)] for decomposition in opened]


@slip("Note 003 decomposes layer norm into nine steps; PyTorch's decomposition has seven.", "sense")
def seven_steps(run: Provider, of: str) -> Evidence:
    steps = _steps_of(run("torchvision")[1], "native_layer_norm")
    evidence = f"each of {len(steps)} norms: {', '.join(steps[0])}"
    return Evidence(evidence, all(step == steps[0] and len(step) == 7 for step in steps))


@slip("The view of note 003, without a transpose before it, would mix images.", "sense")
def view_mixes(run: Provider, of: str) -> Evidence:
    N, S, h, d_k = 2, 197, 12, 64
    image = torch.arange(N).view(N, 1, 1).expand(N, S, h * d_k).contiguous()
    wrong = image.view(S, N * h, d_k).transpose(0, 1)[:h]
    right = image.transpose(0, 1).contiguous().view(S, N * h, d_k).transpose(0, 1)[:h]
    evidence = (
        f"{100 * float((wrong == 1).float().mean()):.3g} % of the numbers in the first image's heads "
        "would be of the second "
        f"image; with the transpose that ran it is {100 * float((right == 1).float().mean()):g} %"
    )
    return Evidence(
        evidence,
        bool((wrong == 1).any()) and not (right == 1).any() and _inside(run("torchvision")[1])[0].op == "transpose",
    )


@slip("Note 003 decomposes GELU by tanh; torchvision's is the exact one, and none of those steps run.", "not")
def exact_gelu(run: Provider, of: str) -> Evidence:
    trace = run("torchvision")[1]
    hidden, active = (tensor_of(trace, f"{BLOCK}mlp.{name}").double() for name in ("hidden", "activation"))
    by_erf = float((active - hidden * (1 + (hidden / math.sqrt(2)).erf()) / 2).abs().max())
    by_tanh = float((active - nn.functional.gelu(hidden, approximate="tanh")).abs().max())
    (steps,) = _steps_of(trace, "gelu")
    evidence = f"it ran {', '.join(steps)}; by erf it is off by {scientific(by_erf)}, by tanh by {scientific(by_tanh)}"
    return Evidence(evidence, by_erf < TOLERANCE < by_tanh and "tanh" not in steps)


def _of(run: Provider, names: tuple[str, ...], path: str = STANDARD) -> Counter[str]:
    """Return how often some primitives ran in a block."""
    return Counter(name for name in torchvision_block_counts.primitives(run(path)[1]) if name in names)


def _list_counts(op_counts: Counter[str]) -> str:
    return ", ".join(f"`{name}` × {count}" for name, count in op_counts.most_common())


@slip("Note 003 counts five matrix products per block; on the standard path there are six.", "sense")
def six_products(run: Provider, of: str) -> Evidence:
    products = {path: _of(run, ("mm", "bmm"), path) for path in ("torchvision", STANDARD)}
    same = all(counter == {"mm": 4, "bmm": 2} for counter in products.values())
    return Evidence(
        f"opened, a block multiplies matrices {products[STANDARD].total()} times: {_list_counts(products[STANDARD])}",
        same,
    )


@slip("Note 003 counts about 20 binary ops per block; 29 run, six of which only multiply by 1.", "not")
def more_binary(run: Provider, of: str) -> Evidence:
    trace, op_counts = run(STANDARD)[1], _of(run, ("mul", "add", "sub", "div"))
    linear = [op for op in torchvision_block_counts.block(trace.ops) if op.op == "addmm"]
    ones = sum(part.name == "mul" for op in linear for part in trace.decompositions[op.index].primitives)
    evidence = (
        f"{op_counts.total()}: {_list_counts(op_counts)}; {ones} of them multiply by 1 in the {len(linear)} `addmm`"
    )
    return Evidence(evidence, op_counts.total() == 29 and ones == 6)


@slip("Note 003 counts about ten unary ops per block; four run: rsqrt twice, erf, and exp in softmax.", "not")
def four_unary(run: Provider, of: str) -> Evidence:
    op_counts = _of(run, ("pow", "rsqrt", "tanh", "erf", "exp", "sqrt"))
    return Evidence(f"{op_counts.total()}: {_list_counts(op_counts)}", op_counts == {"rsqrt": 2, "erf": 1, "exp": 1})


@slip("Note 003 lists pow, GELU and softmax under unary ops; of these, only GELU is one.", "not")
def not_unary(run: Provider, of: str) -> Evidence:
    (gelu,) = _steps_of(run("torchvision")[1], "gelu")
    scores = torch.zeros(8)
    moved = int((scores.index_fill(0, torch.tensor([3]), 1.0).softmax(0) != scores.softmax(0)).sum())
    evidence = (
        f"change one of 8 scores, and softmax changes {moved} weights; `gelu` opens into {len(gelu)} "
        "primitives; `pow` takes "
        f"a base and an exponent. Here they count as {category('_softmax')}, {category('gelu')} and {category('pow')}"
    )
    return Evidence(
        evidence, moved == 8 and category("_softmax") == "Fused" and category("pow") == "Elementwise Binary"
    )


@slip("Note 003 counts four means per block, for three norms; two norms run, with one var_mean each.", "not")
def four_means(run: Provider, of: str) -> Evidence:
    trace = run("torchvision")[1]
    norms = sum(op.op == "native_layer_norm" for op in torchvision_block_counts.block(trace.ops))
    op_counts = _of(run, ("mean", "var_mean"), "torchvision")
    return Evidence(
        f"{norms} norms ran in a block, and in them {_list_counts(op_counts)}",
        norms == 2 and op_counts == {"var_mean": 2},
    )


@slip("baddbmm, chunk, split, pow and tanh of note 003 don't run; div runs inside softmax alone.", "not")
def never_run(run: Provider, of: str) -> Evidence:
    ran, divided = torchvision_block_counts.ran_at_all(run), set()
    for name in ("torchvision", STANDARD):
        trace = run(name)[1]
        divided |= {
            trace.ops[decomposition.op].op
            for decomposition in trace.decompositions
            if "div" in {p.name for p in decomposition.primitives}
        }
    never = {name for name in torchvision_block_counts.CALLS if not torchvision_block_counts.dispatch_ops(name) <= ran}
    evidence = (
        f"of the two paths' ops and primitives none is of {', '.join(sorted(never))}; `div` is in "
        f"{', '.join(sorted(divided))}"
    )
    return Evidence(evidence, never == torchvision_block_counts.ABSENT_OPS and divided == {FLASH_OP, "_softmax"})


@slip("Note 003 counts three layer norms per block; there are two, 3,072 parameters, and one at the end.", "not")
def two_norms(run: Provider, of: str) -> Evidence:
    norms = [
        name
        for name, module in torchvision_block_counts._whole().named_modules()
        if isinstance(module, nn.LayerNorm) and BLOCK in f"{name}."
    ]
    count = torchvision_block_counts.parameters(f"{BLOCK}ln_")
    return Evidence(f"{len(norms)} norms in the block, {count:,} parameters", len(norms) == 2 and count == 3072)


# Errata of notes 000 and 004.

TEXT = "reverse this one"
"""The sentence that is tokenized."""


@slip("Note 000 counts token ids from 1 to V; in the run they go from 0 to V\u00a0−\u00a01.", "not")
def ids(run: Provider, of: str) -> Evidence:
    model, _ = run(of)
    V, others = model.net.tokens.num_embeddings, tuple(model.inputs())[:-1]
    with torch.no_grad():
        model.net(*others, torch.tensor([[V - 1]]))
        try:
            model.net(*others, torch.tensor([[V]]))
        except IndexError:
            evidence = f"the table E of {model.name} has rows 0 to {V - 1}: id {V - 1} runs, and id {V} is refused"
            return Evidence(evidence, True)
    return Evidence(f"on {model.name}, the ids {V - 1} and {V} both run", False)


@slip(
    "Note 000 has a position table of T rows; that of the run has T_max rows, of which it takes the first T.", "sense"
)
def positions(run: Provider, of: str) -> Evidence:
    model, trace = run(of)
    text = "text_position" in {step.id for step in trace.steps}
    table = model.net.text_positions if text else model.net.positions
    before, after = ("words", "text_position") if text else ("embedding", "position")
    rows, T = len(table), trace.step(after).shape[1]
    added = tensor_of(trace, after) - tensor_of(trace, before)
    off = float((added - table[:T]).detach().abs().max())
    return Evidence(
        f"the table of {model.name} has {rows} rows; the first {T} were added, to within {scientific(off)}",
        rows > T and off < 1e-5,
    )


@slip("Note 000 uses one letter for two things: S, M, H, P and K.", "sense")
def letters(run: Provider, of: str) -> Evidence:
    model, trace = run(of)
    symbols = {step.id: step.symbol for step in trace.steps}
    mask, mlp = symbols["mask"], symbols["block1.mlp.output"]
    evidence = (
        f"on {model.name}, the mask is ${mask}$ and the MLP's output ${mlp}$; {len(set(symbols.values()))} "
        f"different symbols for {len(symbols)} steps"
    )
    return Evidence(evidence, mask != mlp and len(set(symbols.values())) == len(symbols))


@slip("Note 000's summary leaves out b_vocab, which its section 2 has and the run adds.", "sense")
def b_vocab(run: Provider, of: str) -> Evidence:
    model, trace = run(of)
    bias, latex = model.net.head.bias, trace.step("logits").latex
    read = any("head.bias" in op.parameters for op in trace.ops)
    evidence = f"the bias of the head of {model.name} has shape {shape_numbers(tuple(bias.shape))}"
    return Evidence(evidence, read and r"\mathbf{b}_{\mathrm{vocab}}" in latex)


@slip("Note 000 does not say that under the causal mask a patch can't see later patches either.", "sense")
def patches_causal(run: Provider, of: str) -> Evidence:
    trace = run("vit-text")[1]
    N = next(segment.stop for segment in trace.segments if segment.name == "image")
    weights = trace.attention(0)
    later, first = float(weights[..., :N, :N].triu(1).max()), float(weights[..., 0, 0].min())
    evidence = f"the largest weight of a patch on a later patch is {later:g}; the first patch gives itself {first:g}"
    return Evidence(evidence, later == 0 and first == 1)


@slip(
    "Text-only selection drops the last image position, so the first word is predicted only from a begin token.",
    "sense",
)
def first_word(run: Provider, of: str) -> Evidence:
    trace = run("vit-text")[1]
    before, read = trace.step("sequence").shape[1], trace.step("text").shape[1]
    same = torch.equal(tensor_of(trace, "text"), tensor_of(trace, "norm")[:, before - read :])
    evidence = (
        f"{before} tokens went in, the last {read} are read; the word after the picture is predicted at the begin token"
    )
    return Evidence(evidence, same and before > read)


@slip('Note 000 says "add & norm" where nothing is normalised: the step only adds.', "not")
def add_and_norm(run: Provider, of: str) -> Evidence:
    trace = run("vit-text")[1]
    ran = [trace.ops[i].op for i in trace.step("block1.attention.residual").ops]
    return Evidence(f"the ops of this step: {', '.join(ran)}", ran == ["add"])


@slip("Note 000 calls a table of N rows a 2D position; a 2D position consists of a row and a column.", "sense")
def two_dimensions(run: Provider, of: str) -> Evidence:
    model, trace = run("vit-text")
    sizes = {symbol.name: symbol.value for symbol in trace.symbols}
    rows, grid = len(model.net.image_positions), (sizes["H"] // sizes["P"], sizes["W"] // sizes["P"])
    evidence = (
        f"the table has {rows} rows for a grid of {grid[0]} × {grid[1]}; of a row and a column each it "
        f"would have {sum(grid)}"
    )
    return Evidence(evidence, rows == math.prod(grid))


@slip("Note 004 counts heads up to H, which it does not define.", "sense")
def heads_undefined(run: Provider, of: str) -> Evidence:
    h = run("transformer")[1].step("block1.attention.query").shape[1]
    return Evidence(f"h = {h} heads ran", h == run("transformer")[0].sizes["h"])


@slip(
    "Note 004's heading says single-head, its contents say multi-head: each head runs the single-head formula.", "sense"
)
def single_multi(run: Provider, of: str) -> Evidence:
    measured = attention.heads_are_columns(*run("transformer"))
    return Evidence(f"the single head's formula, for each of the heads: {measured.text}", measured.verdict == "holds")


@slip("The 2017 paper multiplies embeddings by √d_model; note 004 and the run do not.", "sense")
def no_root(run: Provider, of: str) -> Evidence:
    model, trace = run("transformer")
    embedded, E = tensor_of(trace, "embedding")[0], model.net.tokens.weight
    same = int((embedded[:, None] == E).all(-1).any(-1).sum())
    evidence = (
        f"{same} of {len(embedded)} embedded tokens are rows of E bit for bit; √d_model would be "
        f"{math.sqrt(E.shape[1]):.3g}"
    )
    return Evidence(evidence, same == len(embedded))


@slip("Note 004 adds every kind of position to X; relative ones act inside the scores.", "sense")
def relative_not_added(run: Provider, of: str) -> Evidence:
    steps = [step.id for step in run("transformer-relative")[1].steps]
    evidence = "no step adds positions to the tokens; `block1.attention.relative` adds to the scores"
    return Evidence(evidence, "position" not in steps and "block1.attention.relative" in steps)


@slip("Note 004 adds log M of a mask of 0 and -∞, which is -∞ or NaN everywhere; the run adds M.", "not")
def log_mask(run: Provider, of: str) -> Evidence:
    mask = torch.full((3, 3), -math.inf).triu(1)
    finite = int(mask.log().isfinite().sum())
    weights = run("transformer-causal")[1].attention(0)
    off = float((weights.sum(-1) - 1).abs().max())
    evidence = (
        f"log of a mask of 0 and -∞ has {finite} finite cells of 9; with the mask itself rows sum to 1 "
        f"within {scientific(off)}"
    )
    return Evidence(evidence, finite == 0 and float(weights.triu(1).max()) == 0 and close(off))


@slip("Note 004 calls j a column of K; keys are rows of K, and columns of Kᵀ and of S.", "not")
def key_rows(run: Provider, of: str) -> Evidence:
    trace = run("transformer")[1]
    k, s = trace.step("block1.attention.key"), trace.step("block1.attention.scores")
    evidence = (
        f"K is {shape_numbers(k.shape)}, a row for each of {k.shape[-2]} tokens; in S, "
        f"{shape_numbers(s.shape)}, they are columns"
    )
    return Evidence(evidence, k.symbolic[-2] == s.symbolic[-1] == "T")


@slip("GPT-2's tokenizer merges bytes into pieces; it does not have one id for each byte, as note 004 says.", "not")
def byte_pairs(run: Provider, of: str) -> Evidence:
    speller = text.shipped_tokenizers()["bpe"]
    pieces = speller.encode(TEXT)
    longer = sum(len(piece.raw or b"") > 1 for piece in pieces)
    evidence = (
        f"byte-level BPE, as GPT-2 has it, cuts the {len(TEXT.encode())} bytes of “{TEXT}” to "
        f"{len(pieces)} pieces, {longer} "
        f"of them of more than one byte; of its {len(speller.vocabulary):,} ids 256 are bytes. GPT-2 "
        "has 50,257: 256 bytes, "
        "50,000 merges and the end of a text (Radford et al. 2019, section 2.2)"
    )
    return Evidence(evidence, longer > 0 and len(speller.vocabulary) > 256)


@slip("Two references of note 004 name the wrong authors for the papers that they link to.", "sense")
def references(run: Provider, of: str) -> Evidence:
    return from_papers("arXiv 1508.06615 is by Kim et al., 2016; P96-1041 is by Chen and Goodman, 1996")


@slip("TimeSformer cuts each frame into 2D patches; spatio-temporal ones are the tubelets of ViViT.", "not")
def tubelets(run: Provider, of: str) -> Evidence:
    return from_papers(
        "Bertasius et al. 2021, section 3: patches of P × P from each frame; Arnab et al. 2021, section 3.2: tubelets"
    )


@slip("TS2Vec gives each time step a vector and no id, so it is not a tokenizer in the sense of section 1.", "sense")
def ts2vec(run: Provider, of: str) -> Evidence:
    return from_papers("Yue et al. 2022, section 2: a representation of every timestamp, learned by contrast")


def from_papers(evidence: str) -> Evidence:
    """Return what papers say, which no run measures."""
    return Evidence(evidence, True, "the papers")


# Errata of notes 001 and 002.


@slip("Note 001 divides by σ + ε; the run divides by √(σ² + ε), with the biased variance.", "sense")
def epsilon(run: Provider, of: str) -> Evidence:
    model, trace = run("vit-note")
    x, norm = tensor_of(trace, "position").double(), model.net.block1.norm1
    ran, gamma, beta = tensor_of(trace, "block1.norm1").double(), norm.weight.detach(), norm.bias.detach()
    centred = x - x.mean(-1, keepdim=True)

    def off(scale: torch.Tensor) -> float:
        normalised = centred / scale * gamma + beta
        return float((normalised - ran).abs().max() / ran.abs().max())

    biased, unbiased = x.var(-1, unbiased=False, keepdim=True), x.var(-1, unbiased=True, keepdim=True)
    root, plain, other_error = (
        off((biased + norm.eps).sqrt()),
        off(biased.sqrt() + norm.eps),
        off((unbiased + norm.eps).sqrt()),
    )
    evidence = (
        f"√(σ² + ε) gives what ran to within {scientific(root)}, σ + ε to within {scientific(plain)}, "
        "the unbiased variance "
        f"to within {scientific(other_error)}; ε is {norm.eps:g}"
    )
    return Evidence(evidence, root < TOLERANCE < other_error)


@slip("Note 001 calls attention permutation-invariant; it is equivariant.", "not")
def invariant(run: Provider, of: str) -> Evidence:
    measured = attention.order(*run("vit"))
    return Evidence(measured.text, measured.verdict == "not")


@slip("With one shared projection the scores are symmetric, as note 001 says; the weights are not.", "sense")
def symmetric(run: Provider, of: str) -> Evidence:
    measured = attention.symmetric(*run("vit"))
    return Evidence(measured.text, measured.verdict == "sense")


@slip("Note 001's patches are channels-last; a strided convolution's weights must be reordered.", "sense")
def channels_last(run: Provider, of: str) -> Evidence:
    plain, reordered = (
        vision.strided_error(*run("vit-note"), last=False),
        vision.strided_error(*run("vit-note"), last=True),
    )
    evidence = f"as a convolution: with the weights as stored it is off by {100 * plain:.3g} %, reordered by "
    f"{scientific(reordered)}"
    return Evidence(evidence, reordered < TOLERANCE < plain)


@slip("Note 001 has no norm after the last block; Dosovitskiy et al. 2021 have one.", "sense")
def no_last_norm(run: Provider, of: str) -> Evidence:
    ran = sorted({op.module for op in run("vit-note")[1].ops if op.op == "native_layer_norm"})
    return Evidence(f"the norms that ran: {', '.join(ran)}", ran == ["block1.norm1", "block1.norm2"])


@slip("Note 001 looks for deviating representations; the anomaly map here compares pixels.", "sense")
def anomaly_in_pixels(run: Provider, of: str) -> Evidence:
    trace = run("mae")[1]
    step, width = trace.step("prediction"), trace.step("encoder.norm").shape[-1]
    evidence = f"compared are {step.shape[-1]} pixel values of a patch, not the {width} numbers of its representation"
    return Evidence(evidence, step.symbolic[-1] == "C*P**2")


@slip('Note 002 says "higher-dimensional"; in B/16 the projection goes from 768 to 768.', "sense")
def higher(run: Provider, of: str) -> Evidence:
    out, into = run("vit-note")[0].net.embedding.weight.shape
    return Evidence(f"with the sizes of B/16 the matrix goes from {into} to {out}", into == out)


@slip("Note 002 says that each column is a query; each row is.", "not")
def columns(run: Provider, of: str) -> Evidence:
    trace = run("vit")[1]
    q, k = tensor_of(trace, "block1.attention.query"), tensor_of(trace, "block1.attention.key")
    at = q.shape[2] // 2
    row = (q[:, :, at, None] @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)[:, :, 0]
    off = float((row - trace.attention(0, query=at)).abs().max())
    words = f"from row {at + 1} of Q alone comes row {at + 1} of the weights, to within {scientific(off)}"
    return Evidence(words, off < TOLERANCE)


@slip("Note 002 writes D_h = D/3; it is D/h.", "not")
def thirds(run: Provider, of: str) -> Evidence:
    model, trace = run("vit")
    D, h, d_k = model.sizes["D"], model.sizes["h"], trace.step("block1.attention.query").shape[-1]
    return Evidence(f"D = {D}, h = {h}: a head is {d_k} wide, and D/3 is {D / 3:.4g}", d_k == D // h and d_k * 3 != D)


@slip("Note 002 leaves out the norm after the last block, which runs.", "not")
def last_norm_left_out(run: Provider, of: str) -> Evidence:
    model, trace = run("vit")
    last = max(step.layer for step in trace.steps if step.layer is not None) + 1
    with torch.no_grad():
        without = model.net.head(tensor_of(trace, f"block{last}.mlp.residual")[:, 0])
    ran = tensor_of(trace, "logits")
    off = float((without - ran).abs().max() / ran.abs().max())
    return Evidence(
        f"without it, the logits would be off by {100 * off:.3g} %", off > TOLERANCE and bool(trace.step("norm").ops)
    )


@slip("Note 002's example has an MLP as head; here it is one matrix.", "sense")
def linear_head(run: Provider, of: str) -> Evidence:
    model, trace = run("vit")
    ops = [trace.ops[i].op for i in trace.step("logits").ops]
    return Evidence(
        f"the head is one matrix, {shape_numbers(tuple(model.net.head.weight.shape))}; it ran {', '.join(ops)}",
        "addmm" in ops,
    )


@slip("Note 001 speaks of upsampling; here no value is interpolated.", "sense")
def no_upsampling(run: Provider, of: str) -> Evidence:
    trace = run(of)[1]
    cells, pixels = tensor_of(trace, "cells").flatten(), tensor_of(trace, "logits").flatten()
    same = torch.equal(cells.sort().values, pixels.sort().values)
    evidence = (
        f"the {len(pixels):,} scores of the pixels are the decoder's {len(cells):,} numbers, moved and not interpolated"
    )
    return Evidence(evidence, same)
