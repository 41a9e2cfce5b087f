"""Facts stated in the explanations of steps, measured."""

import pkgutil
import re
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

import pytest
import torch

import tracer
from tests.attention.test_attention_of_libraries import timm, trace_net
from tests.support.sweeping import cases
from tests.textbook.test_books import model as book_of
from tracer import zoo
from tracer.expr import RMSNorm
from tracer.models import clip, llama, mae, nanogpt, saliency, segmenter, transformer, vit, vit_note, vit_text
from tracer.textbook import claims as so
from tracer.textbook import explanations, names
from tracer.textbook import explanations as why
from tracer.textbook.claims import Claim, Context, Explanation, Why, claims, explain
from tracer.textbook.derivation import DerivedStep
from tracer.textbook.names import Hint
from tracer.verify import small
from tracer.verify.checks.reference_run import plain
from tracer.verify.checks.sentences import MEASURES, check_explanation_numbers

HINTED_MODELS = (clip, llama, mae, nanogpt, saliency, segmenter, transformer, vit, vit_text)
"""Models whose reasons stand in their hints."""


def whys(model) -> list[Why]:
    """Return the reasons in a model's hints."""
    return [hint.why for hint in model.HINTS if hint.why]


def notes(model) -> list[Why]:
    """Return the hints' notes on how texts differ from a run, where they state facts of it."""
    return [hint.note for hint in model.HINTS if hint.note and not isinstance(hint.note, str)]


def explanation_text(model, at: str) -> str:
    """Return all claims of a model's hints on a line."""
    return " ".join(claim.sentence for hint in model.HINTS if hint.at == at for claim in claims(hint.why))


ACTIVATIONS = {"GELU": torch.nn.GELU(), "GELUTanh": torch.nn.GELU(approximate="tanh"), "SiLU": torch.nn.SiLU()}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_negative_numbers_stay_within_the_stated_bound(name):
    low = float(claims(why.WHY[name])[0].values["low"])
    bent = ACTIVATIONS[name](torch.linspace(-40, -1e-6, 1_000_001, dtype=torch.float64))
    assert low <= bent.min() < low + 0.011 and bent.max() <= 0
    assert ACTIVATIONS[name](torch.tensor(8.0, dtype=torch.float64)) == pytest.approx(8, rel=0.001)


@pytest.mark.parametrize(
    ("name", "sizes", "text"),
    [
        (
            "vit",
            {"D": 12, "h": 2, "d_ff": 48},
            "two matrices of 1,152 weights in all, its attention four",
        ),
        (
            "llama",
            {"D": 12, "h": 2, "d_ff": 48, "h_kv": 1},
            "three matrices of 1,728 weights in all, its attention",
        ),
    ],
)
def test_the_weights_of_an_mlp_are_counted_on_the_run(name, sizes, text):
    model = tracer.load(name, **sizes, L=1)
    step = next(step for step in model.trace().steps if step.title == "Contract")
    assert text in step.why and "twice" not in step.why
    paths = {"mlp": 0, "attention": 0}
    for path, parameter in model.net.block1.named_parameters():
        if parameter.dim() == 2:
            paths[path.split(".")[0]] += parameter.numel()
    assert [f"{count:,}" in step.why for count in paths.values()] == [True, True]


def test_without_positions_shuffled_patches_give_the_same_class():
    assert "Attention by itself does not know the order of its tokens" in explanation_text(vit, "position")
    model = tracer.load("vit", H=12, W=8, P=4, D=12, h=2, d_ff=10, L=2)
    (image,) = model.inputs()
    cut = image.unfold(2, 4, 4).unfold(3, 4, 4).flatten(2, 3)  # [B, C, N, P, P]
    order = torch.tensor([3, 5, 0, 2, 1, 4])
    shuffled = cut[:, :, order].unflatten(2, (3, 2)).permute(0, 1, 2, 4, 3, 5).reshape(image.shape)
    with torch.no_grad():
        assert not torch.allclose(model.net(shuffled), model.net(image), atol=1e-4)
        model.net.position.zero_()
        assert torch.allclose(model.net(shuffled), model.net(image), atol=1e-5)


def test_what_stands_after_the_end_of_a_sentence_changes_nothing():
    assert "the tokens after it change nothing" in explanation_text(clip, "text.index")
    model = tracer.load("clip")
    image, tokens = model.inputs()
    tokens = torch.cat([tokens, torch.full((len(tokens), 2), clip.END)], dim=1)[:, : model.sizes["T_max"]]
    changed = tokens.clone()
    changed[:, -1] = 4  # a word
    with torch.no_grad():
        assert (tokens == clip.END).sum(dim=1).min() > 1
        assert torch.allclose(model.net(image, changed), model.net(image, tokens), atol=1e-5)


def test_patches_read_from_cls_in_every_block():
    assert "in every block, the patches could read from it" in explanation_text(segmenter, "tokens")
    trace = tracer.load("segmenter").trace()
    for layer in range(len(trace.attentions)):
        assert trace.attention(layer)[:, :, 1:, 0].min() > 0


def test_the_score_of_a_tied_head_is_a_dot_product():
    for model in (nanogpt, vit_text):
        assert "direction counts, and so does its length" in explanation_text(model, "logits")
    trace = tracer.load("nanogpt", tied=True).trace()
    logits, last, table = trace.steps[-1], trace.value("norm"), tracer.load("nanogpt", tied=True).net.tokens.weight
    assert torch.allclose(trace.value(logits), last @ table.T, atol=1e-4)
    assert torch.allclose(2 * trace.value(logits)[..., 5], last @ (2 * table[5]), atol=1e-4)


def test_a_query_of_parameters_asks_the_same_of_every_input():
    class Pool(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.probe = torch.nn.Parameter(torch.randn(1, 1, 6))
            self.query, self.key, self.value = (torch.nn.Linear(6, 6) for _ in range(3))

        def forward(self, x):
            q, k, v = self.query(self.probe.expand(len(x), 1, 6)), self.key(x), self.value(x)
            return (q @ k.mT / 6**0.5).softmax(-1) @ v

    net = Pool()
    one, other = (tracer.trace(net, torch.randn(2, 5, 6), symbols={"B": 0, "T": 1}) for _ in range(2))
    asked = [step for step in one.steps if "they are the same for every input" in step.why]
    assert [step.title for step in asked] == ["Queries"]
    assert torch.equal(one.value(asked[0]), other.value(asked[0]))


FALSE = ("alone has seen", "drift as training", "deep stacks then learn", "most of a block", "nearly 0", "most like")


def test_no_explanation_says_what_a_run_contradicts():
    said = " ".join(claim.sentence for claim in every_claim())
    assert [phrase for phrase in FALSE if phrase in said] == []


def lesson_hints() -> list[Hint]:
    """Return the hints of lessons and of families of libraries, wherever they are in their modules."""
    found = []
    for package in (
        "tracer.lessons.tokenization",
        "tracer.lessons.positions",
        "tracer.lessons",
        "tracer.zoo.hf.families",
        "tracer.zoo.hf",
        "tracer.zoo",
        "tracer.spec",
    ):
        folder = import_module(package)
        for file in pkgutil.iter_modules(folder.__path__):
            module = import_module(f"{package}.{file.name}")
            found += [hint for value in vars(module).values() for hint in hints_in(value)]
    return found


def hints_in(value) -> list[Hint]:
    if isinstance(value, Hint):
        return [value]
    if isinstance(value, (tuple, list)):
        return [hint for one in value for hint in hints_in(one)]
    own = getattr(value, "hints", ())
    return list(own) if isinstance(own, tuple) else []


def every_claim() -> list[Claim]:
    """Return all claims of derived textbooks, our models, lessons and families of libraries."""
    told = [*why.WHY.values(), *(one for model in HINTED_MODELS for one in whys(model))]
    told += [hint.why for hint in lesson_hints() if hint.why]
    return list(dict.fromkeys(claim for one in told for claim in claims(one)))


FACT = re.compile(
    r"\d|√|∞|\b(twice|half|double|learned|trained|trainable|fixed|sums? to|exactly|equal|between|smaller|larger|"
    r"mean|variance|parameters?)\b"
)
"""What no sentence may say that explains in general: numbers, and what a run may contradict."""


def test_a_claim_states_a_fact_with_a_predicate_or_explains_in_general():
    found = every_claim()
    assert len(found) > 150 and all(isinstance(claim, Claim) for claim in found)
    assert [claim.sentence for claim in found if claim.general and FACT.search(claim.sentence)] == []
    assert not any(isinstance(hint.why, str) for model in HINTED_MODELS for hint in model.HINTS)


OF_THE_RUN = re.compile(r"\b(here|runs?|ran|the code|this model|under this|there is no)\b")
"""What a note says of the run, and not of a text alone."""


def test_a_note_states_a_fact_of_the_run_with_a_predicate():
    every = [hint for model in (*HINTED_MODELS, vit_note) for hint in model.HINTS]
    loose = [hint.note for hint in every if isinstance(hint.note, str) and OF_THE_RUN.search(hint.note)]
    assert not loose, loose
    trace = tracer.load("nanogpt", **SMALL, V=31, T_max=8).trace(T=8, prove=False)
    assert "longer one" not in trace.step("position").note, "all rows of the table are taken"


def contexts(run: Callable[[], object]) -> list[Context]:
    """Return the contexts in which the claims of a run's lines are evaluated."""
    found: list[Context] = []

    def keep(why_: Why, context: Context, strict: bool = False) -> Explanation:
        found.append(context)
        return explain(why_, context, strict)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(names, "explain", keep)
        run()
    return found


class Pooled(torch.nn.Module):
    """Queries computed from parameters alone; keys and values in one product."""

    def __init__(self):
        super().__init__()
        self.probe = torch.nn.Parameter(torch.randn(1, 1, 6))
        self.query, self.kv = torch.nn.Linear(6, 6), torch.nn.Linear(6, 12)

    def forward(self, x):
        q, (k, v) = self.query(self.probe.expand(len(x), 1, 6)), self.kv(x).chunk(2, dim=-1)
        return (q @ k.mT / 6**0.5).softmax(-1) @ v


SMALL = {"D": 12, "h": 2, "d_ff": 16, "L": 2}
IMAGE = {"H": 12, "W": 8, "P": 4}
RUNS = (
    ("vit", {**IMAGE, **SMALL, "K": 3}),
    ("vit-note", {**IMAGE, "D": 12, "d_k": 5, "d_ff": 10, "L": 2}),
    ("nanogpt", {**SMALL, "V": 30, "T_max": 60, "tied": False, "gelu": "tanh"}),
    ("nanogpt", {**SMALL, "V": 31, "T_max": 60}),
    ("nanogpt", {**SMALL, "V": 31, "T_max": 60, "bias": False}),
    ("vit-text", {**IMAGE, **SMALL, "V": 19, "mask": "prefix", "types": True}),
    ("segmenter", {**IMAGE, **SMALL, "K": 3}),
    ("saliency", {**IMAGE, **SMALL, "G": 5, "E": 2}),
    ("mae", {**IMAGE, **SMALL, "L_dec": 1}),
    ("clip", {**IMAGE, **SMALL, "D_e": 6}),
    ("transformer", {**SMALL, "R": 3, "positions": "relative", "mask": "causal"}),
    ("transformer", {**SMALL, "positions": "sinusoidal"}),
    ("llama", {**SMALL, "h_kv": 1, "tied": False}),
)
TINY = ("hf:bert", "hf:gpt2", "hf:llama", "hf:vit_mae", "hf:clip", "hf:paligemma", "torchvision:vit_b_16",
        "timm:vit_base_patch16_reg4_gap_256")  # fmt: skip


@pytest.fixture(scope="module")
def lines() -> list[Context]:
    tiny = [*((name, zoo.tiny(name)) for name in TINY), ("hf:llama", {**zoo.tiny("hf:llama"), "attention": "eager"})]
    models = (*RUNS, *tiny)
    runs = [lambda name=name, sizes=sizes: tracer.load(name, **sizes).trace(prove=False) for name, sizes in models]
    channels = timm("xcit_nano_12_p16_224", img_size=64, embed_dim=16, depth=1, num_heads=4)
    runs += [lambda: trace_net(channels), lambda: trace_net(lambda: (Pooled(), torch.randn(2, 5, 6)))]
    runs += [lambda: book_of("hf:bert BertModel").trace(prove=False)]
    changed = {"attention.weights": "drop_heads(0)", "attention.output": "zero", "mlp.output": "zero"}
    changed = {f"block1.{line}": change for line, change in changed.items()}
    runs += [lambda: tracer.load("nanogpt", **SMALL, V=31, T_max=60).trace(prove=False, change=changed)]
    return [context for run in runs for context in contexts(run)]


def test_every_predicate_holds_of_some_line_and_is_false_of_another(lines):
    """Falsifiable: a predicate that is always true, or never, says nothing of the run that it is evaluated on."""
    own = [*why.WHY.values(), *(one for model in HINTED_MODELS for one in (*whys(model), *notes(model)))]
    facts = {claim for one in own for claim in claims(one) if not claim.general}
    never = [claim.sentence for claim in facts if not any(claim.holds(line) for line in lines)]
    always = [claim.sentence for claim in facts if all(claim.holds(line) for line in lines)]
    assert (never, always) == ([], [])


def test_every_fact_is_measured_by_verify():
    own = [*why.WHY.values(), *(one for model in HINTED_MODELS for one in whys(model))]
    facts = {claim for one in own for claim in claims(one) if not claim.general}
    assert [claim.sentence for claim in facts if claim.measure not in MEASURES] == []
    assert {claim.measure for claim in every_claim() if claim.measure} == set(MEASURES)


def test_a_claim_of_a_hint_that_is_false_is_not_shown_and_fails_verify():
    model = tracer.load("vit", **IMAGE, **SMALL, K=3)
    wrong = Hint("position", why=(Claim("It adds."), Claim("A fixed vector is added.", so.adds_fixed)))
    model.spec = replace(model.spec, hints=(*model.spec.hints, wrong))
    trace = model.trace()
    assert trace.step("position").why == "It adds."
    run = plain(model, model.inputs(), trace)
    assert list(check_explanation_numbers(run)) == [
        "step 'position' is said to be what it is not: “A fixed vector is added.”"
    ]


class Added(torch.nn.Module):
    """A block over tokens to which a vector for each position is added: a parameter, a buffer, or frozen."""

    def __init__(self, kind: str):
        super().__init__()
        table = torch.randn(7, 8)
        if kind == "buffer":
            self.register_buffer("P", table)
        else:
            self.P = torch.nn.Parameter(table, requires_grad=kind == "parameter")
        self.E = torch.nn.Embedding(11, 8)
        self.block1 = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, ids):
        return self.block1(self.E(ids) + self.P[: ids.shape[1]])


@pytest.mark.parametrize(
    ("kind", "text"), [("parameter", "A trainable vector"), ("buffer", "A fixed vector"), ("frozen", "A fixed vector")]
)
def test_a_vector_for_each_place_is_trainable_only_where_it_is(kind, text):
    trace = tracer.trace(Added(kind).eval(), torch.tensor([[3, 1, 4, 1, 5]]), symbols={"B": 0, "T": 1})
    told = [step.why for step in trace.steps if "vector for each position" in step.why]
    assert len(told) == 1 and text in told[0]


PARTIAL = "hf:persimmon", "hf:gpt_neox"
"""Families that turn some features of each head: of queries with a norm of their own, and of a packed product."""


@pytest.fixture(scope="module", params=cases(PARTIAL, PARTIAL[:1]))
def partial(request):
    pytest.importorskip("transformers")
    model = small(request.param)
    with torch.no_grad():
        return model, model.inputs(), model.trace()


def refuted_claims(run, id: str, change: Callable) -> set[str]:
    """Return the claims that do not hold for a line once its tensor is replaced."""
    model, inputs, trace = run
    key = trace.step(id).value
    changed = replace(trace, values={**trace.values, key: change(trace.values[key])})
    return {
        found[1]
        for one in check_explanation_numbers(plain(model, inputs, changed))
        if (found := re.match("“([^ ]+ [^ ]+)", one))
    }


def test_what_is_said_of_heads_that_are_turned_in_part_holds(partial):
    model, inputs, trace = partial
    assert {step.title for step in trace.steps} >= {"Rotate queries (RoPE)", "Rotate keys (RoPE)"}
    assert list(check_explanation_numbers(plain(model, inputs, trace))) == []


@pytest.mark.parametrize("what", ["query", "key"])
def test_heads_that_are_rotated_in_part_are_neither_stretched_nor_those_of_others(partial, what):
    steps = [step.id for step in partial[2].steps if step.layer == 0]
    rotated, *own = [id for role in (f"rotated {what}", what) for id in steps if id.endswith(f"attention.{role}")]
    assert "Each pair" in refuted_claims(partial, rotated, lambda value: 1.1 * value)
    assert "Each pair" in refuted_claims(partial, rotated, lambda value: value.flip(-2))
    for id in own:  # all that is not rotated stands in the product, too
        said = "This is"
        assert said not in refuted_claims(partial, id, lambda value: value.clone())
        assert said in refuted_claims(partial, rotated, lambda value: value + 0.1 * value.roll(1, -1))
        assert said in refuted_claims(partial, id, lambda value: torch.cat([value[..., :-1], 2 + value[..., -1:]], -1))


@pytest.mark.parametrize(
    ("measure", "values"),
    [
        ("mean and variance", {"mean": "1", "variance": "0"}),
        ("rows that sum to", {"total": "2"}),
        ("spread of a sum", {"growth": "d_k"}),
        ("open and closed cells", {"opened": "-∞", "closed": "0"}),
        ("packed product", {"count": "2"}),
        ("activation", {"name": "GELU", "low": "-0.28"}),
    ],
)
def test_verify_finds_a_value_that_is_wrong(measure, values):
    """Each of these was once said by a mistake that nothing saw."""
    found = 0
    for name, sizes in (*RUNS[:1], RUNS[3], ("torchvision:vit_b_16", zoo.tiny("torchvision:vit_b_16"))):
        model = tracer.load(name, **sizes)
        trace = model.trace()
        steps = [wrong(step, measure, values) for step in trace.later.derived_steps]
        if steps == [*trace.later.derived_steps]:
            continue
        trace.later.derived_steps = steps
        found += 1
        problems = list(check_explanation_numbers(plain(model, model.inputs(), trace)))
        assert any("does not hold" in problem for problem in problems)
    assert found


def wrong(step: DerivedStep, measure: str, values: dict[str, str]) -> DerivedStep:
    """Return a derived step whose claims of that measure state other values."""
    facts = tuple(replace(fact, values=values) if fact.measure == measure else fact for fact in step.line.facts)
    return step._replace(line=replace(step.line, facts=facts))


@pytest.mark.parametrize(
    ("part", "other"),
    [("Q", "key"), ("K", "query"), ("V", "key"), ("A", "gated"), ("QKV", "value"), ("E", "norm"), ("classes", "head")],
)
def test_a_reason_that_is_another_line_s_is_refuted(part, other, monkeypatch):
    """The reason of keys for queries, and others that were once exchanged unseen."""
    monkeypatch.setitem(explanations.OF_PARTS, part, other)
    name, sizes = ("torchvision:vit_b_16", zoo.tiny("torchvision:vit_b_16")) if part == "QKV" else RUNS[0]
    name, sizes = RUNS[2] if part == "E" else (name, sizes)
    model = tracer.load(name, **sizes)
    model.spec = replace(model.spec, hints=())
    refuted = [one.line.refuted for one in model.trace().later.derived_steps]
    assert any(refuted)


def test_a_norm_is_told_as_what_it_is(lines):
    rms = [line for line in lines if isinstance(line.equation, RMSNorm)]
    several = [line for line in lines if line.record and line.record.heads == 1 and line.part == "Q"]
    layer, root = (claims(why.WHY[name])[0] for name in ("norm1", "rms"))
    assert rms and several
    assert not any(layer.holds(line) for line in rms) and all(root.holds(line) for line in rms)
    assert not any("once per head" in explain(why.WHY["query"], line).text for line in several)
