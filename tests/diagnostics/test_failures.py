"""Failing modules and their twins: each failure is explained at its line, with a repair that runs."""

import inspect
import sys
import types
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import tracer
from tests.diagnostics.modules import correct, failing, more_failing, of_moves
from tracer.diagnostics.failures import clashes, trials
from tracer.utils.files import apply_edits
from tracer.zoo import user_factory

FACTORIES = [name for name, value in vars(failing).items() if inspect.isfunction(value)]
TEXT = Path(failing.__file__).read_text(encoding="utf-8")
REPAIRS = {
    "product": "k.transpose(-2, -1)",
    "hidden_layers": "nn.Linear(3 * D, D)",
    "classifier": "x.flatten(1)",
    "channels": "nn.Conv2d(C, C, 3)",
    "channels_last": "picture.permute(0, 3, 1, 2)",
    "class_token": "self.cls.expand(x.size(0), -1, -1)",
    "axis_join": "dim=-1",
    "sequence_stack": "torch.cat(",
    "positions": "self.table[:, :x.size(1)]",
    "sample_weight": "weight.unsqueeze(-1)",
    "head_merge": "heads.transpose(1, 2).reshape(B, T, D)",
    "flat_picture": "x.view(x.size(0), -1)",
    "tokens": "nn.Embedding(12, D)",
    "padding_mask": "keep[:, None, None, :]",
    "precision": "x.float()",
    "batch_first": "batch_first=True",
    "loss": "scores.transpose(1, 2)",
    "binary": "target.unsqueeze(-1).float()",
    "letters": '"bhqd,bhkd->bhqk"',
    "norm": "nn.LayerNorm(2 * D)",
    "batch_norm": "x.transpose(1, 2)",
    "last": "x[:, -1]",
    "pair": "states[0]",
    "attribute_typo": "self.projection(x)",
    "return_value": "return x + self.proj(x)",
    "missing": "self.block(x, mask=None)",
    "device_choice": "device=x.device",
}
"""What the first repair writes."""


MORE = {
    "flags": "attention_mask[:, None, None].bool()",
    "vit": "torch.zeros(1, N + 1, D)",
    "gqa": "v.repeat_interleave(s.softmax(-1).size(1) // v.size(1), dim=1)",
    "cache": "torch.cat([past, k], dim=2)",
    "lm": "z[:, :-1].reshape(",
    "causal": "[..., :s.size(1), :s.size(1)]",
    "rope": "torch.cat([torch.outer(t, self.inv)] * 2, dim=-1)",
    "enc": "nn.TransformerEncoderLayer(D, h, 4 * D, batch_first=True)",
    "lora": "x @ self.A.T @ self.B.T",
    "cross": "kdim=12, vdim=12",
    "gpt": "nn.Embedding(20, D)",
    "rnn": "nn.LSTM(D, 6, batch_first=True)",
    "moe": "w.unsqueeze(-1) * y",
    "res": "nn.Conv2d(C, C, 3, padding=1)",
    "half": "self.proj(x).half().float()",
    "stack": "nn.Sequential(*[",
    "dec": "mask.T",
    "cnn": "nn.Linear(196 * C, K)",
}
"""The same of the modules of a second file, which factories build; `unpack` has no repair."""


def build(factory, **sizes):
    """Return a factory's module and its arguments."""
    torch.manual_seed(0)
    module, args = factory(**sizes)
    return module, args if isinstance(args, tuple) else (args,)


def failure(module, args, **options):
    """Return the error of a trace."""
    with pytest.raises(Exception) as raised:  # any error of a forward
        tracer.trace(module, *args, **options)
    return raised.value


def why(name):
    return tracer.explain(failure(*build(getattr(failing, name))))


@pytest.fixture(scope="module")
def explanations():
    return {name: why(name) for name in FACTORIES}


def test_there_are_twenty_and_more_and_each_has_a_twin_that_runs():
    assert len(FACTORIES) >= 20 and set(FACTORIES) == set(REPAIRS) == set(correct.MEANT)
    for name in FACTORIES:
        module, args = build(getattr(correct, name))
        module(*args)


@pytest.mark.parametrize("name", FACTORIES)
def test_the_failure_is_explained_at_its_line(explanations, name):
    explanation = explanations[name]
    assert explanation.source.text.endswith("# here"), explanation
    assert explanation.source.file.endswith("failing.py")
    assert explanation.message.rstrip().endswith(".") and "\n" not in explanation.message
    first, last = explanation.span
    assert 0 <= first < last <= len(explanation.source.text)


@pytest.mark.parametrize("name", FACTORIES)
def test_the_first_repair_is_the_one_that_was_meant(explanations, name):
    fix = explanations[name].fixes[0]
    assert REPAIRS[name] in "\n".join(edit.after for edit in fix.edits)
    assert len(fix.sizes) == 2 and fix.sizes[0] != fix.sizes[1]


@pytest.mark.parametrize("name", FACTORIES)
def test_every_repair_runs_when_its_file_is_edited(explanations, name):
    """The edits are applied to the file, which runs as a module of its own."""
    assert explanations[name].fixes
    for fix in explanations[name].fixes:
        edited = types.ModuleType("edited")
        exec(compile(apply_edits(TEXT.splitlines(keepends=True), fix.edits), "edited.py", "exec"), edited.__dict__)
        module, args = build(getattr(edited, name))
        module(*args)


@pytest.mark.parametrize("name", [name for name, value in vars(more_failing).items() if inspect.isfunction(value)])
def test_a_factory_that_fails_is_explained_and_its_edited_file_runs(name):
    with pytest.raises(user_factory.OwnCodeError) as raised:
        user_factory.trace(f"{more_failing.__name__}:{name}")
    explanation = tracer.explain(raised.value)
    assert explanation.source.text.endswith("# here") and explanation.source.file.endswith("more_failing.py")
    if name == "unpack":
        assert explanation.message == "The line unpacks 3 values, `B, T, C`, and `x.shape` has 2: [2, 8]."
        return
    first = explanation.fixes[0]
    assert MORE[name] in "\n".join(edit.after for edit in first.edits) and len(first.sizes) == 2
    lines = Path(more_failing.__file__).read_text(encoding="utf-8").splitlines(keepends=True)
    for fix in explanation.fixes:
        edited = types.ModuleType("edited")
        exec(compile(apply_edits(lines, fix.edits), "edited.py", "exec"), edited.__dict__)
        module, args = build(getattr(edited, name))
        module(*args)


def factories(module):
    """Return the factories of a file: all their sizes have defaults."""
    functions = [value for value in vars(module).values() if inspect.isfunction(value)]
    return [f"{module.__name__}:{f.__name__}" for f in functions if len(f.__defaults__ or ()) == f.__code__.co_argcount]


@pytest.mark.sweep
def test_every_move_of_a_repair_has_a_module_that_it_repairs_at_two_sizes(monkeypatch):
    """All repairs of a move are tried, those too that explanations leave out as they change more than others."""
    repaired, moves = set(), list(trials.MOVES)

    def numbered(number, move):
        def candidates(scene, clash):
            return (replace(each, message=str(number)) for each in move.candidates(scene, clash))

        return move._replace(candidates=candidates)

    def runs(trial, candidate, sizes):
        return trial.output(candidate, sizes) is not trials.FAILS

    def choose(trial, candidates):
        for each in (each for each in candidates if each.message not in repaired):
            here = {**trial.shapes.sizes, **dict(each.sizes)}
            others = trial._other_sizes(here, dict(each.sizes))
            if runs(trial, each, here) and any(runs(trial, each, at) for at in others):
                repaired.add(each.message)
        return [trials.Fix("one repair")]

    monkeypatch.setattr(trials, "MOVES", [numbered(*each) for each in enumerate(moves)])
    monkeypatch.setattr(trials.Trials, "choose", choose)
    for reference in (name for module in (of_moves, failing, more_failing) for name in factories(module)):
        with pytest.raises(user_factory.OwnCodeError) as raised:
            user_factory.trace(reference)
        tracer.explain(raised.value)
    assert [move for number, move in enumerate(moves) if str(number) not in repaired] == []


FIRST = {
    "flags_of_samples": "keep[:, None, None, :].expand(",
    "heads_of_shared_keys": "k.repeat_interleave(h // k.size(1), dim=1).mT",
    "grid_with_a_class_token": "tokens[:, 1:].transpose(1, 2).reshape(",
    "keys_before_queries": "q, k, v = (y.relu() for y in (x, c, c))",
    "keys_without_heads": "k = x.relu().view(B, T, h, D // h).transpose(1, 2)",
    "padding_as_another_mask": "(x, x, x, key_padding_mask=closed, need_weights=False)",
    "mask_without_the_cache": ".triu(1), (s.size(-1) - s.size(-2), 0))",
    "subtracted_flags": "x * (~closed)",
    "more_tokens_than_places": "Places(D, 6)",
    "scores_of_all_tokens": "F.cross_entropy(x.relu().mean(1), y)",
    "score_of_each_token": "gather(-1, ids.unsqueeze(-1))",
    "angles_beside_heads": "angles = torch.outer(torch.arange(T), torch.arange(d)).unsqueeze(1)",
    "axis_of_queries_and_keys": ".unbind(2)",
    "token_without_samples": "[token.expand(x.size(0), 1, -1), x]",
    "shared_heads_of_keys": "(q, k, k, enable_gqa=True)",
    "wider_input_of_a_recurrent_layer": "nn.GRU(D + H, H, batch_first=True)",
    "channels_of_a_skip": "nn.Conv2d(2 * C, C, 1)",
    "pooled_picture": "self.head(self.pool(x).flatten(1))",
    "lengths_of_samples": "(torch.arange(T) < length[:, None])",
    "attention_with_its_weights": "layer(x, x, x)[0]",
    "mask_of_samples_for_heads": "closed.repeat_interleave(self.attention.num_heads, dim=0)",
    "mask_of_heads_for_samples": "closed.repeat(x.size(0), 1, 1)",
    "mask_of_samples_with_an_axis_of_heads": "closed.expand(-1, self.attention.num_heads, -1, -1).flatten(0, 1)",
    "mask_of_samples_and_heads": "closed.flatten(0, 1)",
    "angles_of_halves": "(torch.arange(0, d, 2) / d))] * 2, dim=-1)",
    "angles_of_neighbours": "(torch.arange(0, d, 2) / d)).repeat_interleave(2, dim=-1)",
    "table_of_another_precision": "self.scale.to((x + x).dtype) * (x + x)",
    "input_of_another_precision": "self.layer(x.float())",
    "classes_of_32_bits": "(x.log_softmax(-1), y.long())",
    "rows_of_16_bits": "x.gather(1, y[:, None].long())",
    "mask_of_all_tokens": "length = before.shape[1]",
    "heads_of_all_tokens": "later.reshape(B, later.size(1), 2, d)",
    "padding_beside_heads": "keep[:, None, None, :]",
    "token_beside_places": "torch.randn(1, count + 1, D)",
    "angles_in_forward": "angles = torch.cat([torch.outer(",
    "token_of_another_precision": "self.token.expand(x.size(0), 1, -1).to(x.dtype)",
    "bias_of_heads_last": ".permute(2, 0, 1)).softmax(-1)",
    "tokens_mixed_without_a_transpose": "x + self.tokens(self.norm(x).transpose(1, 2)).transpose(1, 2)",
}


@pytest.mark.parametrize("name", FIRST)
def test_the_first_repair_of_what_people_ask_is_the_one_that_was_meant(name):
    with pytest.raises(user_factory.OwnCodeError) as raised:
        user_factory.trace(f"{of_moves.__name__}:{name}")
    assert FIRST[name] in tracer.explain(raised.value).fixes[0].diff()


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("angles_of_halves", "d * 2"),  # other angles
        ("padding_beside_heads", "keep[:, None, :, None]"),  # padding attended
        ("token_beside_places", "patch"),  # one place for all tokens
        ("input_of_another_precision", "self.scale.to("),
        ("bias_of_heads_last", ".transpose(0, 2)"),  # keys before queries
        ("tokens_mixed_without_a_transpose", "F.pad("),  # no mask
    ],
)
def test_a_repair_that_runs_and_computes_something_else_is_left_out(name, wrong):
    with pytest.raises(user_factory.OwnCodeError) as raised:
        user_factory.trace(f"{of_moves.__name__}:{name}")
    fixes = tracer.explain(raised.value).fixes
    assert fixes and not any(wrong in fix.diff() or wrong in fix.message for fix in fixes)


def test_a_product_does_not_sum_over_the_samples():
    def similarity(images, texts):
        return images.relu() @ texts.relu()

    fixes = tracer.explain(failure(similarity, (torch.randn(4, 6), torch.randn(4, 6)), symbols={"B": 0})).fixes
    assert "images.relu() @ texts.relu().T" in fixes[0].diff()


def test_a_table_of_positions_is_not_cut_as_a_square_mask_is():
    class Embedding(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.randn(1, 16, 8))

        def forward(self, grid):
            return grid.relu() + self.table

    fixes = tracer.explain(failure(Embedding(), (torch.randn(2, 8, 4, 4),), symbols={"B": 0})).fixes
    assert "grid.relu().flatten(2).transpose(1, 2) + self.table" in fixes[0].diff()
    assert not any("table[...," in fix.diff() for fix in fixes)


class Attend(nn.Module):
    def __init__(self, D, E, h):
        super().__init__()
        self.h, self.q, self.k, self.v = h, nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)
        self.bias = nn.Parameter(torch.zeros(E))

    def heads(self, x):
        return x.view(x.size(0), x.size(1), self.h, -1).transpose(1, 2)

    def forward(self, x, context):
        q = self.heads(self.q(x))
        k = self.heads(self.k(context + self.bias))
        v = self.heads(self.v(context + self.bias))
        return (q @ k.mT).softmax(-1) @ v


def test_layers_that_are_built_alike_are_repaired_together_and_those_that_fit_are_left():
    pair = torch.randn(2, 5, 8), torch.randn(2, 6, 12)
    fix = tracer.explain(failure(Attend(8, 12, 2), pair, symbols={"B": 0})).fixes[0]
    assert fix.message == "build `k` as `Linear(12, 8)`, and the same for `v`"
    assert fix.diff().count("nn.Linear(12, D)") == 2 and "self.q, self.k, self.v = h, nn.Linear(D, D)" in fix.diff()


def test_numbers_of_a_token_are_not_left_out_for_heads_that_do_not_divide_them():
    class Heads(nn.Module):
        def __init__(self, h):
            super().__init__()
            self.h = h

        def forward(self, x):
            return x.view(x.size(0), x.size(1), self.h, x.size(2) // self.h).sum(2)

    fixes = tracer.explain(failure(Heads(5), (torch.randn(2, 7, 12),))).fixes
    assert "choose `h` = " in fixes[0].message and not any("leave out" in fix.message for fix in fixes)


def test_a_repair_that_confuses_axes_or_samples_has_the_finding_beside_it():
    class Scores(nn.Module):
        def forward(self, q, k, v):
            weights = torch.softmax(torch.einsum("bkd,bqd->bkq", k, q), -1)
            return weights @ v

    module, args = Scores(), tuple(torch.randn(2, length, 6) for length in (5, 7, 7))
    explanation = tracer.explain(failure(module, args))
    fix = explanation.fixes[0]
    assert "transpose(1, 2)" in fix.diff() and "softmax axis" in fix.doubts[0]
    assert fix.caution.startswith("It may compute something else than was meant.") and fix.doubts[0] in fix.caution
    assert fix.caution in explanation.text() and explanation.plain()["fixes"][0]["caution"] == fix.caution
    assert "It may compute something else" in explanation._repr_html_()


def test_a_repair_runs_where_all_symbols_are_changed():
    class Letters(nn.Module):
        def forward(self, x, w):
            return torch.einsum("btd,ed->bte", x, w)

    args = torch.randn(2, 5, 8), torch.randn(8, 5)
    (fix,) = tracer.explain(failure(Letters(), args, symbols={"B": ("x", 0), "T": ("x", 1)})).fixes
    assert "btd,de->bte" in fix.diff() and fix.sizes[0]["T"] != fix.sizes[1]["T"] and not fix.doubts


def test_the_mask_of_samples_is_repeated_for_each_head_and_the_bias_of_heads_for_each_sample():
    class Folded(nn.Module):
        def __init__(self, h):
            super().__init__()
            self.h, self.bias = h, nn.Parameter(torch.randn(h, 1, 1))

        def forward(self, x, keep=None):
            B, T, _ = x.shape
            heads = x.view(B, T, self.h, -1).transpose(1, 2).reshape(B * self.h, T, -1)
            return heads + (self.bias if keep is None else keep)

    module, x = Folded(2), torch.randn(3, 5, 8)
    bias = tracer.explain(failure(module, (x,), symbols={"B": 0})).fixes[0].diff()
    mask = tracer.explain(failure(module, (x, torch.rand(3, 5, 1)), symbols={"B": 0})).fixes[0].diff()
    assert ".repeat(B, 1, 1)" in bias and ".repeat_interleave(self.h, dim=0)" in mask


@pytest.mark.parametrize("name", ["labels_of_all_tokens", "labels_beside_transposed_scores"])
def test_labels_lose_their_first_token_where_scores_lost_their_last(name):
    with pytest.raises(user_factory.OwnCodeError) as raised:
        user_factory.trace(f"{of_moves.__name__}:{name}")
    assert "`y[:, 1:]`" in tracer.explain(raised.value).fixes[0].message


def test_a_layer_that_refuses_its_arguments_shows_them_as_they_arrived():
    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            self.transformer, self.query = nn.Transformer(8, 2, 1, 1, 8), nn.Parameter(torch.randn(4, 8))

        def forward(self, x):
            return self.transformer(x.flatten(2).permute(2, 0, 1), self.query.unsqueeze(1))

    explanation = tracer.explain(failure(Detector().eval(), (torch.randn(2, 8, 3, 2),), symbols={"B": 0}))
    assert [operand.shape for operand in explanation.operands] == [(6, 2, 8), (4, 1, 8)]
    assert "self.query.unsqueeze(1).expand(-1, x.size(0), -1)" in explanation.fixes[0].diff()


class Patches(nn.Module):
    def __init__(self, task):
        super().__init__()
        self.patch, self.norm, self.task = nn.Conv2d(3, 10, 4, 4), nn.LayerNorm(10), task

    def forward(self, x):
        if self.task == "norm":
            return self.norm(self.patch(x))
        return self.patch(x).flatten(2).reshape(len(x), -1, 14, 14)


@pytest.mark.parametrize(
    ("task", "repair"),
    [
        ("norm", "self.norm(self.patch(x).flatten(2).transpose(1, 2))"),
        ("grid", "reshape(len(x), -1, x.size(2) // 4, x.size(3) // 4)"),
    ],
)
def test_a_picture_becomes_tokens_and_tokens_a_grid_of_its_sides(task, repair):
    explanation = tracer.explain(failure(Patches(task), (torch.randn(2, 3, 16, 12),)))
    assert repair in explanation.fixes[0].diff() and not explanation.fixes[0].doubts, explanation


def test_transposed_tensors_of_a_state_dict_are_named_and_those_whose_shape_can_not_tell():
    state = {
        "a.weight": torch.randn(4, 6),
        "a.bias": torch.randn(6),
        "b.weight": torch.randn(6, 6),
        "b.bias": torch.randn(6),
    }
    module = nn.ModuleDict({"a": nn.Linear(4, 6), "b": nn.Linear(6, 6)})
    with pytest.raises(RuntimeError) as raised:
        module.load_state_dict(state)
    explanation = tracer.explain(raised.value)
    assert (
        "`a.weight` is [4, 6] there and [6, 4] here" in explanation.message
        and "`b.weight`: square" in explanation.message
    )
    loaded = eval(explanation.fixes[0].edits[0].text, {"state": state})
    module.load_state_dict(loaded)
    assert torch.equal(module["b"].weight, state["b.weight"].t()) and explanation.fixes[0].doubts


class OddWaves(nn.Module):
    def __init__(self, width):
        super().__init__()
        table = torch.zeros(9, width)
        rate = torch.arange(0, width, 2) / width
        table[:, 0::2] = torch.sin(torch.arange(9)[:, None] * rate)
        table[:, 1::2] = torch.cos(torch.arange(9)[:, None] * rate)
        self.register_buffer("table", table)


def test_a_constructor_that_writes_too_many_columns_is_repaired():
    with pytest.raises(RuntimeError) as raised:
        OddWaves(7)
    explanation = tracer.explain(raised.value)
    assert "`1::2` takes ⌊7/2⌋ = 3 of the 7 places of axis 1, and the right side has ⌈7/2⌉ = 4." in explanation.message
    (fix,) = explanation.fixes
    assert "rate)[:, :width // 2]" in fix.diff() and fix.sizes == ({"width": 7}, {"width": 8})


def test_an_explanation_shows_shapes_and_no_numbers_of_tensors():
    pair = torch.randn(40, 5, 8), torch.randn(40, 5, 8)
    with pytest.raises(ValueError, match="axis 7") as raised:
        tracer.trace(lambda x, y: x + y, *pair, symbols={"T": 7})
    text = tracer.explain(raised.value).message
    assert "tensor(" not in text and "pair = (tensor [40, 5, 8], tensor [40, 5, 8])" in text


def test_every_rule_of_a_clash_is_for_functions_of_its_own():
    names = Counter(name for rule in clashes.RULES for name in rule.functions)
    assert [name for name, count in names.items() if count > 1] == []


def test_shapes_are_in_symbols_with_the_clash_marked():
    def build_module(sizes):
        return build(failing.hidden_layers, **sizes)

    module, args = build_module({"B": 2, "T": 5, "D": 8})
    symbols = {"B": 0, "T": 1, "D": ("up.weight", 1)}
    explanation = tracer.explain(failure(module, args, symbols=symbols, build=build_module))
    x, weight = explanation.operands
    assert x.symbols() == "[B, T, ▸3·D◂]" and x.numbers() == "[2, 5, ▸24◂]"
    assert weight.symbols() == "[D, ▸4·D◂]" and weight.name == "down.weight"
    assert "Linear(4·D, D)" in explanation.message and explanation.module == "down"
    assert explanation.fixes[0].message == "build `down` as `Linear(3·D, D)`"
    assert explanation.step.symbolic == ("B", "T", "3*D") and explanation.step.source.line == explanation.source.line
    assert "relu" in x.maker and x.source.line == explanation.source.line
    assert all(message.startswith("mat1 and mat2") for _, message in explanation.messages)


def test_a_plain_call_is_explained_too():
    module, args = build(failing.product)
    with pytest.raises(RuntimeError) as raised:
        module(*args)
    assert tracer.explain(raised.value).fixes[0].edits[0].text == "k.transpose(-2, -1)"


def test_a_model_of_pytorchs_own_modules_has_the_line_that_calls_it():
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(5, 2))
    with pytest.raises(RuntimeError) as raised:
        model(torch.randn(4, 8))
    explanation = tracer.explain(raised.value)
    assert explanation.source.text == "model(torch.randn(4, 8))" and explanation.module == "2"
    assert [fix.message for fix in explanation.fixes] == ["build `2` as `Linear(6, 2)`", "build `0` as `Linear(8, 5)`"]
    assert all(len(fix.sizes) == 2 for fix in explanation.fixes) and model[2].in_features == 5


def test_nothing_of_the_module_is_changed():
    module, args = build(failing.hidden_layers)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    methods, layers = dict(vars(failing.Hidden)), {name: type(layer) for name, layer in module.named_modules()}
    state = torch.get_rng_state()
    tracer.explain(failure(module, args))
    assert vars(failing.Hidden) == methods and {n: type(m) for n, m in module.named_modules()} == layers
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state) and module.down.in_features == 32


class Block(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(D, D)

    def forward(self, x):
        return x + self.down(self.up(x))


def test_a_repair_holds_in_all_blocks():
    explanation = tracer.explain(failure(nn.Sequential(*(Block(4) for _ in range(3))), (torch.randn(2, 3, 4),)))
    assert explanation.module == "0.down" and len(explanation.fixes) == 2


def scale(x, y):
    return x * y


class Helper(nn.Module):
    def forward(self, x, y):
        return scale(x, y)


def test_a_function_that_the_module_calls_is_repaired_too():
    explanation = tracer.explain(failure(Helper(), (torch.randn(2, 5, 8), torch.randn(2, 5))))
    assert explanation.source.text == "return x * y"
    assert (
        explanation.fixes[0].edits[0].text == "y.unsqueeze(2)" or "unsqueeze(-1)" in explanation.fixes[0].edits[0].text
    )


def test_a_function_around_a_module_is_repaired_on_a_copy():
    layer = nn.Linear(8, 11)

    def step(x, target):
        return nn.functional.cross_entropy(layer(x), target)

    explanation = tracer.explain(failure(step, (torch.randn(2, 5, 8), torch.randint(11, (2, 5)))))
    assert explanation.kind == "loss" and explanation.fixes and type(layer) is nn.Linear


def test_the_text_and_the_page_say_the_same():
    explanation = why("hidden_layers")
    text, page = str(explanation), explanation._repr_html_()
    for part in (explanation.message, "down.weight", "nn.Linear(3 * D, D)", explanation.error):
        assert part in text
    assert "<mark>24</mark>" in page and "nn.Linear(3 * D, D)" in page and "▸" not in page


def test_a_shape_of_an_attacker_is_text_in_a_notebook():
    module, args = build(failing.attribute_typo)
    error = failure(module, args)
    error.args = ("<script>alert(1)</script>",)
    assert "<script>alert" not in tracer.explain(error)._repr_html_()


@pytest.mark.parametrize("value", ["x", ValueError("nothing of a forward")])
def test_what_is_no_failed_forward_is_refused(value):
    with pytest.raises(ValueError, match="explain"):
        tracer.explain(value)


def test_the_name_is_public_and_light():
    assert "explain" in dir(tracer) and callable(tracer.explain) and "tracer.diagnostics.failures" in sys.modules
