"""Texts that a model continues: those of which it predicts the next token, and how that is known."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from torch import nn

from tracer.capture.calls import Call
from tracer.capture.modes import Function
from tracer.diagnostics.findings.attention import MIN_TOKENS, is_causal, is_later, off_diagonal
from tracer.diagnostics.findings.batches import BATCH
from tracer.diagnostics.findings.losses import label_pairs, logit_rows, losses
from tracer.graph.attention_sites import AttentionSite
from tracer.graph.dataflow import Graph
from tracer.record import TensorRecord

if TYPE_CHECKING:
    from tracer.diagnostics.findings.run_view import RunView

__all__ = ["Continuation", "continuations"]


NEXT_TOKEN_MODELS = ("CausalLM", "LMHeadModel")
"""Ends of names that libraries and their users give to models of the next token."""
NEXT_TOKEN_WORDS = frozenset(
    ("gpt", "lm", "causal", "decoder", "llama", "autoregressive", "language", "captioner", "captioning", "next")
)
"""Words in the names of classes of models of the next token."""
NEXT_TOKEN_PARTS = frozenset(("lm_head", "wte", "unembed", "unembedding"))
"""Names of modules in models of the next token."""
WRITERS = frozenset(("generate", "sample", "autocomplete", "complete", "continue", "greedy"))
"""Words in the names of methods that write a text."""
OTHER_WORDS = frozenset(
    "mlm bert roberta deberta albert electra xlm xlnet flaubert bidirectional denoiser denoising diffusion"
    " tagger cloze".split()
)
"""Words in the names of models that see a text from both sides."""
OTHER_KINDS = OTHER_WORDS | {"encoder", "masked", "mask"}
"""Such words of the whole model alone: a part of a model of the next token may be called a masked attention."""
READS_WHAT_IT_PREDICTS = "it reads what it has to predict."
READS_LATER = "each position reads later ones: right for an encoder, a leak for a model that predicts the next token."


class Continuation(NamedTuple):
    """A text that a model continues: the name of its input, the axis of its tokens, their number, the symbols of that
    number, and where it is known from.

    `logits` is the key of the logits of a loss, "" where the outputs are compared, and `shift` by how many positions
    labels are ahead of them. `lengths` are the numbers of tokens that the model reads, and `start` is the first of
    them. `verdict` says what follows where an answer moves with a later token.
    """

    name: str
    axis: int
    length: int
    sizes: tuple[str, ...]
    known: str
    logits: str = ""
    shift: int = 1
    lengths: tuple[int, ...] = ()
    start: int = 0
    verdict: str = READS_WHAT_IT_PREDICTS

    def axes(self, record: TensorRecord) -> list[int]:
        """Return the axes of a tensor along which these tokens lie; those of their number where there are no
        symbols."""
        if record.symbolic and self.sizes:
            return [axis for axis, size in enumerate(record.symbolic) if size in self.sizes]
        return [axis for axis, size in enumerate(record.shape) if size in (self.lengths or (self.length,))]


class NextToken(NamedTuple):
    """Evidence that a model predicts the next token, and what follows where an answer moves with a later one."""

    known: str
    verdict: str = READS_WHAT_IT_PREDICTS


def continuations(run: RunView) -> Iterator[Continuation]:
    """Yield the texts of which a model predicts the next token, by its loss, its attention, its parts or its class."""
    records, memories, known = run.input_records, set(_memories(run)), set()
    pairs_of_losses = [pairs for loss in losses(run) if (pairs := label_pairs(run, loss)) is not None]
    for pairs in pairs_of_losses:
        if pairs.shift < 1 or pairs.ids in memories or pairs.ids not in records:
            continue
        record = records[pairs.ids]
        known_records = (record, 1), (run.record(pairs.logits), pairs.axis)
        sizes = {each.symbolic[axis] for each, axis in known_records if each is not None and each.symbolic}
        known.add(pairs.ids)
        yield Continuation(
            pairs.ids, 1, record.shape[1], tuple(sorted(sizes - {"?"})), "Its loss is that of the next token.",
            pairs.logits, pairs.shift,
        )  # fmt: skip
    if any(pairs.shift == 0 for pairs in pairs_of_losses):
        return  # it predicts tokens that it was given, such as hidden ones
    own = _next_token_evidence(run)
    for text in _scored_texts(run):
        evidence = own or _decoder_evidence(run, text.name, memories) or _weak_evidence(run)
        if evidence is not None and text.name not in known | memories:
            known.add(text.name)
            yield text._replace(known=evidence.known, verdict=evidence.verdict)
    for site in run.sites if own else ():
        length, keys = _lengths(run.graph, site)
        if length < MIN_TOKENS or keys != length:
            continue
        above = {*run.graph.ancestors([site.q])}
        for name, record in records.items():
            axis = _token_axis(record, length)
            if f"input {name}" in above and axis is not None and name not in known | memories:
                known.add(name)
                sizes = (record.symbolic[axis],) if record.symbolic else ()
                yield Continuation(name, axis, length, sizes, own.known, verdict=own.verdict)  # type: ignore[union-attr]


def _scored_texts(run: RunView) -> Iterator[Continuation]:
    """Yield the texts of ids at each of whose tokens the model scores the ids of a table that it reads them with, in an
    output or in a loss."""
    graph = run.graph
    rows = [rows for loss in losses(run) if (rows := logit_rows(run, loss.arguments["self"])) is not None]
    for call in graph.calls:
        text = _read_text(run, call) if call.op.name == "embedding" else None
        if text is None:
            continue
        within, table = graph.descendants(call.outputs[0].key), graph.shape(call.arguments["weight"].key)[0]
        outputs = [ref.key for ref in graph.outputs if ref.key in within and _scores(run, ref.key, table, text)]
        logits = [row.key for row in rows if row.key in within and _scores(run, row.key, table, text)]
        if outputs or logits:
            yield text if outputs else text._replace(logits=logits[0])


def _read_text(run: RunView, call: Call) -> Continuation | None:
    """Return the text whose ids index a table, with the tokens that are read; None for other numbers."""
    key, out = call.arguments["indices"].key, call.outputs[0]
    root, places = run.places(key)
    name = root.removeprefix("input ")
    ids, record = run.inputs.get(name), run.input_records.get(name)
    if ids is None or record is None or ids.dim() != 2 or len(places.shape) != 2 or ids.is_floating_point():
        return None
    axis = int(not record.symbolic or record.symbolic[1] != BATCH)
    tokens = np.asarray(np.unravel_index(places.table().reshape(places.shape), tuple(ids.shape)))[axis]
    along = int(bool((tokens == tokens[:1]).all()))
    order = tokens[0] if along else tokens[:, 0]
    start, length = int(order[0]), len(order)
    if length < MIN_TOKENS or order.tolist() != [*range(start, start + length)]:
        return None
    read = run.record(out.key)
    sizes = {record.symbolic[axis]} if record.symbolic else set()
    sizes |= {read.symbolic[along]} if read is not None and read.symbolic else set()
    lengths, texts = (ids.shape[axis], length), tuple(sorted(sizes - {"?"}))
    return Continuation(name, axis, ids.shape[axis], texts, "", lengths=lengths, start=start)


def _scores(run: RunView, key: str, table: int, text: Continuation) -> bool:
    """Return whether a value has a number for each row of a table at each token of a text."""
    record = run.record(key)
    return record is not None and "float" in record.dtype and table in record.shape and len(text.axes(record)) == 1


def _next_token_evidence(run: RunView) -> NextToken | None:
    """Return why a model is one of the next token, by its attention, by a mask, or by its class in libraries; None if
    it is none."""
    if is_causal(run):
        return NextToken("Its attention is causal.")
    if (diagonals := off_diagonal(run)) is not None:
        seen = "the next token" if diagonals == 1 else f"the {diagonals} next tokens"
        return NextToken(f"Its mask is a triangle, as of a model of the next token, and shows each token {seen}, too.")
    module = None if run.replay is None else run.replay.module
    kind = "" if module is None or isinstance(module, Function) else type(module).__name__
    if not kind.endswith(NEXT_TOKEN_MODELS) or (not kind.endswith(NEXT_TOKEN_MODELS[0]) and _words(kind) & OTHER_WORDS):
        return None
    return NextToken(f"`{kind}` predicts the next token.")


def _has_idle_triangle(run: RunView) -> bool:
    """Return whether a mask that hides later tokens was made or kept, and reaches no output."""
    graph = run.graph
    live = {*graph.ancestors(ref.key for ref in graph.outputs)}
    if run.replay is None:
        return False
    idle = [
        tensor
        for name, tensor in (*run.replay.module.named_buffers(), *run.inputs.items())
        if not {f"parameter {name}", f"input {name}"} & live
    ]
    for call in graph.calls:
        if call.op.name in ("tril", "triu") and not live & graph.descendants(call.outputs[0].key):
            idle.append(run.value(call.outputs[0].key))
    return any(tensor is not None and is_later(tensor) for tensor in idle)


def _decoder_evidence(run: RunView, name: str, memories: set[str]) -> NextToken | None:
    """Return that a text is the one that a decoder writes: it is read beside another text, by an attention or a
    recurrent layer that hands the other on."""
    tables = {run.graph.root(call.arguments["indices"].key) for call in run.graph.calls if call.op.name == "embedding"}
    sources = sorted(other for other in memories if other != name and f"input {other}" in tables)
    if not sources:
        return None
    return NextToken(
        f"A decoder reads `{name}` beside `{sources[0]}`, and scores the ids of its table at each token: it predicts"
        " the next one."
    )


def _weak_evidence(run: RunView) -> NextToken | None:
    """Return that a model holds a mask of later tokens, which it does not use, or is called one of the next token, by
    its class, its parts or its methods; None for a model with a name of those that see both sides."""
    module = None if run.replay is None else run.replay.module
    if module is None or isinstance(module, Function):
        return None
    kind, parts = type(module).__name__, list(module.named_modules())[1:]
    attributes = {name.rpartition(".")[2] for name, _ in (*parts, *module.named_parameters())} | vars(module).keys()
    classes = {type(part).__name__ for _, part in parts}
    if _words(kind) & (OTHER_WORDS | {"encoder", "masked", "mask"}) or any(
        _words(name) & OTHER_WORDS for name in classes
    ):
        return None
    if any("mask" in _words(name) and _words(name) & {"token", "id"} for name in attributes):
        return None
    if _has_idle_triangle(run):
        return NextToken("The model has a mask that hides later tokens, and no output depends on it.", READS_LATER)
    methods = [name for each in type(module).__mro__ if each not in nn.Module.__mro__ for name in vars(each)]
    writers = [f"its method `{name}`" for name in methods if _words(name) & WRITERS]
    named = [f"`{name}`" for name in (kind, *sorted(classes)) if _words(name) & NEXT_TOKEN_WORDS]
    sign = next(iter([*writers, *named, *(f"`{name}`" for name in sorted(attributes & NEXT_TOKEN_PARTS))]), "")
    if not sign:
        return None
    known = f"The model scores the ids of its table at each token, and {sign} says that it predicts the next one."
    return NextToken(known, READS_LATER)


def _words(name: str) -> set[str]:
    """Return the words of a name in camel or snake case, in lower case, without digits."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def _lengths(graph: Graph, site: AttentionSite) -> tuple[int, int]:
    """Return the numbers of queries and keys of an attention; 0 for none."""
    if site.weights is not None:
        return graph.shape(site.weights)[-2:] if len(graph.shape(site.weights)) > 1 else (0, 0)  # type: ignore[return-value]
    shapes = graph.shape(site.q), graph.shape(site.k)
    return (shapes[0][-2], shapes[1][-2]) if min(map(len, shapes)) > 1 else (0, 0)


def _token_axis(record: TensorRecord, length: int) -> int | None:
    """Return the axis of an input that holds tokens: not that of samples, and not the last one of floats."""
    axes = range(len(record.shape) - ("float" in record.dtype))
    fitting = [axis for axis in axes if record.shape[axis] == length]
    if record.symbolic:
        fitting = [axis for axis in fitting if record.symbolic[axis] != BATCH]
    return fitting[-1] if fitting else None


def _memories(run: RunView) -> Iterator[str]:
    """Yield the inputs that some attention reads as another stream than that of its queries, as a decoder reads what
    the encoder made."""
    for name in run.inputs:
        within = run.graph.descendants(f"input {name}")
        if any(_is_memory(run.graph, site, within) for site in run.sites):
            yield name


def _is_memory(graph: Graph, site: AttentionSite, within: set[str]) -> bool:
    """Return whether keys come from another stream than queries: there is no one value, after the ids, that both were
    computed from."""
    if site.k not in within:
        return False
    if site.q not in within:
        return graph.depends[site.q] == "x"  # learned queries pool, and predict nothing
    waiting = {site.q, site.k}
    while len(waiting) > 1 or not waiting & graph.producer.keys():
        last = max(waiting, key=lambda key: graph.producer.get(key, -1))
        if last not in graph.producer:
            break
        waiting.remove(last)
        waiting |= {ref.key for ref in graph.inputs[graph.producer[last]] if ref.key in within}
        if len(waiting) == 1:
            break
    return len(waiting) != 1 or not graph.ref[next(iter(waiting))].dtype.is_floating_point
