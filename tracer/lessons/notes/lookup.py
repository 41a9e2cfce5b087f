"""Lookup of each kind of `where` in `rows` in a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tracer import models
from tracer.lessons.notes import claims, errata, torchvision_block_counts
from tracer.lessons.notes.measurement import RUNS, STANDARD, Provider, close, verdict_of
from tracer.lessons.notes.statements import Finding, StatementRow, agreement, sections, shape_markdown
from tracer.lessons.tokenization import text
from tracer.record import Op, Primitive, Step, TensorRecord, verdict_within
from tracer.shapes import value_of
from tracer.symbols.notation import latex
from tracer.utils.errors import quote
from tracer.utils.text import percent, scientific, shape_numbers

SENTENCE = "reverse this one"
"""The sentence that is tokenized."""
BIAS_SLIP = "The run adds a bias here; the note's line has none."
"""Remark on a product with a matrix that has a bias, beside a statement without one."""
NOWHERE = "nothing of that name and shape ran"
LEGEND, BOTH_PATHS = "Symbols of this run", "Run both paths"
"""Labels on the page: of the sizes of a run, and of the button that runs an attention on the standard path."""


def look(row: StatementRow, place: str, run: Provider) -> Finding:
    """Return the result of one `where` of a statement in its run.

    Raise ValueError for an unknown kind.
    """
    kind, *words = place.split()
    if kind == "in":
        return look(row.at(place)._replace(run=words[0]), " ".join(words[1:]), run)
    if kind not in KINDS:
        raise ValueError(f"{quote(place)} is not a place of a statement, expected one of {', '.join(KINDS)}")
    return KINDS[kind](row.at(place), run, *words)


def address(row: StatementRow, **place: object) -> tuple[tuple[str, str], ...]:
    """Return the query parameters of a row's run, and of a position in it."""
    run = RUNS["torchvision" if row.run == STANDARD else row.run]
    batch = () if run.shipped else (("B", run.arguments["B"]),)  # as in the run that was looked up
    return (("model", run.model), *((name, str(value)) for name, value in (*run.options, *batch, *place.items())))


def scene(model: str, options: Iterable[tuple[str, object]], measured: claims.Measurement) -> Finding:
    """Return a claim measured on a model with options, with the page and the position that show it."""
    chosen = (("model", model), *((option, str(value)) for option, value in options))
    own = {"notes": (("of", model),), "tokens": ()}
    place = dict(own.get(measured.page, chosen)) | dict(measured.place)
    return Finding("measured", measured.text, measured.verdict, page=measured.page, place=tuple(place.items()))


def at(row: StatementRow, op: Op, zoom: str = "ops") -> dict[str, Any]:
    """Return the page and the position that show an op.

    They hold its number, or its step if the app runs the model at other sizes and so counts other ops.
    """
    if RUNS[row.run].shipped:
        return {"page": "operations", "place": address(row, zoom=zoom, op=op.index)}
    if zoom == "primitives":
        return {"page": "operations", "place": address(row, zoom=zoom, step=op.step)}
    if op.step is None:
        return {"page": "operations", "place": address(row, zoom=zoom)}
    return {"page": "trace", "place": address(row, step=op.step)}


def sizes(row: StatementRow, run: Provider, text: str) -> list[float]:
    """Return the sizes of a shape in a row, axes of size 1 left out."""
    values = {symbol.name: symbol.value for symbol in run(row.run)[1].symbols}
    return [size for size in (value_of(size, values) for size in text.split()) if size != 1]


def fits(row: StatementRow, run: Provider, shape: Sequence[int], shape_text: str | None = None) -> bool:
    """Return whether a shape is the row's, axes of size 1 left out; any shape fits a row without one."""
    shape_text = row.shape.rpartition(">")[2] if shape_text is None else shape_text
    return not shape_text or [size for size in shape if size != 1] == sizes(row, run, shape_text)


def both_fit(row: StatementRow, run: Provider, op: Op | Primitive) -> bool:
    """Return whether the input and output of an op or a primitive have the row's shapes."""
    taken, arrow, _ = row.shape.rpartition(">")
    return fits(row, run, op.outputs[0].shape) and (not arrow or fits(row, run, op.inputs[0].shape, taken))


def _record(tensor: TensorRecord) -> str:
    return shape_markdown(tensor.symbolic, tensor.shape)


def _step(row: StatementRow, run: Provider, name: str) -> Finding:
    trace = run(row.run)[1]
    match = next((step for step in trace.steps if step.id == name), None)
    if match is None:
        return Finding(f"step `{name}`", NOWHERE, "not")
    verdict, slip = (
        verdict_of(match.verdict == "verified" and "?" not in match.symbolic and fits(row, run, match.shape)),
        "",
    )
    evidence = f"${match.symbol}$ ∈ {shape_markdown(match.symbolic, match.shape)}; {agreement(match)}"
    if verdict == "holds" and (bias := _unnamed_bias(row, run, match)):
        verdict, slip, evidence = "sense", BIAS_SLIP, f"{evidence}; {bias}"
    return Finding(f"step **{match.title}**", evidence, verdict, match.latex, slip, "trace", address(row, step=name))


def _unnamed_bias(row: StatementRow, run: Provider, step: Step) -> str:
    """Return what the bias of a step changes, where the statement is a product with a matrix and names no bias; empty
    for any other step."""
    if (
        "=" not in row.text
        or not re.search(r"(?<![A-Za-z])W", row.text)
        or re.search(r"(?<![A-Za-z])b_|mathbf\{b", row.text)
    ):
        return ""
    model, trace = run(row.run)
    biases = [name for name in step.names if name.symbol.startswith(r"\mathbf{b}")]
    if not biases or (value := trace.value(step)) is None:
        return ""
    bias = model.net.get_parameter(biases[0].of.removeprefix("parameter "))
    share = float(bias.detach().abs().max() / value.abs().max())
    return f"without the bias ${biases[0].symbol}$ the line would be off by {percent(share)} of the largest"


def _head(row: StatementRow, run: Provider, step: str) -> Finding:
    """Look up the matrix of each head, and run it alone."""
    model, trace = run(row.run)
    inside = claims.attention.BlockAttention(model, trace)
    name = step.rpartition(".")[2]
    columns, linear = claims.attention.head_columns(inside, name), inside.linear(name)
    d_k = inside.step_value(name).shape[-1]
    so = close(columns.error) and not close(columns.shifted) and fits(row, run, (linear.in_features, d_k))
    symbol = next(each.symbol for each in trace.step(step).names if each.of == f"parameter {step}.weight")
    whole, own = (shape_numbers((linear.in_features, width)) for width in (linear.out_features, d_k))
    evidence = (
        f"each of the {inside.heads} heads has {d_k} columns of ${symbol}$ for itself, {own} of {whole}; they alone "
        f"give what ran in it, largest difference {scientific(columns.error)}. Columns that begin one place later are "
        f"off by {percent(columns.shifted)}"
    )
    return Finding(
        f"matrix of each head, in `{step}.weight`",
        evidence,
        verdict_of(so),
        page="trace",
        place=address(row, step=step),
    )


def _param(row: StatementRow, run: Provider, path: str) -> Finding:
    model, trace = run(row.run)
    shape = tuple(dict(model.net.named_parameters())[path].shape)
    reads = [(op, operand) for op in trace.ops for operand in op.inputs if operand.maker == path]
    so = fits(row, run, shape) or fits(row, run, shape[::-1])
    is_transposed = fits(row, run, shape[::-1]) and not fits(row, run, shape)
    evidence = _record(reads[0][1]) if reads else shape_markdown(None, shape)
    evidence += ", stored by PyTorch as out × in" if is_transposed else ""
    where = at(row, reads[0][0]) if reads else {"page": "operations", "place": address(row, zoom="modules")}
    return Finding(f"parameter `{path}`", evidence, verdict_of(so), **where)


def _input(row: StatementRow, run: Provider, name: str) -> Finding:
    trace = run(row.run)[1]
    op = next((op for op in trace.ops for operand in op.inputs if operand.maker == f"input {name}"), None)
    if op is None:
        return Finding(f"input `{name}`", NOWHERE, "not")
    tensor = next(operand for operand in op.inputs if operand.maker == f"input {name}")
    return Finding(f"input `{name}`", _record(tensor), verdict_of(fits(row, run, tensor.shape)), **at(row, op))


def _size(row: StatementRow, run: Provider, name: str) -> Finding:
    symbol = next((symbol for symbol in run(row.run)[1].symbols if symbol.name == name), None)
    if symbol is None:
        return Finding(f"size {name}", NOWHERE, "not")
    equals = f" = ${latex(symbol.equals)}$" if symbol.equals else ""
    so = not row.shape or symbol.value == int(row.shape)
    evidence = f"${latex(name)}${equals} = {symbol.value:,}"
    return Finding("size", evidence, verdict_of(so), page="trace", place=address(row), control=LEGEND)


def _ran(row: StatementRow, run: Provider, name: str, place: str) -> Finding:
    ops = [op for op in run(row.run)[1].ops if op.op == name and place in (op.module, op.step)]
    return _ran_as(row, f"op `{name}` in `{place}`", [op for op in ops if both_fit(row, run, op)])


def _ran_as(row: StatementRow, what: str, fitting: Sequence[Op]) -> Finding:
    if not fitting:
        return Finding(what, NOWHERE, "not")
    op = fitting[0]
    evidence = " → ".join(map(_record, (*op.inputs[:1], op.outputs[0])))
    if row.run == STANDARD:
        return Finding(
            f"{what}, on the standard path", evidence, page="operations", place=address(row), control=BOTH_PATHS
        )
    number = f", number {op.index}" if RUNS[row.run].shipped else ""
    return Finding(f"{what}{number}", evidence, **at(row, op))


def _prim(row: StatementRow, run: Provider, name: str, wanted: str) -> Finding:
    """Look up a primitive in every op of that name."""
    trace = run(row.run)[1]
    ops = [op for op in trace.ops if op.op == name]
    opened = [trace.decompositions[op.index] for op in ops]
    parts = [
        [part for part in decomposition.primitives if part.name == wanted and both_fit(row, run, part)]
        for decomposition in opened
    ]
    if not parts or not all(parts):
        return Finding(f"primitive `{wanted}` of `{name}`", NOWHERE, "not")
    so = all(verdict_within(decomposition.error, "float32") == "verified" for decomposition in opened)
    part, worst = parts[0][0], max(decomposition.error or 0.0 for decomposition in opened)
    evidence = (
        f"{_record(part.inputs[0])} → {_record(part.outputs[0])}, in each of {len(opened)}; opened again, they differ "
    )
    evidence += f"from what ran by up to {scientific(worst)}"
    return Finding(f"primitive `{wanted}` of `{name}`", evidence, verdict_of(so), **at(row, ops[0], "primitives"))


def _names(row: StatementRow, run: Provider, *calls: str) -> Finding:
    runs = {call: sorted(torchvision_block_counts.dispatch_ops(call)) for call in calls}
    ran = torchvision_block_counts.ran_at_all(run)
    evidence = "; ".join(f"`{call}` runs {', '.join(f'`{name}`' for name in names)}" for call, names in runs.items())
    so = all(names and set(names) <= ran for names in runs.values())
    return Finding(
        "calls, by the ops that they run",
        f"{evidence}: all ran",
        verdict_of(so),
        page="operations",
        place=address(row, zoom="ops"),
    )


def _count(row: StatementRow, run: Provider, name: str) -> Finding:
    count = torchvision_block_counts.COUNT_FUNCTIONS[name](run)
    path = torchvision_block_counts.COUNTED_MODULES.get(name)
    records = enumerate(run(row.run)[1].modules)
    at_module = {"module": next(at for at, record in records if record.path == path)} if path else {}
    place = address(row, zoom="modules", **at_module)
    return Finding("counted", count.sentence, verdict_of(count.holds), page="operations", place=place)


def _open(row: StatementRow, run: Provider, name: str) -> Finding:
    known = name in models.names()
    return Finding(
        f"model `{name}`", models.in_and_out(name), verdict_of(known), page="overview", place=(("model", name),)
    )


def _spell(row: StatementRow, run: Provider, *ways: str) -> Finding:
    spellers = {way: text.shipped_tokenizers()[way] for way in ways}
    pieces = {way: speller.encode(SENTENCE) for way, speller in spellers.items()}
    whole = all(spellers[way].decode([token.id for token in tokens]) == SENTENCE for way, tokens in pieces.items())
    counts = (f"{way} {len(tokens)} pieces of {len(spellers[way].vocabulary):,}" for way, tokens in pieces.items())
    evidence = (
        f"“{SENTENCE}”, {len(SENTENCE.encode())} bytes, is {', '.join(counts)}; spelled again it is the same text"
    )
    place = (("kind", "text"), ("way", ways[0]), ("sentence", SENTENCE))
    return Finding(
        "cut and looked up", evidence, verdict_of(whole and all(pieces.values())), page="tokens", place=place
    )


def _page(row: StatementRow, run: Provider, name: str, *place: str) -> Finding:
    """Look up a page that shows the run, and a position on it: `kind=text` and the like, as query parameters."""
    at = tuple((key, value) for key, _, value in (part.partition("=") for part in place))
    return Finding(f"page {name.title()}", "run there, step by step", "elsewhere", page=name, place=at)


def _claim(row: StatementRow, run: Provider, name: str) -> Finding:
    measured = claims.CLAIMS[name](*run(row.run))
    card = (("note", "claims"), ("of", row.run), ("claim", name))
    return Finding("measured", measured.text, measured.verdict, page="notes", place=card)


def _slip(row: StatementRow, run: Provider, name: str) -> Finding:
    slip = errata.SLIPS[name]
    measured = slip.measure(run, row.run)
    place = (("note", row.note), ("section", str(sections(row.note).index(row.section) + 1)))
    verdict = slip.verdict if measured.so else "holds"
    return Finding(measured.how, measured.sentence, verdict, slip=slip.sentence, page="notes", place=place)


KINDS: dict[str, Callable[..., Finding]] = {
    "step": _step,
    "param": _param,
    "head": _head,
    "input": _input,
    "size": _size,
    "ran": _ran,
    "prim": _prim,
    "names": _names,
    "count": _count,
    "open": _open,
    "page": _page,
    "spell": _spell,
    "claim": _claim,
    "slip": _slip,
}
