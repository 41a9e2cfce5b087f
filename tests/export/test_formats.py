"""Text formats of a trace: golden texts, the JSON contract, and text of strangers that stays text."""

import csv
import io
import json
import re
from dataclasses import replace
from itertools import pairwise

import pandas
import pytest

from tests.support.handmade import sample
from tracer import export
from tracer.export import rows, to_latex, to_markdown, to_table, verdicts
from tracer.record import Argument, Trace

HOSTILE = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>\x1b[2J \\input{/etc/passwd} $x$ | `a`"


def hostile() -> Trace:
    """Trace whose every text is hostile."""
    trace = sample()
    source = replace(trace.ops[0].source, file=HOSTILE, text=HOSTILE)
    words = {"title": HOSTILE, "why": HOSTILE, "note": HOSTILE, "source": source}
    steps = tuple(
        replace(step, id=f"{HOSTILE}{i}", latex=HOSTILE, symbol=HOSTILE, **words) for i, step in enumerate(trace.steps)
    )
    ops = tuple(
        replace(op, module=HOSTILE, op=HOSTILE, function=HOSTILE, source=source, note=HOSTILE) for op in trace.ops
    )
    symbols = tuple(replace(symbol, meaning=HOSTILE) for symbol in trace.symbols)
    opened = tuple(
        replace(one, primitives=tuple(replace(p, name=HOSTILE, within=HOSTILE) for p in one.primitives), note=HOSTILE)
        for one in trace.decompositions
    )
    modules = tuple(replace(one, path=HOSTILE, kind=HOSTILE, problem=HOSTILE) for one in trace.modules)
    argument = Argument(HOSTILE, HOSTILE)
    calls = tuple(replace(one, name=HOSTILE, module=HOSTILE, arguments=(argument,)) for one in trace.calls)
    words = {"model": HOSTILE, "weights": HOSTILE, "notes": (HOSTILE,), "modules": modules, "calls": calls}
    return replace(trace, **words, steps=steps, ops=ops, symbols=symbols, decompositions=opened)


def test_the_formats_of_the_command_line_exist():
    assert set(export.FORMATS) >= {"table", "markdown", "latex", "csv", "json", "html"}


@pytest.mark.parametrize("level", export.LEVELS)
@pytest.mark.parametrize("format", export.FORMATS)
def test_every_format_renders_every_level_and_nothing(format, level):
    for trace in (sample(), hostile(), Trace("empty", ())):
        text = export.render(trace, level, format)
        assert text.endswith("\n") and not text.endswith("\n\n")
        assert "\x1b" not in text
        text.encode("utf-8")


def test_unknown_levels_and_formats_are_quoted():
    with pytest.raises(ValueError, match="'opps' is not a level, expected one of modules, steps, calls, ops, prim"):
        export.render(sample(), "opps")
    with pytest.raises(ValueError, match=r"'pdf' is not a format, expected one of .*csv, html, json"):
        export.render(sample(), "ops", "pdf")


def test_a_trace_without_primitives_says_how_to_make_one():
    bare = sample(decompositions=())
    for show in (export.table, export.render):
        with pytest.raises(ValueError, match=r"without primitives: `python -m tracer trace NAME --level primitives"):
            show(bare, "primitives")


def test_a_trace_without_steps_says_where_its_operations_are():
    assert export.render(Trace("x", ()), "steps").endswith("This run has no steps; --level ops shows its operations.\n")


def test_a_trace_without_modules_or_calls_says_so():
    for level in ("modules", "calls"):
        with pytest.raises(ValueError, match=f"without {level}: run the model again"):
            export.render(sample(**{level: ()}), level)


def test_modules_in_the_terminal():
    lines = export.render(sample(), "modules", "table").split("\n\n")[1].splitlines()
    cells = [re.split("  +", line.strip()) for line in lines]
    assert cells[0] == ["module", "class", "shape", "here", "params", "flops", "ops", "verdict"]
    assert [line.index(line.strip()[0]) for line in lines[1:]] == [0, 2, 4, 2]
    assert cells[2][-1] == "refuted: it <i>fails</i> | $x$" and cells[4][-4:] == ["28", "48", "1", "verified"]
    assert cells[3][:2] == ["block1.drop (call 2)", "Dropout"]


def test_calls_are_written_with_the_arguments_of_their_schema():
    assert [call.text for call in sample().calls] == ["matmul(self, other)", "linear(input, weight, <b>=[1, 2])"]
    frame = sample().table("calls")
    assert list(frame["ops"]) == ["0", "1"] and list(frame["steps"]) == ["block1.attention.scores", "head.logits"]
    tree = json.loads(export.render(sample(), "calls", "json"))["calls"][1]
    assert tree["arguments"][3] == {"name": "dim", "value": "-1", "default": True, "tensors": []}


def test_steps_in_the_terminal():
    steps = tuple(replace(step, latex=step.symbol) for step in sample().steps)
    cost = {"params_symbolic": "28", "flops_symbolic": "4*D"}
    trace = sample(model="hand", steps=steps, symbols=sample().symbols[:5], **cost)
    assert (
        export.render(trace, "steps", "table")
        == r"""
hand: seeded random weights
B=1, H=4, W=4, P=2, N=4=H·W/P²
28 parameters; 348 FLOPs = 4·D
solved with B held at 1

step                     symbol  shape             here               error  equation
block1.attention.scores  S       [B, h, N+1, N+1]  [1, 2, 5, 5]     1.5e-07  \mathbf{S}
head.logits              Z       [B, ?]            [1, 4]        recomputed  \mathbf{Z}
""".removeprefix("\n")
    )


def test_accents_take_no_column():
    assert to_table.align([{"a": "X\N{COMBINING TILDE}", "b": "1"}, {"a": "XY", "b": "2"}]) == (
        "a   b\nX\N{COMBINING TILDE}   1\nXY  2"
    )


def test_columns_of_the_terminal_are_aligned():
    lines = export.render(sample(), "ops", "table").split("\n\n")[1].splitlines()
    starts = [lines[0].index(name) for name in ("module", "op ", "shape", "here", "dtype", "step", "source")]
    for line in lines[1:]:
        assert all(line.ljust(200)[start - 1] == " " for start in starts)


def test_steps_in_markdown():
    lines = export.render(sample(), "steps", "markdown").splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 4 and len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1
    assert lines[0] == r"## hand \<script\>alert('model')\</script\>"
    assert r"$\mathbf{Z} = \mathbf{X}_f \mathbf{W} + \mathbf{b}$" in table[3] and r"Too large \| not" in table[3]


def test_bars_in_markdown_equations_do_not_end_the_cell():
    assert to_markdown.math(r"|x| \|y\| $") == r"$\vert x\vert  \Vert y\Vert  $"


def test_csv_reads_back():
    for level, name, values in (
        ("steps", "shape", ["[1, 2, 5, 5]", "[1, 4]"]),
        ("ops", "flops", ["300", "48"]),
        ("primitives", "error", ["", "2.5e-07", ""]),
    ):
        lines = list(csv.DictReader(io.StringIO(export.render(sample(), level, "csv"))))
        assert [line[name] for line in lines] == values
    assert export.render(sample(), "steps", "csv").splitlines()[0].startswith("id,stage,layer,title,symbol,latex")
    assert [line["layer"] for line in csv.DictReader(io.StringIO(export.render(sample(), "steps", "csv")))] == ["0", ""]


def test_json_keeps_the_contract():
    tree = json.loads(export.render(sample(), "steps", "json"), parse_constant=lambda text: pytest.fail(text))
    known = {"model", "symbols", "totals", "steps", "ops", "returned", "result", "notes", "opened_error"}
    assert set(tree) == {*known, "modules", "calls", "decompositions"}
    bare = json.loads(export.render(sample(modules=(), calls=(), decompositions=()), "steps", "json"))
    assert set(bare) == known
    assert tree["symbols"] == {"B": 1, "H": 4, "W": 4, "P": 2, "N": 4, "D": 6, "h": 2, "d_k": 3, "K": 4}
    assert tree["totals"] == {
        "params": 28,
        "params_symbolic": "D*K + K",
        "flops": 348,
        "flops_symbolic": "2*B*D*K + 2*B*D*(N + 1)**2",
    }
    assert tree["steps"][0] == {
        "id": "block1.attention.scores",
        "stage": "attention",
        "layer": 0,
        "role": "scores",
        "symbol": r"\mathbf{S}",
        "latex": r"\mathbf{S} = \frac{\mathbf{Q} \mathbf{K}^{\top}}{\sqrt{d_k}}",
        "reads": ["input image"],
        "symbolic": ["B", "h", "N + 1", "N + 1"],
        "shape": [1, 2, 5, 5],
        "error": 1.5e-07,
        "margin": 0.125,
        "verdict": "verified",
        "checked": 0,
        "replayed": "",
        "wrong": None,
        "recomputed": False,
        "source": {
            "file": "tracer/spec/blocks.py",
            "line": 38,
            "text": "scores = q @ k.transpose(-2, -1) / sqrt(d_k)  # [B, h, S, S]",
        },
        "ops": [0],
        "why": "How much each query asks of each key.",
        "note": "",
    }
    last = tree["steps"][1]
    assert (last["layer"], last["error"], last["source"], last["recomputed"]) == (None, None, None, True)
    assert (last["role"], last["reads"]) == (
        "",
        ["block1.attention.scores", "parameter head.weight", "parameter head.bias"],
    )
    assert tree["ops"][1] == {
        "index": 1,
        "module": "head",
        "op": "aten.addmm",
        "source": None,
        "inputs": [
            {"shape": [1, 6], "symbolic": ["B", "?"], "dtype": "float32", "from": 0},
            {"shape": [6, 4], "symbolic": None, "dtype": "float32", "from": "head.weight"},
        ],
        "outputs": [{"shape": [1, 4], "symbolic": ["B", "K"], "dtype": "float32", "from": 1}],
        "params": 28,
        "flops": 48,
        "step": "head.logits",
    }
    assert tree["result"] == {"kind": "classes", "top": [["cat", 0.75], ["dog", "nan"]], "list": [1, 2.5, None, True]}


def test_json_of_primitives():
    opened = json.loads(export.render(sample(), "primitives", "json"))["decompositions"][1]
    assert (opened["op"], opened["error"], opened["note"]) == (1, 2.5e-7, "")
    assert opened["primitives"][1] == {
        "name": "add",
        "within": "_inner/_<b>",
        "inputs": [{"shape": [1, 4], "symbolic": ["B", "K"], "dtype": "float32", "from": 0}],
        "outputs": [{"shape": [1, 4], "symbolic": ["B", "K"], "dtype": "float32", "from": 1}],
    }


def test_primitives_in_the_terminal():
    """An op's index, name, error and note stand once, at its first primitive."""
    lines = export.render(sample(), "primitives", "table").split("\n\n")[1].splitlines()
    cells = [re.split("  +", line.strip()) for line in lines]
    assert cells[0] == [
        *("index", "module", "op", "number", "primitive", "within", "shape", "here", "dtype", "error", "note")
    ]
    shape = "[B, h, N+1, d_k], [B, h, N+1, d_k] → [B, h, N+1, N+1]"
    assert cells[1][:6] == ["0", "block1.attention", "aten.bmm", "0", "bmm", shape] and cells[1][-1] == "elementary"
    assert cells[2][:5] == ["1", "head", "aten.addmm", "0", "mm"] and cells[2][-1] == "2.5e-07"
    assert cells[3] == ["1", "add", "_inner/_<b>", "[B, K] → [B, K]", "[1, 4] → [1, 4]", "float32"]


def test_primitives_as_a_data_frame():
    frame = sample().table("primitives")
    assert list(frame["primitive"]) == ["bmm", "mm", "add"] and list(frame["index"]) == [0, 1, 1]
    assert frame["error"][1] == 2.5e-7 and frame["error"][[0, 2]].isna().all()
    assert frame["makers"][0] == "input 0, input 1" and frame["makers"][2] == "0"
    assert list(export.table(Trace("empty", ()), "primitives").columns) == list(frame.columns)


def test_latex_escapes_text():
    assert to_latex.text("50 % of a_b & {c} #1 $x$ ~^\\") == (
        r"50 \% of a\_b \& \{c\} \#1 \$x\$ \textasciitilde{}\textasciicircum{}\textbackslash{}"
    )


@pytest.mark.parametrize("level", export.LEVELS)
def test_latex_is_balanced(level):
    text = export.render(sample(), level, "latex")
    bare = re.sub(r"\\[\\{}&%$#_]", "", text)
    assert bare.count("{") == bare.count("}") and bare.count("$") % 2 == 0
    assert re.findall(r"\\begin{(\w+\*?)}", text) == re.findall(r"\\end{(\w+\*?)}", text)
    body = bare.split(r"\begin")[1]
    assert len({line.count("&") for line in body.splitlines() if "&" in line}) == 1


def test_latex_of_steps_is_aligned_at_the_equals_sign():
    assert r"\mathbf{Z} &= \mathbf{X}_f \mathbf{W} + \mathbf{b} && [B,\ ?] && 1 \times 4" in export.render(
        sample(), "steps", "latex"
    )


def test_tables_as_data_frames():
    ops, steps = export.table(sample()), sample().table("steps")
    assert isinstance(ops, pandas.DataFrame) and list(ops["flops"]) == [300, 48]
    assert ops["outputs"][0] == "[B, h, N+1, N+1]" and ops["source"][0] == "tracer/spec/blocks.py:38"
    assert list(steps["id"]) == ["block1.attention.scores", "head.logits"]
    assert steps["error"][0] == 1.5e-7 and pandas.isna(steps["error"][1]) and pandas.isna(steps["layer"][1])
    assert steps["layer"][0] == 0 and str(steps["layer"].dtype) == "Int64"
    assert list(export.table(Trace("empty", ())).columns) == list(ops.columns)


def test_suffixes_give_formats_and_clash_nowhere():
    for path, format in (
        ("a.md", "markdown"),
        ("b.TEX", "latex"),
        ("c.csv", "csv"),
        ("d.html", "html"),
        ("e.txt", "table"),
    ):
        assert export.format_of(path) == format
    assert export.format_of("a.pdf") is None
    suffixes = sorted(suffix for name in export.FORMATS for suffix in export._format(name).SUFFIXES)
    assert all(one != other for one, other in pairwise(suffixes))


def test_a_trace_says_itself_in_one_line():
    said = repr(sample())
    assert said.startswith("<Trace of") and ": 2 ops, 2 steps; B=1, " in said
    assert "\n" not in said and len(said) < 200
    assert "\n" not in repr(replace(sample(), model="a\nb"))


@pytest.mark.parametrize(
    ("facts", "said", "cell"),
    [
        ({"checked": 0}, "✓ verified on this run", "2.5e-01"),
        ({"checked": 1}, "✓ verified on this run and 1 other", "2.5e-01, verified on this run and 1 other"),
        ({"checked": 3}, "✓ verified on this run and 3 others", "2.5e-01, verified on this run and 3 others"),
        ({"margin": 2.0}, "✕ refuted on this run", "2.5e-01 REFUTED on this run"),
        ({"checked": 2, "refuted": True}, "✕ refuted on another run", "REFUTED on another run"),
        ({"pending": True}, "pending", "pending"),
        ({"recorded": True}, "recorded", "recorded"),
        ({"recomputed": True}, "recomputed", "recomputed"),
        ({"margin": None, "error": None}, "not executed", "–"),
    ],
)
def test_a_verdict_is_said_with_the_runs_that_it_was_found_on(facts, said, cell):
    step = replace(sample().steps[0], **({"margin": 0.5, "error": 0.25, "recomputed": False, "pending": False} | facts))
    assert (verdicts.sentence(step), rows.proof(step)) == (said, cell)
