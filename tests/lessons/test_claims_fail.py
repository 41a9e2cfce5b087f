"""Failures of each claim of the notes: on a run that is changed where the claim looks, its verdict changes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.support.note_runs import at_hand
from tests.support.sweeping import cases
from tracer.lessons.notes import claims
from tracer.lessons.notes.claims import attention, vision
from tracer.lessons.notes.measurement import provider
from tracer.lessons.notes.statements import rows
from tracer.record import Trace
from tracer.spec.spec import Model, build_seeded
from tracer.verify.checks import printed as checked
from tracer.verify.checks.reference_run import plain

here = provider(at_hand)
Broken = tuple[Model, Trace]
ATTENTION, SCORES = "block1.attention", "block1.attention.scores"


def tensors(*changes: tuple[str, Callable]) -> Callable[[Model, Trace], Broken]:
    """Return a run with other tensors of some steps."""

    def change(model, trace):
        keys = {trace.step(id).value: function for id, function in changes}
        values = {key: keys[key](value) if key in keys else value for key, value in trace.values.items()}
        return model, replace(trace, values=values)

    return change


def queries(change: Callable) -> Callable[[Model, Trace], Broken]:
    """Return a run with other queries and keys recorded for every attention."""

    def change_run(model, trace):
        keys = {one for record in trace.attentions for one in (record.q, record.k)}
        return model, replace(
            trace, values={key: change(value) if key in keys else value for key, value in trace.values.items()}
        )

    return change_run


def net(change: Callable[[nn.Module], object], again: bool = True) -> Callable[[Model, Trace], Broken]:
    """Return the model with other parameters or modules, and its run if it is to run `again`."""

    def change_run(model, trace):
        other = replace(model, net=copy.deepcopy(model.net), _solutions={})
        with torch.no_grad():
            change(other.net)
        return other, other.trace() if again else trace

    return change_run


def steps(id: str, **facts) -> Callable[[Model, Trace], Broken]:
    """Return a run with another record of a step."""

    def change_run(model, trace):
        return model, replace(trace, steps=tuple(replace(s, **facts) if s.id == id else s for s in trace.steps))

    return change_run


def _blocks(net, change):
    for name in net.blocks:
        change(net.get_submodule(name))


def _silent(net):
    """Return a model whose attentions add nothing."""
    _blocks(net, lambda block: [one.zero_() for one in block.attention.output.parameters()])


def _same_projection(net):
    net.block1.attention.key.load_state_dict(net.block1.attention.query.state_dict())


def _turning(block):
    """Return sums that reverse the stream's sign, through which no more of a gradient passes than through the
    branches."""

    class Twice(nn.Module):
        def forward(self, x, *more, **others):
            return -2 * x

    block.norm1 = block.norm2 = nn.Identity()
    block.attention = block.mlp = Twice()


def _start(name):
    def change(model, trace):
        begun = dict(build_seeded(model.spec.net, {**model.sizes, **model.options}).named_parameters())[name]
        return net(lambda other: other.get_parameter(name).copy_(begun), again=False)(model, trace)

    return change


def _mixing(net):
    class Mean(nn.Module):
        def forward(self, x):
            return x.mean(1, keepdim=True).expand_as(x)

    net.block1.mlp = Mean()


def _without_places(net):
    class Alike(nn.Linear):
        def forward(self, x):
            return super().forward(x.mean((1, 2), keepdim=True).expand_as(x))

    net.decoder.__class__ = Alike


def _fixed_length(net):
    class Fixed(nn.Module):
        def forward(self, x):
            return x + torch.zeros(16, x.shape[-1])

    net.block1 = Fixed()


def _any_id(net):
    class Wrapped(nn.Embedding):
        def forward(self, ids):
            return super().forward(ids % self.num_embeddings)

    wrapped = Wrapped(*net.tokens.weight.shape)
    wrapped.weight = net.tokens.weight
    net.tokens = wrapped


def _other_source(model, trace):
    step, other = f"{ATTENTION}.key", next(op.index for op in trace.ops if op.step == "embedding")

    def from_there(op):
        inputs = tuple(replace(one, maker=other) if isinstance(one.maker, int) else one for one in op.inputs)
        return replace(op, inputs=inputs) if op.step == step else op

    return model, replace(trace, ops=tuple(from_there(op) for op in trace.ops))


def _narrow(model, trace):
    """Return random unit vectors, scaled so that each token attends to itself alone."""
    random = torch.Generator().manual_seed(0)

    def alone(value):
        rows = torch.nn.functional.normalize(torch.randn(value.shape, generator=random), dim=-1)
        return 40 * rows

    keys = {}
    for record in trace.attentions:
        keys[record.q] = keys[record.k] = alone(trace.values[record.q])
    return model, replace(trace, values={**trace.values, **keys})


def _sizes(**sizes):
    def change(model, trace):
        symbols = tuple(replace(one, value=sizes.get(one.name, one.value)) for one in trace.symbols)
        return replace(model, sizes={**model.sizes, **sizes}), replace(trace, symbols=symbols)

    return change


def _mask_all(model, trace):
    return model, replace(trace, attentions=tuple(replace(one, mask="causal") for one in trace.attentions))


def _shared_blocks(net):
    net.block2 = net.block1


class _Twofold(nn.MultiheadAttention):
    """Attention whose output changes where its weights are requested."""

    def forward(self, *args, need_weights=True, **kwargs):
        output, weights = super().forward(*args, need_weights=need_weights, **kwargs)
        return output * (1 + need_weights), weights


def _twofold(net):
    for one in net.modules():
        if isinstance(one, nn.MultiheadAttention):
            one.__class__ = _Twofold


def _swap_segments(model, trace):
    image, text = (next(one for one in trace.segments if one.name == name) for name in ("image", "text"))
    swapped = (replace(image, name="text"), replace(text, name="image"))
    return model, replace(trace, segments=swapped)


def _alike(x):
    return x[:, :1].expand_as(x).contiguous()


def _zero(x):
    return torch.zeros_like(x)


def _one_head(x):
    return x[:, :1].expand_as(x).contiguous()


def _no_places(model, trace):
    changed = net(lambda other: None, again=False)(model, trace)[0]
    other = tensors(("position", lambda x: trace.value("embedding")))(changed, trace)[1]
    from tracer.attention.textbook_claims import terms

    content = terms(model, other)["content–content"]
    return tensors((SCORES, lambda x: content))(model, other)


def _blind(net):
    for one in (net.patches.weight, net.patches.bias):
        one.zero_()


def _without_square(monkeypatch):
    monkeypatch.setattr(attention, "BOOK", {"circle": 1.0, "triangle": 3.0})


def _one_photo(monkeypatch):
    found = vision.samples("photos")
    first = next(iter(found.values()))
    monkeypatch.setattr(vision, "samples", lambda kind: {"a": first, "b": first})


NORM = f"{ATTENTION[:6]}.norm1"
OTHERWISE = {
    "misspelt": _without_square,
    "batch_norm": _one_photo,
}
"""Claims that a run has no say in, or that take other photos themselves: what is changed instead."""
BROKEN_RUNS: dict[str, tuple[str, Callable[[Model, Trace], Broken]]] = {
    "mixture": ("vit", tensors((f"{ATTENTION}.context", lambda x: x.roll(1, 1)))),
    "soft_lookup": ("vit", tensors((SCORES, _zero))),
    "order": ("vit", tensors((NORM, _alike))),
    "symmetric": ("vit", tensors((NORM, _alike))),
    "asymmetric": ("vit", net(_same_projection)),
    "raw": ("vit", tensors((NORM, _alike))),
    "routing": ("vit", tensors((NORM, _zero))),
    "comparison": ("vit", lambda model, trace: tensors(
        (SCORES, lambda x: (trace.value(NORM) @ trace.value(NORM).mT)[:, None].expand_as(x).contiguous())
    )(model, trace)),
    "entry": ("vit-note", tensors((SCORES, lambda x: x.roll(1, -1)))),
    "one_source": ("vit-note", _other_source),
    "rows": ("vit-note", tensors((f"{ATTENTION}.weights", lambda x: 2 * x))),
    "spread": ("vit", tensors((SCORES, lambda x: x / 100))),
    "gradients": ("vit", tensors((SCORES, _zero))),
    "receptive": ("vit", _narrow),
    "heads_are_columns": ("vit", tensors((f"{ATTENTION}.value", lambda x: x.roll(1, 1)))),
    "side_by_side": ("vit", tensors((f"{ATTENTION}.key", lambda x: x.roll(1, 1)))),
    "heads_differ": ("vit", tensors((f"{ATTENTION}.weights", _one_head))),
    "merged": ("vit", tensors((f"{ATTENTION}.output", lambda x: x.roll(1, 1)))),
    "convolution": ("vit-text", tensors(("embedding", lambda x: x.roll(1, 1)))),
    "convolution_shapes": ("vit-text", tensors(("embedding", lambda x: x[:, 1:]))),
    "embedding_space": ("vit", lambda model, trace: tensors(
        ("embedding", lambda x: trace.value("patches"))
    )(model, trace)),
    "basis": ("vit-note", net(lambda net: net.embedding.weight[:, :1].zero_(), again=False)),
    "learned": ("vit", _start("embedding.weight")),
    "positions_learned": ("nanogpt", _start("positions")),
    "cls_learned": ("vit", net(lambda net: net.cls.zero_(), again=False)),
    "cls_fixed": ("vit", net(lambda net: net.cls.zero_(), again=False)),
    "cls_constant": ("vit", tensors(("sequence", lambda x: x + 1))),
    "cls_gathers": ("vit", net(_silent)),
    "global_context": ("segmenter", net(_silent)),
    "only_cls": ("vit", tensors(("norm", lambda x: x.roll(1, 1)))),
    "keeps_space": ("segmenter-note", net(_without_places)),
    "what_and_where": ("vit", tensors(("position", lambda x: x.roll(1, 1)))),
    "patch_resolution": ("vit", _sizes(P=8)),
    "normal": ("mae", tensors(("prediction", lambda x: x.roll(1, 1) * 9))),
    "defect": ("mae", net(lambda net: [one.zero_() for one in net.prediction.parameters()], again=False)),
    "open_vocabulary": ("clip", tensors(("cosines", lambda x: x.roll(1, -1)))),
    "whom": ("vit", _mask_all),
    "far": ("vit", _narrow),
    "bound": ("vit", net(lambda net: _blocks(net, lambda one: [p.zero_() for p in one.attention.query.parameters()]))),
    "undo": ("vit", tensors(("position", _alike))),
    "mlp_alone": ("vit", net(_mixing, again=False)),
    "complementary": ("vit", net(_silent, again=False)),
    "correction": ("vit", lambda model, trace: tensors(*(
        (f"block{at}.{part}.output", lambda x, at=at, part=part: 0.9 * trace.value(f"block{at}.{part}.residual"))
        for at in range(1, 7) for part in ("attention", "mlp")
    ))(model, trace)),
    "highway": ("vit", lambda model, trace: tensors(
        ("block6.mlp.residual", lambda x: trace.value("position"))
    )(*net(lambda other: _blocks(other, _turning), again=False)(model, trace))),
    "numbered": ("nanogpt", net(_shared_blocks, again=False)),
    "four_times": ("nanogpt", _sizes(d_ff=300)),
    "in_order": ("vit", steps("embedding", margin=2.0)),
    "both_paths": ("torchvision", net(_twofold, again=False)),
    "source_files": ("torchvision", lambda model, trace: here("vit")),
    "biases_optional": ("nanogpt-no-bias", lambda model, trace: here("nanogpt")),
    "types_optional": ("vit-text-types", tensors(("image_type", lambda x: x + 1))),
    "mask_optional": ("transformer-causal", lambda model, trace: here("transformer")),
    "ids_from_zero": ("transformer", net(_any_id, again=False)),
    "lookup_table": ("transformer", lambda model, trace: tensors(("embedding", lambda x: x[:, :1].expand_as(x)))(
        *net(lambda other: other.tokens.weight.copy_(other.tokens.weight[83].clone().expand_as(other.tokens.weight)),
             again=False)(model, trace))),
    "next_token": ("nanogpt", tensors(("logits", _zero))),
    "distributions": ("transformer", tensors(("probabilities", lambda x: 2 * x))),
    "loss": ("nanogpt", tensors(("logits", _zero))),
    "neighbours": ("nanogpt", _start("tokens.weight")),
    "four_terms": ("transformer", tensors((SCORES, lambda x: x.roll(1, -1)))),
    "cross_terms": ("transformer", _no_places),
    "any_sequence": ("transformer", net(_fixed_length, again=False)),
    "writes": ("vit-text", net(_blind, again=False)),
    "one_format": ("vit-text", steps("block1.mlp.hidden", shape=(1, 64, 384))),
    "image_first": ("vit-text", _swap_segments),
    "text_sees": ("vit-text", _narrow),
}  # fmt: skip
"""Of each claim a run of the notes, and what is changed in it."""


def test_each_claim_has_a_run_on_which_it_fails():
    assert BROKEN_RUNS.keys() | OTHERWISE.keys() == claims.CLAIMS.keys()
    assert not BROKEN_RUNS.keys() & OTHERWISE.keys()
    for name, (run, _) in BROKEN_RUNS.items():
        assert run in {row.run for row in claims.statements(name)}, name


@pytest.fixture(scope="module", params=cases(("vit", "transformer", "nanogpt"), ("transformer",)))
def plain_run(request):
    model, trace = here(request.param)
    return plain(model, model.inputs(), trace)


def test_verify_measures_the_claims_again(plain_run, monkeypatch):
    name = plain_run.model.name
    assert list(checked.check_note_statements(plain_run)) == []
    monkeypatch.setitem(claims.DIFFERS, "cross_terms", "holds")
    monkeypatch.setitem(claims.DIFFERS, "soft_lookup", "sense")
    found = [problem.split(" on this run")[0] for problem in checked.check_note_statements(plain_run)]
    expected = {"vit": "the claim soft_lookup is “holds”", "transformer": "the claim cross_terms is “sense”"}
    assert found == [expected[name]] if name in expected else found == []


@pytest.mark.sweep
@pytest.mark.parametrize("name", checked.NUMBERS)
def test_verify_finds_a_wrong_number(name, monkeypatch):
    run = claims.statements(name)[0].run
    model, trace = here(run)
    said = claims.CLAIMS[name](model, trace)
    shift = str.maketrans("0123456789", "1234567890")
    wrong = said._replace(result=said.result.translate(shift), baseline=said.baseline.translate(shift))
    monkeypatch.setitem(claims.CLAIMS, name, lambda model, trace: wrong)
    problems = list(checked.check_note_statements(plain(model, model.inputs(), trace)))
    assert problems and all(f"the claim {name} does not say" in problem for problem in problems)


def test_verify_finds_a_wrong_statement(monkeypatch):
    """Of another shape than the run's."""
    model, trace = here("transformer")
    row = next(row for row in rows("004") if row.text.startswith("$O_h = A_h V_h$"))
    assert row.where == ("ran bmm block1.attention.context",)
    monkeypatch.setattr(checked, "rows", lambda note: (row._replace(shape="h T T"),) * (note == "004"))
    (problem,) = checked.check_note_statements(plain(model, model.inputs(), trace))
    assert problem.startswith("note 004, statement 81: ran bmm block1.attention.context is not as it says")


USUAL_CLAIMS = [name for name, (run, _) in BROKEN_RUNS.items() if run in ("vit", "transformer")]


@pytest.mark.parametrize("name", cases(BROKEN_RUNS, USUAL_CLAIMS))
def test_a_claim_fails_on_a_run_that_is_changed(name):
    run, change = BROKEN_RUNS[name]
    expected = claims.DIFFERS.get(name, "holds")
    assert claims.CLAIMS[name](*here(run)).verdict == expected
    found = claims.CLAIMS[name](*change(*here(run)))
    assert found.verdict != expected, found


@pytest.mark.parametrize("name", OTHERWISE)
def test_a_claim_fails_where_what_it_looks_up_is_changed(name, monkeypatch):
    assert claims.CLAIMS[name](*here("vit")).verdict == "holds"
    OTHERWISE[name](monkeypatch)
    assert claims.CLAIMS[name](*here("vit")).verdict == "not"
