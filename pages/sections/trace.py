"""Sections of the Trace page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
import pandas as pd
import streamlit as st

from pages import components
from pages.jobs import single_flight
from pages.jobs.single_flight import of
from pages.state import browser_position, session, url_state
from pages.state.visitor import Key, visitor
from pages.ui import texts, widgets
from pages.ui.texts import pieces
from tracer.export import verdicts
from tracer.export.letters import letters_of, with_letters
from tracer.export.rows import flops, repeat_of, with_titles
from tracer.figures import attention_charts, envelope, tensors
from tracer.figures.drawing import MASK, PAGE, ROWS, answer, stage_colour, tables
from tracer.lessons.notes.statements import number_steps
from tracer.record import CHANGED_SUFFIX, INPUT, Finding, Op, Step, Trace, tolerance
from tracer.symbols import notation
from tracer.symbols.letters import OURS, OWN, Letters
from tracer.utils.errors import quote
from tracer.utils.lazy_import import lazy_import
from tracer.utils.text import shape_numbers, symbol_text

if TYPE_CHECKING:
    from tracer.attention import textbook_claims
    from tracer.record import costs
else:  # imported when first used
    textbook_claims = lazy_import("tracer.attention.textbook_claims")
    costs = lazy_import("tracer.record.costs")


# Data of the Trace page, so that the browser can step by itself: the headers of all steps, and the details of as
# many as fit, from the requested one on.

MAX_BYTES = PAGE * 3 // 4
"""Bytes of all steps that one message takes; the page around it needs little."""
STEP_BYTES = 4000
"""Bytes that all of a step takes but its tensor, about."""
HEADERS = PAGE // 3
"""Bytes of headers that have all that they can have."""
MAX_CELL_LETTERS = 400
"""Letters of one cell of the table of operations."""
FLOPS_NOTE = (
    "FLOPs are counted as PyTorch counts them: two for each multiply-add of matrix products and convolutions, none "
    "for other operations. Each parameter is counted at the first operation that reads it, even if that operation "
    "only transposes it."
)
"""What the columns of cost hold."""
HEADS = {"d_k": "h", "d_v": "h_v", "d_dec": "h_dec"}
"""Of the width of one head, how many heads there are."""


def parts(trace: Trace) -> dict[str, list[Step]]:
    """Return the steps by part of the model: before the blocks, in each block, after the blocks."""
    out: dict[str, list[Step]] = {}
    late = False
    for step in trace.steps:
        late = late or step.layer is not None
        name = f"Block {step.layer + 1}" if step.layer is not None else "Output" if late else "Input"
        out.setdefault(name, []).append(step)
    return out


def build_payload(trace: Trace, start: str, index: Sequence[int] = (), text: str = OURS) -> dict[str, Any]:
    """Return the headers of all steps, and the details of those that fit, from step `start` on: the rest of its part,
    then the steps before it there, then all others. `index` selects the leading axes of tensors that are sent in part,
    `text` the letters of equations and shapes.
    """
    where, letters = parts(trace), letters_of(trace, text)
    heads = _headers(trace, where, start, letters)
    left = MAX_BYTES - len(orjson.dumps(heads))
    details: dict[str, Any] = {}
    for step in _order(where, start):
        facts = detail(trace, step, index, letters)
        pictures = [facts[name]["cells"] for name in ("tensor", "terms") if isinstance(facts.get(name), dict)]
        size = len(orjson.dumps(facts, default=lambda array: None)) + sum(cells.nbytes for cells in pictures)
        if details and size > left:
            break
        left -= size
        details[step.id] = facts
    return {
        "parts": list(where),
        "steps": heads,
        "details": details,
        "mask": MASK,
        "columns": COLUMNS,
        "counted": FLOPS_NOTE,
        "colours": tables(),
    }


def fits(trace: Trace) -> bool:
    """Return whether one message is likely to hold all steps: an estimate from the shapes of their tensors."""
    sizes = (tensors.weight(value.shape) for step in trace.steps if (value := trace.value(step)) is not None)
    return sum(sizes) + STEP_BYTES * len(trace.steps) <= MAX_BYTES


def _part_of(where: dict[str, list[Step]], id: str) -> str:
    """Return the name of the part that has a step."""
    return next(name for name, steps in where.items() if any(step.id == id for step in steps))


def _order(where: dict[str, list[Step]], start: str) -> Iterator[Step]:
    """Yield all steps, those first that are viewed next."""
    names, part = list(where), _part_of(where, start)
    at = [step.id for step in where[part]].index(start)
    yield from where[part][at:]
    yield from reversed(where[part][:at])
    place = names.index(part)
    for name in (*names[place + 1 :], *names[:place]):
        yield from where[name]


def _headers(trace: Trace, where: dict[str, list[Step]], start: str, letters: Letters) -> list[dict[str, Any]]:
    """Return the list entry of each step. Where they are too many, those of other parts have their titles only, and
    very long ones are cut."""
    part = _part_of(where, start)
    place = {step.id: number for number, steps in enumerate(where.values()) for step in steps}
    heads, changing = [], reshaping_steps(trace)
    for step in (with_letters(step, letters) for step in trace.steps):
        heads.append(
            {
                "id": step.id,
                "title": step.title,
                "part": place[step.id],
                "stage": step.stage,
                "colour": stage_colour(step.stage),
                "symbol": step.symbol,
                "plain": symbol_text(step.symbol),
                "sizes": notation.shape_latex(step.symbolic) if step.shape else "",
                "shape": shape_numbers(step.shape),
                "rank": len(step.shape),
                "changes": step.id in changing,
            }
        )
    for near in (True, False):
        if len(orjson.dumps(heads)) > HEADERS:
            mine = list(where).index(part)
            heads = [head if near and head["part"] == mine else _short(head) for head in heads]
    return heads


def reshaping_steps(trace: Trace) -> set[str]:
    """Return the ids of steps whose tensor has a symbolic shape that none of their inputs has."""
    known = {step.id: step for step in trace.steps}
    ops = {op.index: op for op in trace.ops}
    ids = set()
    for step in trace.steps:
        shapes = {tuple(known[id].symbolic) for id in trace.producers[step.id] if id in known}
        inside = (tensor for index in step.ops if index in ops for tensor in ops[index].inputs)
        shapes |= {tuple(op_index.symbolic or ()) for op_index in inside if str(op_index.maker).startswith(INPUT)}
        if tuple(step.symbolic) not in shapes:
            ids.add(step.id)
    return ids


def _short(head: dict[str, Any]) -> dict[str, Any]:
    few = {name: head[name] for name in ("id", "part", "stage", "colour", "rank", "changes")}
    return few | {"title": head["title"][:60], "symbol": "", "plain": "", "sizes": "", "shape": head["shape"][:60]}


def detail(trace: Trace, step: Step, index: Sequence[int] = (), letters: Letters = OWN) -> dict[str, Any]:
    """Return the remaining data of a step, with its sentences in pieces, and its pictures; what it lacks is left
    out."""
    repeat, line = repeat_of(trace, step), with_letters(step, letters)
    facts = {
        "latex": line.latex,
        "inside": _inside(line),
        "repeat": repeat
        and pieces(f"The line is the same in {repeat.times} blocks, ${repeat.numbers}$. Only the index changes."),
        "names": step.names and pieces(texts.in_the_code(line.names)),
        "noted": _note_number(trace, step),
        "why": pieces(texts.prose(step.why)),
        "verdict": step.verdict,
        "proof": pieces(texts.proof(step) + texts.unseen(line)),
        "note": pieces(texts.prose(step.note)) if step.note and (step.error is not None or step.pending) else [],
        "code": _code(trace, step),
        "product": _product(trace, step, line),
        "ops": _covered_ops(trace, step, letters),
        "tensor": _tensor(trace, step, index, letters),
        "terms": _terms(trace, step, index),
    }
    return {name: fact for name, fact in facts.items() if fact is not None and fact != []}


def _note_number(trace: Trace, step: Step) -> list:
    """Return the number of the step in its note."""
    note = number_steps(trace.model)
    at = note and note.of(step.id)
    return pieces(texts.plain(with_titles(f"Step {at} in note {note.note}."))) if note and at else []


def _inside(step: Step) -> str:
    """Return the step's symbol and its shape, in symbols and numbers, as LaTeX."""
    if not step.shape:
        return f"{step.symbol} \\text{{ is a scalar}}"
    numbers = ",\\ ".join(map(str, step.shape))
    return f"{step.symbol} \\in {notation.shape_latex(step.symbolic)} = [{numbers}]"


def source_lines(trace: Trace, step: Step) -> dict[str, dict[int, str]]:
    """Return the lines of the model's code that the step's operations ran in, by file, in the order in which they
    ran."""
    ran = [op.source for op in _ops(trace, step)] or [step.source]
    files: dict[str, dict[int, str]] = {}
    for source in filter(None, ran):
        files.setdefault(source.file, {})[source.line] = source.text.strip()
    return files


def _ops(trace: Trace, step: Step) -> list[Op]:
    return [trace.ops[index] for index in sorted(set(step.ops)) if index < len(trace.ops)]


def _code(trace: Trace, step: Step) -> list[dict[str, str]]:
    """Return the source lines as code, each file with its location, the lines, and remarks on them."""
    parts = []
    for file, lines in source_lines(trace, step).items():
        place = f"{file}, {'line' if len(lines) == 1 else 'lines'} {', '.join(map(str, lines))}"
        length = any(re.search(r"\bS\b", line.partition("#")[2]) for line in lines.values())
        hint = "In the comment, S = sequence length." if length else ""
        if step.id.endswith(CHANGED_SUFFIX):
            hint = f"This code computes the value that the change replaces. {hint}".strip()
        parts.append({"place": place, "text": "\n".join(lines.values()), "hint": hint})
    return parts


def _tensor(trace: Trace, step: Step, index: Sequence[int], letters: Letters) -> dict[str, Any] | str:
    """Return the tensor's picture, with the sizes of its axes in these letters, or the reason why there is none."""
    if (value := trace.value(step)) is None:
        if step.recomputed:
            return (
                "This tensor is never stored: a fused operation computes it on the way. The equation says what it "
                "would be."
            )
        return "The tensor of this step was not kept, to save memory."
    named = {size.name for size in trace.symbols if size.meaning == notation.NAMED_MEANING}
    kind = "attention" if tensors.has_weights(step) else "sequential"
    ticks = class_names(trace, step)
    picture = tensors.build_heatmap(value, step.symbolic, step.stage, index=index, ticks=ticks, named=named, kind=kind)
    if picture is None:
        size = 1 if value.ndim < 2 else value.shape[-2]
        return f"The tensor of this step has {size * (value.shape or (1,))[-1]:,} values per matrix, too many to draw."
    labels = [(pieces(letters.markdown(label)), size) for label, size in picture["lead"]]
    axes = [pieces(letters.markdown(label)) for label in picture["axes"]]
    return picture | {"axes": axes, "lead": labels}


def _terms(trace: Trace, step: Step, index: Sequence[int]) -> dict[str, Any] | None:
    """Return the four terms of the scores of a first block that reads tokens plus positions."""
    read = {"embedding", "position", "block1.attention.query"}
    if step.id != "block1.attention.scores" or session.user_input().kind == "trace":
        return None
    if not read <= {candidate.id for candidate in trace.steps} or (scores := trace.value(step)) is None:
        return None
    try:
        products = textbook_claims.terms(session.model(), trace)
    except ValueError:  # this block reads something else, or the run did not keep what the terms are made of
        return None
    if attention_charts.difference(products, scores) > tolerance("float32"):
        return None
    first = {name: term[0] for name, term in products.items()}
    return attention_charts.build_terms(first, scores[0], (*index, 0, 0)[1])


def class_names(trace: Trace, step: Step) -> Sequence[str] | None:
    """Return the names of the last axis where it holds the classes: the last step of a classifier."""
    known = answer(trace.result)
    return known[0] if known and step is trace.steps[-1] and len(known[0]) == step.shape[-1] else None


def _product(trace: Trace, step: Step, line: Step) -> dict[str, Any] | None:
    """Return the step's matrix product, drawn to scale in the letters of `line`, and its batch."""
    if step.product is None or line.product is None:
        return None
    inner, result = step.product[0].shape[1], step.product[2].symbol
    rest = "" if result == step.symbol else " The rest of the equation comes after this product."
    sizes = {size.name: size.value for size in trace.symbols}
    own = [HEADS[name] for operand in step.product for name in operand.symbolic if name in HEADS]
    if own and (heads := sizes.get(own[0], 1)) > 1:
        rest = f" This is one of {heads} heads; each has its own product.{rest}"
    sentence = f"The marked row and the marked column give one value: a sum of {inner:,} products of two numbers.{rest}"
    return {"svg": tensors.drawing(line.product, step.stage), "caption": sentence}


def _covered_ops(trace: Trace, step: Step, letters: Letters) -> dict[str, Any]:
    """Return the operations that a step covers; for one that is recomputed, the fused operation that contains it."""
    if step.inside is None:
        ops = _ops(trace, step)
        return {
            "title": "The operations it covers",
            "remark": "",
            "rows": rows(ops[:ROWS], letters),
            "more": _more(ops),
        }
    op, part = trace.ops[step.inside], costs.cost_of_step(trace, step).flops
    cost = f" Of its {op.flops:,} FLOPs, {part:,} belong to this step." if part and op.flops else ""
    remark = f"Operation {op.index} computes this step on the way, but never stores its tensor.{cost}"
    return {"title": "The fused operation that contains it", "remark": remark, "rows": rows([op], letters), "more": ""}


COLUMNS = ("op", "name", "inputs", "outputs", "in symbols", "parameters", "FLOP", "module", "source")


def rows(ops: Sequence[Op], letters: Letters = OWN) -> list[list[Any]]:
    """Return ops as rows of `COLUMNS`: module, shapes in and out, cost."""

    def symbols(shape: Sequence[str]) -> str:
        return notation.shape_text(letters.shape(shape))

    return [
        [
            op.index,
            op.op,
            _cut("  ".join(shape_numbers(tensor.shape) for tensor in op.inputs)),
            _cut("  ".join(shape_numbers(tensor.shape) for tensor in op.outputs)),
            _cut("  ".join(symbols(tensor.symbolic) for tensor in op.outputs if tensor.symbolic)),
            op.params,
            flops(op),
            op.module,
            f"{op.source.file.rsplit('/', 1)[-1]}:{op.source.line}" if op.source else "",
        ]
        for op in ops
    ]


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CELL_LETTERS else f"{text[:MAX_CELL_LETTERS]} …"


def _more(ops: Sequence[Op]) -> str:
    if len(ops) <= ROWS:
        return ""
    return f"These are the first {ROWS:,} of {len(ops):,} operations; `python -m tracer open` lists them all."


# Likely mistakes in the code of the model that ran: a card above the steps, only where there is any.

MAX_FINDINGS = 4
"""Findings that the card shows; the others are counted."""
LESSONS = {"mask": "The mask of this run", "positions": "Positions", "loss": "The loss", "notes": "The notes"}


def show_findings(trace: Trace) -> None:
    """Draw the known findings of a run that nobody acknowledged; nothing where there are none."""
    findings = [finding for finding in trace.diagnosis or () if not finding.intent]
    if not findings:
        return
    with st.container(border=True):
        count = f"{len(findings)} findings" if len(findings) > 1 else "1 finding"
        recorded = " They are recorded in the file, and were not checked here." if trace.reread is not None else ""
        st.markdown(f"**This looks like a mistake in the model's code** ({count}).{recorded}")
        for finding in findings[:MAX_FINDINGS]:
            _finding(finding, trace)
        if len(findings) > MAX_FINDINGS:
            st.caption(
                f"{len(findings) - MAX_FINDINGS} more: `trace.findings` in Python, `python -m tracer trace` in a shell."
            )


def _finding(finding: Finding, trace: Trace) -> None:
    from tracer.diagnostics.findings import rule_of, sources  # torch, which a page starts without

    rule = rule_of(finding.kind)
    code = [f"{source.text}  # {source.file}:{source.line}" for source in sources(finding, trace)]
    where = f" at step {texts.escape(finding.step)}" if finding.step else ""
    title = f"**{texts.escape(finding.kind.capitalize())}**{where}."
    st.warning(f"{title} {_with_code(finding.message)}\n\n{_with_code(finding.fix)}", icon=":material/rule:")
    if code:
        st.code("\n".join(code[:2]), language="python")
    if rule is not None:
        st.caption(f"The rule: `{rule.document}`")
        if rule.lesson in LESSONS and finding.step in {step.id for step in trace.steps}:
            widgets.link(rule.lesson, LESSONS[rule.lesson])


def _with_code(text: str) -> str:
    """Return a sentence for markdown, in which text between backticks stays code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return texts.escape(text)
    return "".join(f"`{part}`" if number % 2 else texts.escape(part) for number, part in enumerate(parts))


# Trace page around its component: the step it opens on, its data, and runs without steps.


def choose(trace: Trace) -> Step:
    """Return the step that the page opens on: the one that its URL names, else the one that was displayed last."""
    now, known = visitor(), {step.id: step for step in trace.steps}
    step_id = st.query_params.get("step", now.step)
    current = known.get(step_id, trace.steps[0])
    if url_state.names_another("step", known):
        st.warning(texts.escape(f"This run has no step {quote(step_id)}. The page shows its first step."))
    if "step" in st.query_params and step_id not in known:
        now.step = st.query_params["step"] = current.id
    elif step_id in known:
        now.step = step_id
    if current.id != now.at:
        now.at, now.turn = current.id, now.turn + 1
    return current


@st.fragment
def browse(trace: Trace, step: Step, text: str = OURS) -> None:
    """Draw all steps, with equations in the letters of a text; the browser moves between them by itself. It requests
    here what did not fit into one message, and pending proofs."""
    now, known = visitor(), {candidate.id for candidate in trace.steps}
    run = session.run_name(trace)
    wanted = _request(run, known)
    shown = now.recall("proofs", trace) or trace
    waiting = any(candidate.pending for candidate in shown.steps) and shown.prover is not None
    if waiting and wanted.get("prove"):
        where = parts(shown)
        part = where[_part_of(where, wanted["step"])]
        shown = single_flight.in_turn(
            partial(shown.prove, [candidate.id for candidate in part]), "Verifying the steps of this part"
        )
        now.remember("proofs", trace, shown)
    start = wanted.get("step") or (trace.steps[0] if fits(trace) else step).id
    index = wanted.get("index", ())
    packed = of(shown, ("steps", text, start, *index), lambda: envelope.pack(build_payload(shown, start, index, text)))
    facts = {"run": run, "step": now.at, "turn": now.turn} | browser_position.facts(now)
    facts |= {"meaning": verdicts.MEANING, "prove": waiting, "checking": session.is_check_pending()}
    components.stepper(facts, packed)


def _request(run: str, known: set[str]) -> dict[str, Any]:
    """Return the browser's request for this run: a step, the index on the leading axes of its tensor, and whether
    proofs."""
    request = session.wanted(Key.STEPPER, run)
    if request.get("step") not in known:
        return {}
    index = request.get("index")
    index = index if isinstance(index, list) and all(type(at) is int for at in index) else []
    return {"step": request["step"], "index": tuple(index), "prove": bool(request.get("prove"))}


def operations(ops: Sequence[Op]) -> None:
    """Draw ops as a table: module, shapes in and out, cost."""
    widths = {"op": 50, "name": 110, "inputs": 165, "outputs": 110, "in symbols": 130, "module": 140, "source": 95}
    columns = {name: st.column_config.Column(width=width) for name, width in widths.items()}
    columns["parameters"] = st.column_config.NumberColumn(width=88, format="localized")
    table = pd.DataFrame(rows(ops[:ROWS]), columns=list(COLUMNS))
    st.dataframe(
        table,
        hide_index=True,
        alt=f"{len(ops[:ROWS])} operations with shapes and cost",
        column_config=columns,
    )
    texts.on_paper({name: list(table[name]) for name in table})
    if more := _more(ops):
        st.caption(more)
    st.caption(FLOPS_NOTE)
