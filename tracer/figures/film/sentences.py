"""Title and the sentence of each beat, computed from the run that it shows.

A sentence states what the tensors of this run give. The numbers that it quotes are in `Caption.facts`, unrounded."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tracer.figures.cell_payload import tensor_of
from tracer.figures.drawing import DIVERGING_SCALE, SEQUENTIAL, VALUES, ranking, table
from tracer.figures.envelope import half
from tracer.figures.film.chapters import Chapter, Lane, Snapshot, Stream, tensor
from tracer.figures.predictions import map_sentence, visible_token
from tracer.figures.tensors import as_array, reduce, scale_ends
from tracer.record import AttentionRecord, Step, TensorRecord, Trace
from tracer.utils.errors import shorten
from tracer.utils.lazy_import import lazy_import
from tracer.utils.text import numeral, percent

if TYPE_CHECKING:
    from tracer.attention import masks
else:  # imported when first used
    masks = lazy_import("tracer.attention.masks")


# Rows of attention that need words of their own: those that attend to nothing, to one token alone, or to all alike.
#
# They are told from the weights as they ran, before these are rounded for a message.

OTHER, NOTHING, ALONE, EVEN = range(4)
"""Kinds of rows: any other, every weight is 0, every weight but one is 0, every open weight is the same."""
SAME = 1e-6
"""Shares of the largest weight by which weights that are called the same differ at most."""
WHOLE = 1e-3
"""What the weights of a row add up to differs from 1 by this at most, where they are called shares of its attention."""


def kinds(weights: np.ndarray, closed: Callable[[], np.ndarray] | None = None) -> np.ndarray:
    """Return the kind of each row of `[..., S_k]`.

    `closed` returns which keys a mask closes, bool in a shape that broadcasts to that of the weights; it is asked where
    the answer depends on it. Without it, all keys are open.
    """
    used = weights != 0
    count, most = used.sum(-1), weights.max(-1)
    least = np.where(used, weights, most[..., None]).min(-1)
    even = (count > 1) & (most - least <= SAME * most)
    if closed is not None and (even & (count < weights.shape[-1])).any():
        even &= (used | closed()).all(-1)
    else:
        even &= count == weights.shape[-1]
    found = np.select([count == 0, count == 1, even], [NOTHING, ALONE, EVEN], OTHER)
    return np.asarray(found, np.uint8)


def closed_keys(trace: Trace, record: AttentionRecord, query: int | None = None) -> np.ndarray:
    """Return which keys the mask that ran closes, bool `[S_q, S_k]`, or `[S_k]` of one query."""
    layer = [each for each in trace.attentions if each.part == record.part].index(record)
    if query is None:
        return ~masks.visible(trace, layer, part=record.part).numpy()
    return ~masks.open_keys(trace, query, layer, part=record.part).numpy()


TOP_PATCHES = 5
"""Patches whose share of the attention a sentence adds up."""
FOCUS_SHARE, UNEVENNESS_FACTOR = 0.5, 2
"""The share of the attention that these get where it is called focused, and how many times their share under equal
weights where it is called uneven."""
SHORT_NAME = 12
"""Letters of a name that is said twice."""
TIMES = 2
"""From this multiple of a length on, a sentence says how many times it is, and not how many per cent."""


@dataclass(frozen=True)
class Caption:
    """A title, a sentence, and the numbers of the run that the sentence quotes, unrounded."""

    title: str
    sentence: str
    facts: Mapping[str, float] = field(default_factory=dict)
    heads: tuple[str, ...] = ()
    """What a sentence on the mean over the heads says, of each head; empty where the sentence says nothing of it."""
    rest: str = ""
    """What the sentence says besides, whatever the head."""


@dataclass(frozen=True)
class Scene:
    """Inputs of a sentence: a chapter, its stream before and after it, and its attention.

    `weights` is the mean over heads, `[S_q, S_k]`, None where it can't be had; `focus` is the lane that is looked at.
    `blocks` counts those of the tower.
    """

    trace: Trace
    chapter: Chapter
    stream: Stream | None = None
    before: Snapshot | None = None
    after: Snapshot | None = None
    weights: np.ndarray | None = None
    focus: int = 0
    blocks: int = 0
    keys: Sequence[Lane] = ()
    """The lanes of another tower that the attention is to; empty where it is to its own."""
    rows: np.ndarray | None = None
    """The weights of the focus in each head, `[h, S_k]`."""
    closed: np.ndarray | None = None
    """Which keys a mask closes to the focus, bool `[S_k]`; None without a mask."""

    @property
    def slots(self) -> list[int]:
        """Lane of each token of the chapter's tower."""
        return self.stream.slots[self.chapter.part] if self.stream else []

    def name(self, lane: int) -> str:
        """Return the name of a lane, for a sentence."""
        return self.stream.lanes[lane].name if self.stream else ""


def caption(scene: Scene, shown: Step | None) -> Caption:
    """Return the title and the sentence of a chapter whose equation is that of `shown`."""
    write = {
        "patches": _patches,
        "tokens": _tokens,
        "sequence": _sequence,
        "position": _position,
        "norm": _norm,
        "visible": _visible,
        "block": _block,
        "cross": _block,
        "return": _return,
        "read": _read,
        "project": _project,
        "answer": _answer,
    }.get(scene.chapter.kind)
    return (write(scene, shown) if write and shown else None) or _modules(scene, shown)


def photo(trace: Trace, shape: Sequence[int]) -> Caption:
    """Return the caption of the photo: its crop, and how many of its numbers go in."""
    channels, height, width = shape[-3:]
    picture = trace.picture
    facts = {"numbers": channels * height * width, "width": width, "height": height}
    colours = f"in {channels} colours" if channels > 1 else "in grey"
    sentence = f"The model gets {width} × {height} pixels {colours}: {channels * height * width:,} numbers."
    if picture is not None and picture.value in trace.values:
        high, wide = trace.values[picture.value].shape[:2]
        left, top, right, bottom = picture.crop
        share = (right - left) * (bottom - top) / (high * wide)
        facts["crop"] = share
        if share < 0.995:
            sentence += f" They come from {percent(share)} of the photo; the rest is cut off."
    return Caption("The photo", sentence, facts)


def words(trace: Trace, shape: Sequence[int], vocabulary: int | None) -> Caption:
    """Return the caption of the text: its tokens, and the size of the vocabulary."""
    unit = str(trace.result.get("unit", "token"))
    different = len(set(trace.words))
    known = f" The model knows {vocabulary:,} of them." if vocabulary else ""
    several = f"The first of {shape[0]} texts has " if len(shape) > 1 and shape[0] > 1 else ""
    sentence = f"{several}{len(trace.words)} {unit}s, {different} of them different.{known}"
    return Caption("The text", sentence, {"tokens": len(trace.words), "different": different})


def _patches(scene: Scene, shown: Step) -> Caption | None:
    array = tensor(scene.trace, shown)
    if array is None or array.ndim != 2:
        return None
    spread = array.std(-1)
    patch = int(spread.argmax())
    facts = {"patches": len(array), "numbers": array.shape[1], "patch": patch, "spread": float(spread[patch])}
    where = _place(scene.trace, patch, len(array))
    sentence = f"Each patch is {array.shape[1]:,} numbers. Those of {where} differ most from each other."
    return Caption(f"Cut into {len(array):,} patches", sentence, facts)


def _place(trace: Trace, patch: int, patches: int) -> str:
    picture = trace.picture
    if picture is None or picture.rows * picture.columns != patches:
        return f"patch {patch + 1}"
    return f"the patch in row {patch // picture.columns + 1}, column {patch % picture.columns + 1}"


def _tokens(scene: Scene, shown: Step) -> Caption | None:
    array = tensor(scene.trace, shown)
    if array is None or array.ndim != 2:
        return None
    lengths = np.linalg.norm(array, axis=-1)
    longest, shortest = float(lengths.max()), float(lengths.min())
    facts = {"tokens": len(array), "width": array.shape[1], "longest": longest, "shortest": shortest}
    lanes = scene.stream.lanes if scene.stream else []
    before = scene.before.present if scene.before else None
    image = any(
        lane.patch is not None and (before is None or not before[slot])
        for slot, lane in enumerate(lanes)
        if scene.after is not None and scene.after.present[slot]
    )
    what = "patch" if image else str(scene.trace.result.get("unit", "token"))
    sentence = (
        f"{len(array):,} {what}{'es' if image else 's'} are now {len(array):,} vectors of {array.shape[1]:,} numbers. "
        f"Their lengths run from {shortest:.3g} to {longest:.3g}."
    )
    title = "Each patch becomes a token" if image else f"Each {what} becomes a vector"
    ids = any("int" in operand.dtype for op in _ops(scene.trace, scene.chapter) for operand in op.inputs)
    joined = scene.after is not None and (before is None or (scene.after.present & ~before).any())
    if not (joined if image else ids and before is None):
        title = shown.title  # they were vectors before
    return Caption(title, sentence, facts)


def _sequence(scene: Scene, shown: Step) -> Caption | None:
    if scene.after is None:
        return None
    came = scene.after.present & ~(scene.before.present if scene.before else np.zeros_like(scene.after.present))
    new, total = np.flatnonzero(came), int(scene.after.present.sum())
    facts = {"new": len(new), "tokens": total}
    if scene.stream and (not new.size or new.size == total):
        lanes = [lane for lane, here in zip(scene.stream.lanes, scene.after.present, strict=True) if here]
        facts |= {"patches": sum(lane.patch is not None for lane in lanes), "words": sum(lane.word for lane in lanes)}
        parts = f": {facts['patches']:,} patches and {facts['words']:,} words" if facts["patches"] else ""
        return Caption(shown.title, f"The sequence has {total:,} tokens of {shown.shape[-1]:,} numbers{parts}.", facts)
    parameter = next((name.of for name in shown.names if name.of.startswith("parameter ")), "")
    what = scene.name(int(new[0])) if new.size == 1 else f"{new.size} more tokens"
    every = f"the same for every {'photo' if scene.trace.picture is not None else 'input'}."
    learned = f"{what[0].upper()}{what[1:]} is a learned vector" if new.size == 1 else "Their numbers are learned"
    source = f" {learned}, {every}" if parameter else ""
    sentence = f"{total - new.size:,} tokens and {what} make a sequence of {total:,}.{source}"
    return Caption(f"{what[0].upper()}{what[1:]} joins" if new.size == 1 else f"{what} join", sentence, facts)


def _position(scene: Scene, shown: Step) -> Caption | None:
    change = scene.after.change if scene.after is not None else None
    if change is None:
        return None
    if np.isnan(change).all():
        return _norm(scene, shown)
    lane, median = int(np.nanargmax(change)), float(np.nanmedian(change))
    facts = {"median": median, "largest": float(change[lane]), "lane": lane}
    sentence = (
        f"A vector for its position changes half of the tokens by more than {_multiple(median)} their length. "
        f"It changes {scene.name(lane)} most, by {_multiple(facts['largest']).removesuffix(' of')}."
    )
    return Caption("Each token gets its position", sentence, facts)


def _norm(scene: Scene, shown: Step) -> Caption | None:
    array = tensor(scene.trace, shown)
    if array is None or array.ndim != 2:
        return None
    lengths = np.linalg.norm(array, axis=-1)
    facts = {"tokens": len(array), "shortest": float(lengths.min()), "longest": float(lengths.max())}
    sentence = (
        f"{len(array):,} vectors of {array.shape[1]:,} numbers come out. "
        f"Their lengths now run from {facts['shortest']:.3g} to {facts['longest']:.3g}."
    )
    return Caption(shown.title, sentence, facts)


def _visible(scene: Scene, shown: Step) -> Caption | None:
    if scene.after is None or scene.before is None:
        return None
    left, before = int(scene.after.present.sum()), int(scene.before.present.sum())
    facts = {"hidden": before - left, "visible": left}
    sentence = f"The encoder gets {left:,} of {before:,} patches, and no number of the {before - left:,} others."
    return Caption(f"{before - left:,} patches are hidden", sentence, facts)


def _block(scene: Scene, shown: Step) -> Caption | None:
    number = f"Block {scene.chapter.number}" + (f" of {scene.blocks}" if scene.blocks > 1 else "")
    number += ", across" if scene.chapter.kind == "cross" else ""
    facts: dict[str, float] = {}
    looks, sentence, heads = _looks(scene, facts)
    changes = _changes(scene, facts)
    if not sentence and not changes:
        return Caption(number, _modules(scene, shown).sentence)
    return Caption(f"{number}{looks}", " ".join(filter(None, (sentence, changes))), facts, heads, changes)


def _looks(scene: Scene, facts: dict[str, float]) -> tuple[str, str, tuple[str, ...]]:
    """Describe what the focus attends to, as the end of a title, as a sentence on the mean over the heads, and as one
    on each head; empty where attention is not available."""
    if scene.weights is None or scene.focus not in scene.slots:
        return "", "", ()
    row, name = scene.weights[scene.slots.index(scene.focus)], scene.name(scene.focus)
    records = scene.chapter.records or scene.trace.attentions
    several = any(record.heads > 1 for record in records)
    rows = scene.rows if scene.rows is not None and several else row[None]
    alike = (kinds(rows) == kinds(row)).all()
    every = "In every head, " if several and alike else ""
    how, sentence = _row(scene, row, facts, "On average over the heads, " if several else "", every)
    rows = rows if several else ()
    heads = tuple(_row(scene, own, {}, f"In head {head}, ")[1] for head, own in enumerate(rows, 1))
    return f": {_short(name)} {how}", sentence, heads


def _row(scene: Scene, row: np.ndarray, facts: dict[str, float], start: str, every: str = "") -> tuple[str, str]:
    """Describe one row of weights of the focus, as a verb with its object and as a sentence.

    The sentence begins with `start`, or with `every` where it then holds in each head.
    """
    name, lanes = scene.name(scene.focus), scene.keys
    lanes = lanes or ([scene.stream.lanes[slot] for slot in scene.slots] if scene.stream else [])
    closed = scene.closed if scene.closed is not None else np.zeros(len(row), bool)
    kind, total, most = int(kinds(row, lambda: closed)), float(row.sum()), int(row.argmax())
    itself = not scene.keys and most == scene.slots.index(scene.focus)
    target = "itself" if itself else lanes[most].name
    if kind == NOTHING:
        facts |= {"total": total}
        return "attends to nothing", _sentence(every or start, name, "attends to nothing: every weight of its row is 0")
    if kind == ALONE:
        facts |= {"share": float(row[most]), "most": most}
        others, shut = len(row) - 1, closed.sum() == len(row) - 1 and not closed[most]
        why = f"the mask closes the other {others:,} token{'s' * (others > 1)}" if shut else "every other weight is 0"
        why = f": {why}" if others else ""
        return f"attends only to {_short(target)}", _sentence(every or start, name, f"attends only to {target}{why}")
    if kind == EVEN:
        facts |= {"share": float(row[most]), "open": int((row > 0).sum())}
        says = f"attends equally to all {facts['open']:,} tokens that it may attend to"
        return "attends to all equally", _sentence(start, name, says)
    whole = abs(total - 1) <= WHOLE
    facts |= {} if whole else {"total": total}
    of_it = " of its attention" if whole else ""
    together = "" if whole else f", and {percent(total)} to all tokens together"
    patches = [token for token, lane in enumerate(lanes) if lane.patch is not None and token < len(row)]
    free = [token for token in patches if not closed[token]]
    if len(free) >= 2 * TOP_PATCHES and not any(lane.word for lane in lanes):
        share = float(np.sort(row[free])[-TOP_PATCHES:].sum())
        even = total * TOP_PATCHES / int((~closed).sum())
        facts |= {"share": share, "even": even}
        how = "looks at a few patches" if share >= FOCUS_SHARE * total else "prefers some patches"
        how = how if share >= UNEVENNESS_FACTOR * even else "looks around"
        which = f"{len(free)} patches" if len(free) == len(patches) else f"the {len(free)} patches that are open to it"
        says = f"gives {percent(share)}{of_it} to {TOP_PATCHES} of {which}{together}"
        those = "them" if whole else "these patches"
        return how, f"{_sentence(start, name, says)} Equal weights would give {those} {percent(even)}."
    even = total / int((~closed).sum())
    facts |= {"share": float(row[most]), "most": most, "even": even}
    says = f"gives {percent(facts['share'])}{of_it} to {target}{together}"
    if patches and whole:
        facts["patches"] = float(row[patches].sum())
        says += f", and {percent(facts['patches'])} to all patches together"
    if facts["share"] >= min(FOCUS_SHARE * total, UNEVENNESS_FACTOR * even):
        return f"looks at {_short(target)}", _sentence(start, name, says)
    return "looks around", f"{_sentence(start, name, says)} Equal weights would give it {percent(even)}."


def _sentence(start: str, name: str, says: str) -> str:
    return f"{start}{name} {says}." if start else f"{name[0].upper()}{name[1:]} {says}."


def _short(name: str) -> str:
    return "one patch" if name.startswith("the patch") else name


def _changes(scene: Scene, facts: dict[str, float]) -> str:
    """Describe how far attention and MLP changed all tokens, or how far the block changed the focus, in a sentence."""
    if scene.after is not None and scene.after.attention is not None and not np.isnan(scene.after.attention).all():
        return _parts(scene.after.attention, scene.after.mlp, facts)
    change = scene.after.change if scene.after is not None else None
    if change is None or np.isnan(change[scene.focus]):
        return ""
    facts["change"] = float(change[scene.focus])
    name = scene.name(scene.focus)
    name = "the token" if scene.weights is None else name if len(name) <= SHORT_NAME else "it"
    return f"The block changes {name} by {_multiple(facts['change'])} its length."


def _parts(attention: np.ndarray, mlp: np.ndarray | None, facts: dict[str, float]) -> str:
    """Return how far attention, and then the MLP, moved the tokens on average, as a sentence."""
    known = attention[~np.isnan(attention)]
    facts |= {"tokens": known.size, "moved": int((known > 0).sum()), "attention": float(known.mean())}
    all_of_them = facts["moved"] == facts["tokens"]
    which = f"all {known.size:,} tokens" if all_of_them else f"{facts['moved']:,} of {known.size:,} tokens"
    sentence = f"Attention changes {which}, on average by {_multiple(facts['attention'])} their length"
    if mlp is None:
        return f"{sentence}."
    facts["mlp"] = float(np.nanmean(mlp))
    return f"{sentence}; the MLP then by {_multiple(facts['mlp']).removesuffix(' of')}."


def _multiple(share: float) -> str:
    """Return a share of a length, as it stands before that length in a sentence."""
    return f"{share:,.0f} times" if share >= 100 else f"{share:.3g} times" if share >= TIMES else f"{percent(share)} of"


def _return(scene: Scene, shown: Step) -> Caption | None:
    if scene.after is None or scene.before is None:
        return None
    back = scene.after.present & ~scene.before.present
    count, total = int(back.sum()), int(scene.after.present.sum())
    if not count:
        return None
    facts = {"back": count, "tokens": total}
    sentence = f"{count:,} mask tokens fill the missing lanes: {total:,} tokens again, each at its own place."
    return Caption(f"{count:,} hidden patches come back", sentence, facts)


def _read(scene: Scene, shown: Step) -> Caption | None:
    stream = scene.stream
    if stream is None:
        return None
    total = len(scene.slots)
    if stream.read is not None and stream.read in scene.slots:
        name, place = stream.lanes[stream.read].name, scene.slots.index(stream.read) + 1
        facts: dict[str, float] = {"place": place, "others": total - 1}
        array = tensor(scene.trace, shown)
        alone = array is not None and array.ndim == 1  # else a row of the answer is chosen later
        sentence = (
            f"What follows is computed from token {place} of {total:,} alone."
            if alone
            else f"The answer is the one computed from token {place} of {total:,}."
        )
        if scene.weights is not None:
            sentence += _weight_of_others(scene.weights[place - 1], place - 1, facts)
        title = f"Only {name} is read" if alone else f"The answer is read at {name}"
        return Caption(title, sentence, facts)
    if stream.mean_of:
        which, count = ("All tokens" if stream.mean_of == total else "The patches"), stream.mean_of
        return Caption(f"{which} are averaged", f"The mean of {count:,} tokens goes on.", {"tokens": count})
    array = tensor(scene.trace, shown)
    if array is None or array.ndim != 2:
        return None
    facts = {"tokens": len(array), "width": array.shape[1]}
    return Caption(
        "Every token is read", f"All {len(array):,} tokens go on, with {array.shape[1]:,} numbers each.", facts
    )


def _weight_of_others(row: np.ndarray, itself: int, facts: dict[str, float]) -> str:
    """Describe what a token gave to others in the last block, as a sentence that follows another."""
    own, others = float(row[itself]), f"the {len(row) - 1:,} others"
    if not row.any():
        return " In the last block, it attended to nothing: every weight of its row is 0."
    if abs(float(row.sum()) - 1) <= WHOLE:
        facts["to others"] = 1 - own
        return f" In the last block, it gave {percent(facts['to others'])} of its attention to {others}."
    facts["to others"] = float(row.sum()) - own
    return f" In the last block, its weights for {others} add up to {percent(facts['to others'])}."


def _project(scene: Scene, shown: Step) -> Caption | None:
    array = tensor(scene.trace, shown)
    if array is None or array.ndim not in (1, 2):
        return None
    if array.ndim == 2:
        facts = {"tokens": len(array), "width": array.shape[1]}
        sentence = f"All {len(array):,} vectors go on, with {array.shape[1]:,} numbers each."
        return Caption(shown.title, sentence, facts)
    facts = {"numbers": len(array), "length": float(np.linalg.norm(array))}
    count = f"{len(array):,} number{'s' * (len(array) != 1)}"
    sentence = f"The vector that goes on has {count} and the length {facts['length']:.3g}."
    return Caption(shown.title, sentence, facts)


def _answer(scene: Scene, shown: Step) -> Caption | None:
    try:
        caption = _result(scene.trace.result)
        if caption is not None and "random weights" in scene.trace.weights:  # then it is no answer
            return replace(caption, title=ANSWER.sub("What random weights say", caption.title))
        return caption
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError):  # out of a stranger's file
        return None


ANSWER = re.compile(r"^(The answer|Next|The best fit|The caption)(?=: |$)")
"""Beginnings of the title of an answer."""


def _result(result: Mapping[str, Any]) -> Caption | None:
    """Return the caption of a result, None for a kind that has none."""
    kind = result.get("kind")
    names = next((result[key] for key in ("classes", "sentences", "tokens") if key in result), ())
    if kind in ("classes", "sentences", "next", "caption") and len(names) > 1:
        (first, most), (second, next_share) = ranking(names, result["probabilities"])[:2]
        first, second = (shorten(visible_token(str(name)), 40) for name in (first, second))
        facts = {"share": most, "next": next_share}
        title = {"next": "Next: ", "sentences": "The best fit: "}.get(str(kind), "The answer: ")
        if kind == "caption":
            written = shorten(str(result["caption"]), 60)
            return Caption("The caption", f"“{written}”. What comes next is “{first}”, with {percent(most)}.", facts)
        sentence = f"“{first}” gets {percent(most)}. “{second}” is second, with {percent(next_share)}."
        return Caption(f"{title}{first}, {percent(most)}", sentence, facts)
    if kind == "tokens":
        least = float(min(result["probabilities"]))
        tokens = [str(token) for token in result["tokens"]]
        text = shorten(("" if all(len(token) == 1 for token in tokens) else " ").join(tokens), 60)
        return Caption(
            f"The answer: {text}",
            f"Each token is the most probable one at its position; the least certain has {percent(least)}.",
            {"least": least},
        )
    if kind == "labels":
        (first, most), (second, following) = ranking(result["classes"], result["shares"])[:2]
        sentence = f"{percent(most)} of the pixels are “{first}”, {percent(following)} are “{second}”."
        return Caption("A class for every pixel", sentence, {"share": most, "next": following})
    if kind == "map":
        facts = {name: float(result[name]) for name in ("share", "peak")}
        facts |= {name: int(result[name]) + 1 for name in ("row", "column")}
        return Caption("What matters in the photo", map_sentence(result), facts)
    if kind == "reconstruction":
        error = np.asarray(result["anomaly"], float)
        row, column = np.unravel_index(int(error.argmax()), error.shape)
        hidden = error.size - len(result["visible"])
        facts = {"row": row + 1, "column": column + 1, "hidden": hidden}
        sentence = f"The patch in row {row + 1}, column {column + 1} is the hardest to predict from the others."
        return Caption(f"{hidden} hidden patches, filled in", sentence, facts)
    return None


def _modules(scene: Scene, shown: Step | None) -> Caption:
    """Return the caption of steps for which no chapter is known: their number and their result."""
    chapter = scene.chapter
    paths = list(dict.fromkeys(op.module for op in _ops(scene.trace, chapter) if op.module))
    name = shorten(paths[0] if len(paths) == 1 else f"{paths[0]} … {paths[-1]}", 40) if paths else scene.trace.model
    title = shown.title if shown and len(chapter.steps) == 1 else f"Inside {name}"
    count = len(chapter.steps) or len(chapter.ops)
    what = "step" if chapter.steps else "operation"
    shape = (
        shown.shape if shown else chapter.ops[-1].outputs[0].shape if chapter.ops and chapter.ops[-1].outputs else ()
    )
    facts = {"count": count}
    out = f" Out comes {' × '.join(f'{side:,}' for side in shape)}." if shape else ""
    return Caption(title, f"{count:,} {what}{'s' if count > 1 else ''} of {name}.{out}", facts)


def _ops(trace: Trace, chapter: Chapter):
    if chapter.ops:
        return chapter.ops
    wanted = {index for step in chapter.steps for index in step.ops}
    return [op for op in trace.ops if op.index in wanted]


# Input of a run other than a photo or a text, for drawing: a wave, or a matrix in colours.

WAVE = 800
"""Columns of a wave at most; each is a line from the lowest to the highest of its values."""
STEPS = 128
"""Colours of a scale."""
ROWS, COLUMNS = 96, 320
"""Cells of a matrix at most."""


def name_of(tensors: Mapping[str, TensorRecord]) -> str | None:
    """Return the name of the largest input of real numbers that is a row or a matrix for each item of the batch."""
    drawn = {
        name: prod(record.shape)
        for name, record in tensors.items()
        if "float" in record.dtype and (record.symbolic or ())[:1] == ("B",) and len(record.shape) in (2, 3)
    }
    return max(drawn, key=drawn.__getitem__, default=None)


def values(trace: Trace, name: str) -> np.ndarray | None:
    """Return the numbers of an input for the first item of the batch; None where they are not available, or too
    many."""
    tensor = tensor_of(trace, name)
    if tensor is None or not 0 < prod(tensor.shape[1:]) <= VALUES:
        return None
    array = as_array(tensor[0])
    return array if np.isfinite(array).all() else None


def input_caption(array: np.ndarray | None, shape: tuple[int, ...]) -> Caption:
    """Return the caption of an input of a shape: how many numbers go in, and their range."""
    count = f"{shape[1]:,} numbers go in, one after the other" if len(shape) == 2 else ""
    count = count or f"A matrix of {shape[1]:,} × {shape[2]:,} numbers goes in"
    if array is None:
        return Caption("The input", f"{count}.")
    least, most = float(array.min()), float(array.max())
    sentence = f"{count}. They lie between {numeral(least)} and {numeral(most)}."
    return Caption("The input", sentence, {"least": least, "most": most})


def build_input(array: np.ndarray) -> dict[str, Any]:
    """Return the cells of an input for drawing, as shares.

    For a wave, they are shares of its largest number: a row of the lowest values of the columns, and one of the
    highest. For a matrix, they are shares of the way from one end of the scale to the other.
    """
    known = {"full": list(array.shape), "wave": array.ndim == 1}
    if array.ndim == 1:
        starts = np.arange(0, len(array), -(-len(array) // WAVE))
        cells = np.stack([ends.reduceat(array, starts) for ends in (np.minimum, np.maximum)])
        return known | {"cells": half(cells / (np.abs(array).max() or 1)), "colours": None}
    cells = reduce(array, ROWS, COLUMNS)[0]
    low, high = float(cells.min()), float(cells.max())
    start, end, scale = scale_ends(low, high, SEQUENTIAL)
    colours = table(DIVERGING_SCALE if scale == "diverging" else scale, STEPS)
    return known | {"cells": half((cells - start) / (end - start)), "colours": colours}
