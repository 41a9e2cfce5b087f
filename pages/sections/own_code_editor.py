"""Editor of the owner's file, the outcome of its last run, and the repairs that a click applies."""

from __future__ import annotations

import html
import re
from typing import Any

import streamlit as st

from pages.jobs import own_code, single_flight
from pages.state import session
from pages.ui import texts, widgets
from tracer.symbols import notation
from tracer.utils.errors import capitalize

TEXT, FACTORY, RUN_REQUEST, RESULT, UNLOCK, EXAMPLE_CHOICE = (
    "own code",
    "own factory",
    "own run wanted",
    "own result",
    "own code unlocked",
    "own file",
)
"""Where a session keeps the text, the function, whether to run it now, what became of it, and what was picked."""
MAX_LETTERS = 200_000
"""Characters of a file."""
AROUND = 4
"""Lines before and after the failed one."""
NAME = f"{own_code.MODULE}.py"
EXAMPLE = '''import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.norm = nn.LayerNorm(D)
        self.up = nn.Linear(D, 3 * D)
        self.down = nn.Linear(4 * D, D)

    def forward(self, x):
        h = torch.relu(self.up(self.norm(x)))
        return x + self.down(h)


def model(B=2, T=5, D=8):
    """Return the module and its arguments. The whole numbers become symbols."""
    return Block(D), (torch.randn(B, T, D),)
'''


def ask_key() -> bool:
    """Return whether this session may run code; ask for the key where it may not yet."""
    if st.session_state.get(UNLOCK):
        return True
    with st.form("own key", border=True):
        typed = st.text_input("Key", type="password", help="The terminal shows it where you started the app.")
        st.caption("The terminal in which you started the app shows the key, in the line “My code”.")
        sent = st.form_submit_button("Unlock", icon=":material/lock_open:")
    if sent:
        try:
            st.session_state[UNLOCK] = own_code.unlocks(typed)
        except ValueError as error:
            st.error(str(error))
            return False
        if st.session_state[UNLOCK]:
            st.rerun()
        st.error("This is not the key.")
    return False


def show() -> None:
    """Draw the editor and the result of the last run."""
    state = st.session_state
    state.setdefault(TEXT, EXAMPLE)
    st.file_uploader(
        "Choose a Python file, or edit the text below", type="py", key=EXAMPLE_CHOICE, on_change=_take_file
    )
    text = st.text_area("Your file", key=TEXT, height=380, max_chars=MAX_LETTERS)
    try:
        names = own_code.factories(text)
    except (SyntaxError, ValueError) as error:
        line = f"Line {error.lineno}: " if isinstance(error, SyntaxError) and error.lineno else ""
        st.error(texts.escape(f"This is no Python. {line}{getattr(error, 'msg', None) or error}."))
        return
    if not names:
        st.info(
            "Your file needs a function that returns the model and its inputs. Each of its arguments, if it has any, "
            "needs a default: `def model(B=2, D=8): return MyModule(D), (torch.randn(B, D),)`."
        )
        return
    with st.container(horizontal=True, vertical_alignment="bottom"):
        factory = st.selectbox("Function that builds it", names, key=FACTORY, width=260)
        pressed = st.button("Run", type="primary", icon=":material/play_arrow:")
    if pressed or state.pop(RUN_REQUEST, False):
        _run(text, factory)
    if (result := state.get(RESULT)) is not None:
        _result(result, text)


def _take_file() -> None:
    """Put a chosen file into the editor."""
    picked = st.session_state.get(EXAMPLE_CHOICE)
    if picked is None:
        return
    text = picked.getvalue().decode("utf-8", errors="replace").replace("\r\n", "\n")
    st.session_state[TEXT], st.session_state[RESULT] = text[:MAX_LETTERS], None


def _run(text: str, factory: str) -> None:
    """Run the file; a complete run is on screen from then on, on all pages."""
    try:
        result = single_flight.in_turn(lambda: own_code.run(text, factory), "Running your code")
    except ValueError as error:
        result = own_code.OwnRun(text, refusal=f"{capitalize(str(error))}.")
    st.session_state[RESULT] = result
    if result.file is not None:
        session.take_file(result.file, f"{own_code.MODULE}.safetensors")
        st.rerun()


def _result(result: own_code.OwnRun, text: str) -> None:
    if result.file is not None:
        st.success("It runs to the end. This run is on screen on the other pages now.", icon=":material/check:")
        with st.container(horizontal=True):
            for page, label in (("overview", "Overview"), ("trace", "Trace"), ("operations", "Operations")):
                widgets.link(page, label)
    elif result.why is not None:
        _why(result.why, result.text, text)
    else:
        st.error(texts.escape(result.refusal))
    if result.output.strip():
        with st.expander("What your code printed"):
            st.code(result.output, language=None)


def _why(why: dict[str, Any], ran: str, text: str) -> None:
    """Draw why the file fails, and the repairs."""
    parts = [f'<p class="reason">{code(why["message"])}</p>', f"<p><code>{html.escape(why['error'])}</code></p>"]
    if source := why["source"]:
        inside = f", in the module {code('`' + why['module'] + '`')}" if why["module"] else ""
        parts.append(f"<p>{html.escape(source['file'])}, line {source['line']}{inside}</p>")
        parts.append(excerpt(ran, source, why["span"]))
    if why["operands"]:
        parts.append(_operands(why["operands"]))
    if why["steps"]:
        rows = "".join(
            f"<tr><td><code>{html.escape(step['id'])}</code></td><td>{html.escape(step['shape'])}</td></tr>"
            for step in why["steps"]
        )
        parts.append(f"<p>The last lines that ran:</p><table>{rows}</table>")
    st.html(f'<div class="why">{"".join(parts)}</div>')
    if why["fixes"]:
        st.subheader("Repairs that run")
    for number, fix in enumerate(why["fixes"]):
        _fix(number, fix, ran, text)
    count = why["attempts"]
    if count:
        tried = f"{count} {'repair was' if count == 1 else 'repairs were'} tried on a copy."
        st.caption(tried if why["fixes"] else f"{tried} With none of them does the forward run to its end.")


def _fix(number: int, fix: dict[str, Any], ran: str, text: str) -> None:
    lines = []
    for edit in fix["edits"]:
        lines += [("cut", edit["start"][0], line) for line in edit["before"].splitlines()]
        lines += [("add", edit["start"][0], line) for line in edit["after"].splitlines()]
    indent = min((len(line) - len(line.lstrip()) for _, _, line in lines), default=0)
    diff = "".join(
        f'<span class="{kind}" data-line="{at}">{html.escape(line[indent:])}</span>' for kind, at, line in lines
    )
    sizes = " and at ".join(", ".join(f"{name}={value}" for name, value in at.items()) for at in fix["sizes"] if at)
    where = f"The forward pass then runs to the end{f' at {sizes}' if sizes else ''}." if fix["sizes"] else "Not tried."
    with st.container(border=True):
        sentence = fix["message"]
        st.html(
            f'<div class="why"><p>{code(sentence[:1].upper() + sentence[1:])}. {html.escape(where)}</p>'
            f"{f'<pre>{diff}</pre>' if diff else ''}<p>{html.escape(fix['caution'])}</p></div>"
        )
        own = fix["edits"] and all(edit["file"].endswith(NAME) for edit in fix["edits"])
        if own and ran == text:
            st.button(
                "Apply it and run", key=f"apply {number}", on_click=_apply, args=(fix, text), icon=":material/build:"
            )


def _apply(fix: dict[str, Any], text: str) -> None:
    """Put a repair into the editor, and run the file."""
    st.session_state[TEXT], st.session_state[RUN_REQUEST] = apply(fix["edits"], text), True


def apply(edits: list[dict[str, Any]], text: str) -> str:
    """Return a text with edits of its lines."""
    lines = [line.encode() for line in text.splitlines(keepends=True)]
    for edit in sorted(edits, key=lambda edit: edit["start"], reverse=True):
        (first, left), (last, right) = edit["start"], edit["end"]
        lines[first - 1 : last] = [lines[first - 1][:left] + edit["text"].encode() + lines[last - 1][right:]]
    return b"".join(lines).decode()


def code(sentence: str) -> str:
    """Return a sentence as markup, with the text between backquotes as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(sentence))


def excerpt(text: str, source: dict[str, Any], span: list[int] | None) -> str:
    """Return the lines around the failed one as markup, with that one highlighted and its failed expression
    underlined."""
    lines = text.splitlines() if source["file"].endswith(NAME) else []
    number = source["line"]
    if not 0 < number <= len(lines):
        lines, first = [source["text"]], number
    else:
        first = max(1, number - AROUND)
        lines = lines[first - 1 : number + AROUND]
    parts = []
    for at, line in enumerate(lines, first):
        shown = html.escape(line)
        if at == number and span:
            indent = len(line) - len(line.lstrip())
            left, right = indent + span[0], indent + span[1]
            shown = f"{html.escape(line[:left])}<b>{html.escape(line[left:right])}</b>{html.escape(line[right:])}"
        parts.append(f'<span{" class=lit" if at == number else ""} data-line="{at}">{shown or " "}</span>')
    return f"<pre>{''.join(parts)}</pre>"


def _operands(operands: list[dict[str, Any]]) -> str:
    rows = []
    for operand in operands:
        clash = operand["clash"]
        shapes = [_shape(operand["symbolic"], clash), _shape(operand["shape"], clash)]
        line = operand["source"]
        origin = html.escape(operand["maker"])
        if line:
            origin += f"<br>line {line['line']}: <code>{html.escape(line['text'])}</code>"
        cells = [f"<code>{html.escape(operand['name'])}</code>", *shapes, html.escape(operand["dtype"]), origin]
        rows.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    head = "".join(f"<th>{name}</th>" for name in ("tensor", "in symbols", "here", "dtype", "where it comes from"))
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def _shape(sizes: list | None, clash: list[int]) -> str:
    """Return a shape as markup, with the axes that clash marked."""
    if sizes is None:
        return "–"
    shown = [html.escape(notation.text(str(size))) for size in sizes]
    return f"[{', '.join(f'<mark>{size}</mark>' if axis in clash else size for axis, size in enumerate(shown))}]"
