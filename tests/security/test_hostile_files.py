"""Files of strangers: hostile fields and junk in every place are shown safely, or refused in a sentence."""

import json
import random

import pytest

from pages.ui import texts
from tests.serialization.test_serialization import refusal, rewritten
from tests.support.handmade import sample
from tracer import export, serialization
from tracer.record.steps import mathematics
from tracer.spec import checkpoints


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "sample.safetensors"
    serialization.save(sample(), path)
    return path.read_bytes()


def put(value, *path):
    """Return a change that puts a value at a path of the JSON."""

    def change(fields):
        for key in path[:-1]:
            fields = fields[key]
        fields[path[-1]] = value

    return change


HOSTILE = {
    "unknown field": put(1, "secret"),
    "unknown field inside": put("x", "ops", 0, "run"),
    "missing field": lambda fields: fields.pop("model"),
    "missing field inside": lambda fields: fields["steps"][0].pop("latex"),
    "a number for text": put(3, "model"),
    "text for a number": put("28", "params"),
    "true for a number": put(True, "flops"),
    "a fraction for a number": put(1.5, "params"),
    "a number of more than 64 bits": put(1 << 64, "params"),
    "negative parameters": put(-1, "params"),
    "half a letter": put("\ud800", "model"),
    "a list for an object": put([], "ops", 0),
    "an object for a list": put({}, "ops"),
    "null for a list": put(None, "ops"),
    "negative size": put([-1, 4], "ops", 1, "outputs", 0, "shape"),
    "text as a size": put(["1", 4], "ops", 1, "outputs", 0, "shape"),
    "symbols of another rank": put(["B"], "ops", 1, "outputs", 0, "symbolic"),
    "symbolic code": put(["B", "__import__('os').system('true')"], "ops", 1, "outputs", 0, "symbolic"),
    "a symbol that the trace doesn't have": put(["B", "T"], "ops", 1, "outputs", 0, "symbolic"),
    "a symbolic size of another value": put(["B", "D"], "ops", 1, "outputs", 0, "symbolic"),
    "a formula of another value": put("D*K", "params_symbolic"),
    "a derived size of another value": put("D + h", "symbols", 4, "equals"),
    "a root of a negative number": put("sqrt(0 - 4)", "flops_symbolic"),
    "a root that is not real here": put("sqrt(B - D)", "flops_symbolic"),
    "a division by zero at this run": put("D/(B - 1)", "params_symbolic"),
    "a tower of powers": put("9**9**9**9", "flops_symbolic"),
    "nested powers": put("((((D**9)**9)**9)**9)**9", "params_symbolic"),
    "a division by zero": put("D/0", "params_symbolic"),
    "deep brackets": put("(" * 900 + "D" + ")" * 900, "params_symbolic"),
    "a long formula": put("D+" * 5000 + "D", "params_symbolic"),
    "an op index out of order": put(7, "ops", 0, "index"),
    "a maker beyond the ops": put(99, "ops", 0, "inputs", 0, "maker"),
    "a step of an unknown op": put([0, 99], "steps", 0, "ops"),
    "a negative op": put([-1], "steps", 0, "ops"),
    "an op of an unknown step": put("nowhere", "ops", 0, "step"),
    "two steps of one id": put("head.logits", "steps", 0, "id"),
    "a negative layer": put(-2, "steps", 0, "layer"),
    "a negative error": put(-1.0, "steps", 0, "error"),
    "a negative margin": put(-1.0, "steps", 0, "margin"),
    "unbalanced LaTeX": put(r"\frac{a}{b", "steps", 0, "latex"),
    "LaTeX that reads files": put(r"\input{/etc/passwd}", "steps", 0, "latex"),
    "LaTeX that runs programs": put(r"\immediate\write18{true}", "steps", 1, "symbol"),
    "LaTeX that leaves the equation": put(r"x$ \textbf{y} $z", "steps", 1, "latex"),
    "LaTeX that ends the document": put(r"\end{document}", "steps", 1, "latex"),
    "LaTeX that comments out": put("x % y", "steps", 1, "latex"),
    "a letter that reads files": put([{"symbol": r"\input{x}", "of": "input x"}], "steps", 0, "names"),
    "a letter that fetches a picture": put([{"symbol": "x", "of": "input `![](//x.y/z)`"}], "steps", 0, "names"),
    "an operand of three": put([], "steps", 0, "product"),
    "a symbol that is code": put("B; import os", "symbols", 0, "name"),
    "one symbol twice": put("B", "symbols", 2, "name"),
    "an attention of an unknown op": put(5, "attentions", 0, "op"),
    "an attention without queries": put("gone", "attentions", 0, "q"),
    "an attention of other sizes": put(6, "attentions", 0, "keys"),
    "an attention of flags": put("flags", "attentions", 0, "q"),
    "an attention of other heads": put(3, "attentions", 0, "heads"),
    "an unknown link": put([["from_file", ["/etc/passwd"]]], "attentions", 0, "chain"),
    "a link without its tensor": put([["add", ["scores", "gone"]]], "attentions", 0, "chain"),
    "a link with too few arguments": put([["add", []]], "attentions", 0, "chain"),
    "a link to a tensor of another shape": put([["add", ["scores", "half"]]], "attentions", 0, "chain"),
    "a link to itself": put([["add", ["scores", {"list": []}]]], "attentions", 0, "chain"),
    "pieces of other sizes": put([["pieces", {"tuple": [5, 4]}]], "attentions", 0, "chain"),
    "pieces of endless sizes": put([["pieces", {"tuple": [1 << 62, 1 << 62]}]], "attentions", 0, "chain"),
    "a sink without a tensor": put([["cat", {"tuple": ["scores", 1.0]}]], "attentions", 0, "chain"),
    "a sink as wide as the text": put([["cat", {"tuple": ["scores", "logits"]}]], "attentions", 0, "chain"),
    "heads mixed by what is not a matrix": put([["heads", {"tuple": ["scores", "q"]}]], "attentions", 0, "chain"),
    "heads mixed by nothing": put([["heads", {"tuple": ["scores"]}]], "attentions", 0, "chain"),
    "primitives of an op that is not there": put(2, "decompositions", 1, "op"),
    "a module around itself": put(1, "modules", 1, "around"),
    "a module whose operations are not there": put(3, "modules", 0, "last"),
    "a module outside the one around it": put(2, "modules", 2, "last"),
    "a module that takes what no operation made": put(7, "modules", 1, "inputs", 0, "maker"),
    "a module of another size": put([1, 5], "modules", 3, "outputs", 0, "shape"),
    "a module of too long a name": put("x" * 101, "modules", 0, "kind"),
    "a call that ends before it begins": put(0, "calls", 1, "last"),
    "a call of another size": put([3, 4], "calls", 1, "arguments", 0, "tensors", 0, "shape"),
    "a step inside of what is not there": put(2, "steps", 1, "inside"),
    "primitives of another op": put(1, "decompositions", 0, "op"),
    "a primitive by one that is not there": put(2, "decompositions", 1, "primitives", 1, "inputs", 0, "maker"),
    "a primitive of another size": put([1, 5], "decompositions", 1, "primitives", 0, "outputs", 0, "shape"),
    "a primitive that comes closer than exactly": put(-1.0, "decompositions", 1, "error"),
    "a primitive without a name": lambda fields: fields["decompositions"][0]["primitives"][0].pop("name"),
    "a picture without pixels": put("gone", "picture", "value"),
    "a picture of floats": put("q", "picture", "value"),
    "a picture turned over": put([4.0, 0.0, 0.0, 4.0], "picture", "crop"),
    "an endless picture": put([0.0, 0.0, "inf", 4.0], "picture", "crop"),
    "a picture of a million rows": put(1_000_000, "picture", "rows"),
    "a segment turned over": put(9, "segments", 0, "start"),
    "a tensor that isn't there": put("gone", "values", "q"),
    "a tensor by number": put(3, "values", "q"),
    "an untagged output": put({"__class__": "os.system"}, "output"),
    "a result with a tensor in it": put({"tensor": "output/logits"}, "result", "top"),
    "an output of unknown tensors": put({"tensor": "gone"}, "output"),
    "a list as a key": put({"dict": [[[], 1]]}, "output"),
    "not a number": put(float("nan"), "steps", 0, "error"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_fields(data, name):
    refusal(rewritten(data, HOSTILE[name]))


def empty_and_vast(data: bytes) -> bytes:
    """Return a file whose tensors are empty and state sizes whose product exceeds 64 bits."""
    length = int.from_bytes(data[:8], "little")
    header = {"__metadata__": json.loads(data[8 : 8 + length])["__metadata__"]}
    header["values/q"] = {"dtype": "F32", "shape": [0, *[7] * 40], "data_offsets": [0, 0]}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text


def test_an_empty_tensor_of_vast_sizes(data):
    refusal(empty_and_vast(data))
    with pytest.raises(ValueError, match="the file has a tensor whose shape PyTorch refuses"):
        checkpoints.read(empty_and_vast(data))


JUNK = (
    None,
    -1,
    0,
    3,
    1 << 62,
    0.5,
    "",
    "x",
    "?",
    "D",
    r"\frac",
    "\x1b[2J\n",
    [],
    {},
    [1],
    ["x"],
    True,
    "inf",
    [[1, 2]],
    {"a": 1},
)


def places(data, path=()):
    """Return the paths of all values inside JSON."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def test_whatever_is_opened_can_be_shown(data):
    """One value of the JSON replaced by junk, many times: refused in words, or shown in every view."""
    length = int.from_bytes(data[:8], "little")
    everywhere = list(places(json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["trace"])))
    chance = random.Random(0)
    shown = 0
    for _ in range(200):
        change = put(chance.choice(JUNK), *chance.choice(everywhere))
        try:
            trace = serialization.open(rewritten(data, change), name="upload.safetensors")
        except ValueError as error:
            assert "\n" not in str(error)
            continue
        shown += 1
        held = {"primitives": trace.decompositions, "modules": trace.modules, "calls": trace.calls}
        for level in export.LEVELS:
            if not held.get(level, True):
                continue
            export.table(trace, level)
            for format in export.FORMATS:
                export.render(trace, level, format).encode()
        for layer, record in enumerate(trace.attentions):
            if not record.problem and trace.attentions[0].part == record.part:
                trace.attention(layer)
    assert shown > 10


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[Sign in](https://evil.example/login)", r"[Sign in\](https\://evil.example/login)"),
        ("![x](https://evil.example/x.png)", r"!\[x\](https\://evil.example/x.png)"),
        ("[x][1] [1]: https://evil.example", r"[x\][1] [1\]: https\://evil.example"),
        ("www.evil.example a@evil.example", r"www\.evil.example a\@evil.example"),
        (":red-background[expired] :material/lock:", r"\:red-background[expired] \:material/lock:"),
        ("<https://evil.example>", r"<https\://evil.example>"),
        ("# Large", r"\# Large"),
        (r"$\rule{2000em}{1em}$", r"\$\\rule{2000em}{1em}\$"),
        (r"**bold**, `[a](b)`, $\sqrt{d_k}$, [B, T, D], 3:4", r"**bold**, `[a](b)`, $\sqrt{d_k}$, [B, T, D], 3:4"),
    ],
)
def test_text_of_a_file_leads_nowhere_and_its_mathematics_stays_in_its_line(text, shown):
    assert texts.plain(text) == shown


@pytest.mark.parametrize(
    "latex",
    [
        *(r"\rule[-500em]{2000em}{9em}", r"\hspace{-200em}x", r"\kern9em", r"a\\[9999em]b", r"a\\ [9em]b", "a^^b"),
        *(r"\futurelet\a\b", r"\color{red}x", r"\Huge x", r"\begin{document}", r"x\\" * 65, "x\\"),
    ],
)
def test_an_equation_that_leaves_its_line_is_refused(latex):
    with pytest.raises(ValueError, match="here: expected LaTeX"):
        mathematics(latex, "here")
