"""Choice of a mask, and a perturbation test that does not know it: change one token, and see which positions change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import streamlit as st

from pages.jobs import model_costs, run_cache, single_flight
from pages.state import session
from pages.state.visitor import Key, UserInput, model_name, visitor
from pages.ui import texts, widgets
from tracer.attention import layers, parts, segments
from tracer.figures import predictions
from tracer.record import Segment, Trace
from tracer.utils.errors import result_or_reason
from tracer.utils.job_queue import BACKGROUND, VISITOR, JobQueue
from tracer.utils.lazy_import import lazy_import
from tracer.utils.text import percent, scientific

if TYPE_CHECKING:
    from tracer.attention import masks
    from tracer.attention.masks import ChangedPositions
else:  # imported when first used
    masks = lazy_import("tracer.attention.masks")

Result = TypeVar("Result")


def mask_choices() -> tuple[str, ...]:
    """Return the masks that the visitor can choose; empty for a model with a fixed mask, and for a saved run."""
    masks = () if session.user_input().kind == "trace" else session.plain_model().spec.options.get("mask", ())
    return masks if len(masks) > 1 else ()


def notice() -> None:
    """Warn on every page that the mask is not the one that the weights were trained with, with a way back to it."""
    now = dict(session.options()).get("mask")
    if now is None or session.user_input().kind == "trace" or now == (trained := _trained_mask()):
        return
    st.warning(
        f"The mask is **{now}**, but the weights were trained with the **{trained}** mask: the answer may differ.",
        icon=":material/grid_on:",
    )
    st.button(f"Back to {trained}", icon=":material/undo:", on_click=session.choose, args=("mask", trained))


def _trained_mask() -> str:
    return str(model_costs.default_option(model_name(), "mask"))


def choice() -> None:
    """Let the visitor choose among the masks that the model supports."""
    if not (masks := mask_choices()):
        return
    model, name = session.plain_model(), model_name()
    key = Key.MASK.format(name)
    st.session_state[key] = model.options["mask"]
    st.segmented_control("Mask", masks, required=True, key=key, on_change=_take, args=(key, name))
    st.caption(texts.plain(f"Weights: {model.weights}."))


def _take(key: str, name: str) -> None:
    if name == model_name():  # it may come late, from a model that was left meanwhile
        session.choose("mask", st.session_state[key])


def start(cells) -> int:
    """Return the token that a slider of this page begins with: the middle one of a mask bool `[S_q, S_k]`."""
    return cells.shape[0] // 2


@st.fragment
def changes(trace: Trace, cells) -> None:
    """Show the pairs that each selectable mask allows, and the model's answer to the visitor's input under it."""
    st.header("What another mask changes")
    now, masks = session.model().options["mask"], mask_choices()
    known = {now: (cells, trace.result)}
    request = MaskRequest.now().with_text_of(trace)
    answers = {mask: _under(request, mask, known.get(mask)) for mask in masks}
    st.table(
        {
            "mask": masks,
            "open pairs of tokens": [
                "–" if isinstance(under, str) else percent(float(under[0].float().mean())) for under in answers.values()
            ],
            "what the model answers": [
                texts.plain(under if isinstance(under, str) else predictions.short(under[1]))
                for under in answers.values()
            ],
        },
        hide_index=True,
    )
    trained = _trained_mask()
    opened = {mask: under[0] for mask, under in answers.items() if not isinstance(under, str)}
    others = [mask for mask in opened if mask != trained]
    if trained not in opened or not others:
        return
    differences = "; ".join(f"{_against(opened[mask], opened[trained])} under the {mask} mask" for mask in others)
    st.caption(
        f"The weights are the same under each mask; they were trained with the {trained} one. Compared with it, "
        f"{differences}."
    )


def _against(cells, trained) -> str:
    """Return how many tokens see more or fewer tokens under a mask than under the trained one, both bool `[S, S]`.

    Only tokens that both have count: a model that writes its own text may write a longer one under another mask.
    """
    count = min(len(cells), len(trained))
    cells, trained = cells[:count, :count], trained[:count, :count]
    more, fewer = (cells & ~trained).any(dim=1), (trained & ~cells).any(dim=1)
    ways = (("more", more & ~fewer), ("fewer", fewer & ~more), ("others", more & fewer))
    sentences = [f"{int(which.sum())} of {count} tokens see {way}" for way, which in ways if which.any()]
    return " and ".join(sentences) or "each token sees the same ones"


class MaskRequest(NamedTuple):
    """A model, its options and its input, with a `text` in place of the visitor's: enough to compute an answer in any
    thread."""

    model: str
    options: run_cache.Options
    chosen: UserInput
    rank: int = VISITOR
    text: str | None = None

    @classmethod
    def now(cls) -> MaskRequest:
        """Return the model, options and input on the visitor's screen."""
        return cls(model_name(), session.options(), session.user_input())

    def of(self, work: Callable[..., Result], *more, **named) -> Result:
        """Return `work` of the model and its input."""
        model = run_cache.load(self.model, self.options)
        return work(model, model.inputs(**self._user_input()), *more, **named)

    def measure(self, function: Callable[..., Result], *arguments) -> Result:
        """Return `function` of the model, its input and small `arguments`, from a process of models where one
        serves."""
        return run_cache.measure(function, self.model, self.options, self._user_input(), *arguments)

    def queue(self) -> JobQueue | None:
        """Return the queue for `measure`, None for that of this process."""
        return run_cache.queue_of(self.model, self.options) if self.rank == VISITOR else None

    def _user_input(self) -> dict[str, Any]:
        plain = run_cache.load(self.model, run_cache.without_changes(self.options))
        text = {} if self.text is None else {"text": self.text}
        return session.inputs(plain, self.chosen, self.options) | text

    def with_text_of(self, trace: Trace) -> MaskRequest:
        """Return the request with the caption that the model generated for a run, which need not be generated again.
        Under another mask, it would be another one, and the two would not be comparable."""
        words = trace.words[1:]  # the first one begins every caption
        generated = trace.result.get("kind") == "caption" and self.chosen.photo is not None and not self.chosen.text
        return self._replace(text=" ".join(words)) if generated and not any(" " in word for word in words) else self


def _under(request: MaskRequest, mask: str, known: object = None):
    """Return a mask, bool `[S, S]`, and the model's prediction under it: from the run on screen, else by running; or in
    a sentence why a changed model does not run under it."""

    def run():
        return alternative.measure(masks.predict_under_mask)

    alternative = request._replace(options=run_cache.with_options(request.options, mask=mask))
    doing = "Running the model under the other masks"
    # a change of scores need not fit every mask
    return result_or_reason(lambda: once("masked", alternative, (), run, doing, known, alternative.queue()))


def once(
    what: str,
    request: MaskRequest,
    more: tuple,
    make: Callable[[], Result],
    doing: str,
    known: Result | None = None,
    where: JobQueue | None = None,
) -> Result:
    """Return `make()` of an input, queued and run once: a sample's for all visitors, another's for this one. `make`
    does not use the session; a value that is `known` already is stored unchanged."""
    chosen, key = request.chosen, (request.model, request.options, request.text, *more)
    if chosen.kind == "sample":
        return run_cache.shared_result(what, (*key, chosen.name), make, doing, known, request.rank, where)
    results = visitor().results_of(what, chosen)
    if key not in results:
        results[key] = single_flight.in_turn(make, doing, where) if known is None else known
    return results[key]


def ahead(model: str, sample: str, photo) -> None:
    """Run the computations of the mask page on a sample, before any visitor asks."""
    trace, loaded = run_cache.of_sample(model, (), sample, BACKGROUND), run_cache.load(model)
    request = MaskRequest(model, (), UserInput("sample", sample, photo), BACKGROUND).with_text_of(trace)
    part = parts(trace)[0]
    cells, now = masks.visible(trace, 0, part=part), loaded.options.get("mask")
    choices = loaded.spec.options.get("mask", ())
    for mask in choices if len(choices) > 1 else ():
        _under(request, mask, (cells, trace.result) if mask == now else None)
    if tokens := changeable(segments(trace, part)):
        _find_moved(request, trace, middle(tokens, cells), part)


@st.fragment
def proof(trace: Trace, cells, named: Sequence[Segment], labels: Sequence[str], part: str) -> None:
    """Change one token of the visitor's input, run again, and compare the positions that changed with the mask's
    prediction."""
    st.header("A second check that does not read the mask")
    if session.user_input().kind == "trace":
        st.info("This check runs the model again, so it needs the model, which a saved run does not contain.")
        return
    tokens = changeable(named)
    if not tokens:
        st.info(
            "This check changes a token of a run with one sequence of tokens. This run may have several, such as those "
            "of an encoder and a decoder."
        )
        return
    first = middle(tokens, cells)
    token = widgets.choose(
        st.select_slider, "Change this token", "token", tokens, first, format_func=labels.__getitem__
    )
    changed = _find_moved(MaskRequest.now().with_text_of(trace), trace, token, part)
    if isinstance(changed, str):  # a model of a library, whose blocks or patches are not laid out like this
        st.info(texts.plain(f"This check can’t run here: {changed}."))
        return
    entering, moved = changed
    tower = f" of the {part} tower" if part else ""
    st.markdown(texts.plain(f"Changed: **{labels[token]}**. Outputs{tower} that changed: {_tokens(moved)}."))
    if not entering:
        st.markdown("This token does not enter this tower, so the tower never saw it.")
    elif entering != (token,):
        st.markdown(f"Tokens were mixed before this tower: {_tokens(entering)} had already changed on entering it.")
    _verdict(trace, cells, changed, part)


def changeable(named: Sequence[Segment]) -> list[int]:
    """Return the tokens that can be changed: those that come from the input."""
    return [token for segment in named if segment.name != "CLS" for token in range(segment.start, segment.stop)]


def middle(tokens: Sequence[int], cells) -> int:
    """Return the token that is changed at first: of the changeable ones, the closest to the initial query."""
    return min(tokens, key=lambda token: abs(token - start(cells)))


def _find_moved(request: MaskRequest, trace: Trace, token: int, part: str):
    """Return the positions that changed against the run on screen, or the reason why they can't be compared."""

    def run():
        model = run_cache.load(request.model, request.options)
        if trace.later is None or (before := masks.traced_streams(model, trace, part=part)) is None:
            return request.of(masks.influence, token, part=part, trace=trace)
        ends = masks.tower_ends(model, trace.later.derived_steps, part)
        # a pickle of a tensor holds all memory that it is in
        copies = masks.Streams(*(stream.clone() for stream in before))
        return request.measure(masks.change_and_compare, token, part, ends, copies)

    doing = "Running the model on the changed input"
    return once("moved", request, (part, token), partial(result_or_reason, run), doing, where=request.queue())


def _verdict(trace: Trace, cells, changed: ChangedPositions, part: str) -> None:
    """Show whether the positions that changed are those that the mask predicts."""
    entering, moved = changed
    expected = masks.reach(cells, entering, len(layers(trace, part)))
    still, all_open = sorted(set(expected) - set(moved)), bool(cells.all())
    if set(moved) == set(expected):
        agree = "The mask predicts exactly these positions."
        if not entering:
            agree = "So no output may change, and none did."
        elif all_open:
            agree = "Nothing is masked, so every output may change, and every one did."
        st.success(agree, icon=":material/verified:")
    elif set(moved) < set(expected):
        closed = "Nothing is masked" if all_open else "No output that the mask closes off changed"
        could = f"{_tokens(still).capitalize()} could change too, but did not"
        st.success(f"{closed}. {could}{_why(trace, still, changed, part)}.", icon=":material/verified:")
    elif trace.changes:
        st.info(
            f"The mask of this block predicts {_tokens(expected)}. The changes of this run can pass values to other "
            "tokens: they may open the mask of another block, or mix positions."
        )
    else:
        st.error(f"The mask predicts {_tokens(expected)}: the two checks disagree.", icon=":material/error:")


def _why(trace: Trace, still: Sequence[int], moved: ChangedPositions, part: str) -> str:
    """Explain tokens that could have changed and did not, where their attention on the changed ones is small enough to
    be the reason."""
    try:
        share = masks.largest_share(trace, still, moved, part=part)
    except ValueError:  # the attention of a later block can't be recovered
        return ""
    if np.float32(1) + np.float32(share) != 1:
        return ""
    return (
        f": in any block and head, at most {scientific(share)} of their attention goes to tokens that had changed. In "
        "float32, 1 plus that number is 1"
    )


def _tokens(positions: Sequence[int]) -> str:
    """Return positions, counted from 1, as ranges: `tokens 1 to 4, 8`; "none" if there are none."""
    runs: list[list[int]] = []
    for position in (position + 1 for position in positions):
        if runs and runs[-1][1] == position - 1:
            runs[-1][1] = position
        else:
            runs.append([position, position])
    ranges = ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in runs)
    return f"token{'s' * (len(positions) > 1)} {ranges}" if ranges else "none"
