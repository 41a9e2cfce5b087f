"""Note 003 against torchvision's own vit_b_16: where its tables and the runs differ, and both attention paths."""

import math
from collections import Counter

import pytest
import torch

import tracer
from pages.sections.note_statements import NoteResults, StatementCard
from tests.app.test_app import visit
from tests.support.note_runs import run, same_blocks, whole
from tests.support.sweeping import cases
from tracer.lessons.notes import errata, lookup
from tracer.lessons.notes import torchvision_block_counts as counted
from tracer.lessons.notes.measurement import STANDARD
from tracer.lessons.notes.statements import rows
from tracer.lessons.notes.torchvision_block_counts import ABSENT_OPS, CALLS, block, dispatch_ops, parameters, primitives
from tracer.ops import COMPUTING, category, is_layout
from tracer.record import costs
from tracer.tracing import attention_backends
from tracer.utils.cache import Cache

ATTENTION = "encoder.layers.encoder_layer_0.self_attention"
FLASH_OP = "_scaled_dot_product_flash_attention_for_cpu"


def decompositions(trace, name):
    """Return the decompositions of the ops of that name."""
    return [trace.decompositions[op.index] for op in trace.ops if op.op == name]


@pytest.fixture(scope="module")
def comparison():
    """First attention of torchvision's block, on its input at batch 2, on every path."""
    model = run("torchvision")[0]
    return attention_backends.compare(model.net, *model.inputs(B=2))


def way(comparison, name):
    return next(way for way in comparison.ways if way.name == name)


@pytest.mark.sweep
def test_the_whole_model_is_twelve_such_blocks():
    assert same_blocks()
    assert parameters("") == 86_567_656


@pytest.mark.parametrize("name", cases(("torchvision", STANDARD), ()))
def test_every_primitive_gives_what_its_op_gave(name):
    errors = [one.error for one in run(name)[1].decompositions if one.error is not None]
    assert len(errors) > 8 and max(errors) <= 1e-5


@pytest.mark.sweep
def test_the_fused_kernel_opens_into_the_standard_path():
    """Its products, scale and softmax have the shapes that note 003 gives the standard path."""
    (one,) = decompositions(run("torchvision")[1], FLASH_OP)
    assert one.error <= 1e-5
    made = [(part.name, part.outputs[0].shape) for part in one.primitives if not is_layout(part.name)]
    assert [shape for name, shape in made if name == "bmm"] == [(24, 197, 197), (24, 197, 64)]
    assert made[0] == ("mul", (2, 12, 197, 64))
    softmax = [part.name for part in one.primitives if part.within.endswith("/_softmax")]
    assert softmax == ["amax", "sub", "exp", "sum", "div"]


def test_both_paths_and_the_fast_one_agree(comparison):
    assert [way.name for way in comparison.ways] == ["standard", "fused", "fast with weights", "fast"]
    assert 0 < comparison.outputs[0][1] <= 1e-5 and max(map(max, comparison.outputs)) <= 1e-5
    assert max(error for line in comparison.weights for error in line if error is not None) <= 1e-5
    assert comparison.weights[0][1] is not None and comparison.weights[0][3] is None


# Slips: what the run has instead.


def test_slip_sequence_first(comparison):
    """Between the two transposes the sequence is in front; on the fast path the batch stays there."""
    inside = [op for op in run("torchvision")[1].ops if op.module == ATTENTION]
    assert [op.op for op in (inside[0], inside[-1])] == ["transpose", "transpose"]
    assert inside[0].outputs[0].shape == inside[-1].inputs[0].shape == (197, 2, 768)
    assert not [op for op in inside[1:-1] if op.outputs[0].shape[:2] == (2, 197)]
    assert [op.outputs[0].shape for op in way(comparison, "fast").ops] == [(2, 197, 768)]


def test_slip_fused_only():
    trace = run("torchvision")[1]
    (kernel,) = [op for op in trace.ops if op.op == FLASH_OP]
    assert "need_weights=False" in kernel.source.text
    assert not {"bmm", "_softmax"} & {op.op for op in trace.ops}
    assert {"bmm", "_softmax"} <= {op.op for op in run(STANDARD)[1].ops}


def test_slip_merged_by_permute():
    after = {}
    for name in ("torchvision", STANDARD):
        inside = [op.op for op in run(name)[1].ops if op.module == ATTENTION]
        start = max(i for i, op in enumerate(inside) if op in (FLASH_OP, "bmm"))
        after[name] = inside[start + 1 : inside.index("addmm")]
    assert after == {
        "torchvision": ["permute", "view", "t"],
        STANDARD: ["transpose", "clone", "_unsafe_view", "t"],
    }


def test_slip_positions_missing():
    (added,) = [op for op in run("torchvision")[1].ops if "encoder.pos_embedding" in op.parameters]
    assert added.op == "add" and added.outputs[0].shape == (2, 197, 768)


def test_slip_dropout():
    """In evaluation none of them leaves an op; in training each draws, where the note lists it."""
    trace = run("torchvision")[1]
    assert not [op for op in trace.ops if "dropout" in op.op or "dropout" in op.module] and not dispatch_ops("dropout")
    slip = errata.SLIPS["dropout"]
    found = slip.measure(run, "torchvision")
    assert slip.verdict == "sense" and found.so
    assert "leave 0 of the 54 ops" in found.sentence and "the very same output" in found.sentence
    assert "draws random numbers 4 times: in `self_attention`, `dropout`, `mlp.2`, `mlp.4`" in found.sentence
    net = errata._dropping(run("torchvision")[0])
    assert not net.training and net.get_submodule(ATTENTION).dropout == 0.1


def test_slip_seven_steps():
    """The second norm first lays out anew what it is given."""
    norms = decompositions(run("torchvision")[1], "native_layer_norm")
    assert len(norms) == 3
    for one in norms:
        steps = [part.name for part in one.primitives if not is_layout(part.name)]
        assert steps == ["var_mean", "add", "rsqrt", "sub", "mul", "mul", "add"]


def test_slip_view_mixes():
    """Read as (197, N·12, 64) without a transpose, the second image's numbers are in the first image's heads."""
    N, S, h, d_k = 2, 197, 12, 64
    image = torch.arange(N).view(N, 1, 1).expand(N, S, h * d_k).contiguous()
    wrong = image.view(S, N * h, d_k).transpose(0, 1)  # [N·h, S, d_k]
    right = image.transpose(0, 1).contiguous().view(S, N * h, d_k).transpose(0, 1)
    assert len(wrong[:h].unique()) == 2 and right[:h].unique().tolist() == [0]
    first = next(op for op in run("torchvision")[1].ops if op.module == ATTENTION)
    assert first.op == "transpose" and first.outputs[0].shape == (197, N, 768)


def test_slip_exact_gelu():
    trace = run("torchvision")[1]
    (one,) = decompositions(trace, "gelu")
    assert [part.name for part in one.primitives] == ["mul", "mul", "erf", "add", "mul"]
    hidden, active = (
        trace.value(f"encoder.layers.encoder_layer_0.mlp.{name}").double() for name in ("hidden", "activation")
    )
    exact = hidden * (1 + (hidden / math.sqrt(2)).erf()) / 2
    assert (active - exact).abs().max() < 1e-6
    assert (active - torch.nn.functional.gelu(hidden, approximate="tanh")).abs().max() > 1e-5


def test_slip_six_products():
    for name in ("torchvision", STANDARD):
        assert sorted(one for one in primitives(run(name)[1]) if one in ("mm", "bmm")) == ["bmm"] * 2 + ["mm"] * 4


def test_slip_more_binary():
    """Two of each `addmm` multiply by its α and β, which are 1."""
    trace = run(STANDARD)[1]
    binary = Counter(primitives(trace))
    assert {name: binary[name] for name in ("mul", "add", "sub", "div")} == {"mul": 14, "add": 11, "sub": 3, "div": 1}
    linear = [one for op in block(trace.ops) if op.op == "addmm" for one in trace.decompositions[op.index].primitives]
    assert Counter(part.name for part in linear) == {"mm": 3, "mul": 6, "add": 3}


def test_slip_four_unary():
    unary = [name for name in primitives(run(STANDARD)[1]) if name in ("pow", "rsqrt", "tanh", "erf", "exp", "sqrt")]
    assert sorted(unary) == ["erf", "exp", "rsqrt", "rsqrt"]


def test_slip_four_means():
    trace = run("torchvision")[1]
    assert [op.op for op in block(trace.ops)].count("native_layer_norm") == 2
    assert primitives(trace).count("var_mean") == 2 and "mean" not in primitives(trace)


def test_slip_never_run():
    assert {name for name in CALLS if not dispatch_ops(name) <= counted.ran_at_all(run)} == ABSENT_OPS
    for name in ("torchvision", STANDARD):
        trace = run(name)[1]
        divided = {trace.ops[one.op].op for one in trace.decompositions if "div" in {p.name for p in one.primitives}}
        assert divided == {FLASH_OP if name == "torchvision" else "_softmax"}


def test_slip_batch_letter():
    sizes = {size.name: size.value for size in run("torchvision")[1].symbols}
    assert (sizes["B"], sizes["N"]) == (2, 196)


def test_slip_not_unary():
    """Each of softmax's values depends on the whole row; of two arguments `pow` takes a power."""
    row = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    row.softmax(0)[0].backward()
    assert (row.grad != 0).all()
    assert [category(name) for name in ("_softmax", "pow", "gelu")] == [
        "Fused",
        "Elementwise Binary",
        "Elementwise Unary",
    ]


def test_slip_two_norms():
    assert parameters("encoder.layers.encoder_layer_0.ln_") == 2 * 2 * 768 == 3072
    assert parameters("encoder.layers.encoder_layer_0.") == 3072 + 2_362_368 + 4_722_432


def test_what_is_counted_is_what_the_note_says_or_differs_as_told():
    found = {name: count(run) for name, count in counted.COUNT_FUNCTIONS.items()}
    assert all(one.holds for one in found.values()), found
    assert "12 blocks" in found["layers"].sentence and "2,362,368" in found["attention"].sentence
    kinds = counted.kinds(run)
    assert {kind: (names.total(), counted.STATED_COUNTS[kind]) for kind, names in kinds.items()} == {
        "Matrix Multiply": (6, "5"),
        "Elementwise Binary": (29, "~20"),
        "Elementwise Unary": (4, "~10"),
        "Reduction": (5, "4"),
    }


@pytest.mark.sweep
def test_a_block_of_any_model_is_counted_as_the_whole_run_opens_it():
    """By a run that opens every op: those of a block's module, layouts and all."""
    model, trace = run("nanogpt")
    whole = model.trace(B=3, T=7, prove=False, primitives=True)
    for layer in counted.layers(trace):
        ops = {op.index for op in whole.ops if op.module.split(".")[0] == f"block{layer + 1}"}
        parts = [one.name for made in whole.decompositions if made.op in ops for one in made.primitives]
        found = counted.kinds_of(model, trace, layer, {"B": 3, "T": 7})
        assert found == counted.by_kind(parts) and found["Matrix Multiply"].total() == 8
    assert counted.layers(trace) == [0, 1]


def test_the_page_counts_a_block_of_the_model_that_is_chosen(monkeypatch):
    made = NoteResults((StatementCard(rows("003")[0]),), "", counted.by_kind(["mm", "mm", "add"]), {})
    monkeypatch.setattr("pages.sections.note_statements._read", lambda *part: made)
    monkeypatch.setattr("pages.jobs.run_cache._results", {"noted": Cache(4)})
    table = visit("notes", note="003", of="transformer", block="1").table[0].value
    assert list(table.columns) == ["kind", "the note", "its block", "which", "block 1 of transformer", "which of these"]
    assert list(table["the note"]) == ["5", "~20", "~10", "4"] and list(table["its block"]) == ["2", "1", "0", "0"]
    assert list(table["block 1 of transformer"]) == ["8", "23", "3", "4"]


def test_flops_of_the_whole_model():
    """17.56 billion multiply-adds for one image: 35.13 billion operations."""
    assert round(sum(op.flops for op in whole()) / 2 / 1e9, 2) == 35.13


def test_categories_and_counts_of_a_block():
    """The note's table of categories, counted on the standard path, of which it speaks.

    Five reductions: a `var_mean` in each norm, the largest and the sum in softmax, and the mean over heads of the
    weights that were asked for."""
    trace = run(STANDARD)[1]
    found = Counter(category(name) for name in primitives(trace))
    assert {name: found[name] for name in COMPUTING if found[name]} == {
        "Matrix Multiply": 6,
        "Elementwise Binary": 29,
        "Elementwise Unary": 4,
        "Reduction": 5,
    }
    ran = {category(op.op) for op in trace.ops}
    assert {"Reshape", "Transpose", "Memory", "Indexing"} <= ran
    said = {"Reshape": ("view", "reshape", "unflatten"), "Transpose": ("transpose", "permute")}
    said |= {"Memory": ("contiguous", "expand", "cat"), "Indexing": ("squeeze", "unsqueeze", "index")}
    for name, calls in said.items():
        assert {category(op) for call in calls for op in dispatch_ops(call)} == {name}


def test_a_small_one_of_other_sizes_has_the_same_ops():
    """The op list does not depend on the sizes."""
    small = tracer.load("torchvision:vit_b_16", H=32, P=8, D=24, h=4, d_ff=40, L=1, K=7).trace(B=2, primitives=True)
    large = run("torchvision")[1]
    assert [op.op for op in small.ops] == [op.op for op in large.ops]
    assert [part.name for one in small.decompositions for part in one.primitives] == [
        part.name for one in large.decompositions for part in one.primitives
    ]


def test_links_lead_to_a_run_of_the_same_batch_and_to_the_module_that_is_counted():
    trace = run("torchvision")[1]
    for row in rows("003"):
        for place in row.where:
            if place.startswith(("step ", "param ", "ran ", "count ")):
                found = lookup.look(row, place, run)
                assert dict(found.place)["B"] == str(trace.step("norm").shape[0]) == "2", place
                if (path := counted.COUNTED_MODULES.get(place.removeprefix("count "))) is not None:
                    assert trace.modules[int(dict(found.place)["module"])].path == path
    attention = next(row for row in rows("003") if "count attention" in row.where)
    record = trace.modules[int(dict(lookup.look(attention, "count attention", run).place)["module"])]
    assert costs.of_module(trace, record).params == 2_362_368
