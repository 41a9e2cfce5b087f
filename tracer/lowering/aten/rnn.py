"""Lowerings of recurrent layers: one node for each layer and direction."""

from __future__ import annotations

from tracer.expr import GRU, LSTM, RNN, Concat, Node, Rearrange, Slice, Stack
from tracer.lowering.aten import of
from tracer.lowering.call_arguments import Given

FULL = (None, None, None)


def _swapped(x: Node, shape: tuple) -> Node:
    return Rearrange(x, shape, ((0,), (1,), (2,)), ((1,), (0,), (2,)))


def _layers(given: Given, node: type[Node], hidden: list[Node], **settings) -> Node | None:
    """Lower stacked layers; each reads the concatenated directions of the one before."""
    if "batch_sizes" in given.arguments or (given["train"] and given["dropout"]):
        return None
    shape = given.shape("input")
    x = _swapped(given["input"], shape) if given["batch_first"] else given["input"]
    ways, count = 1 + given["bidirectional"], 2 + 2 * given["has_biases"]
    weights = given["params"]
    if len(weights) != given["num_layers"] * ways * count:
        return None  # projections
    ends = []
    for layer in range(given["num_layers"]):
        made = []
        for way in range(ways):
            place = layer * ways + way
            states = [Slice(state, (place, FULL, FULL)) for state in hidden]
            operands = (x, *states, *weights[place * count : (place + 1) * count])
            made.append(node(*operands, back=bool(way), **settings))
            if given.position:
                ends.append(node(*operands, back=bool(way), last=given.position - 1, **settings))
        x = made[0] if ways == 1 else Concat(*made, axis=2, rank=3)
    if given.position:
        return Stack(*ends, axis=0)
    states = given.shape("hx")
    width = ways * (states[0] if isinstance(states, list) else states)[-1]
    return _swapped(x, (shape[1], shape[0], width)) if given["batch_first"] else x


@of("lstm")
def lstm(given: Given) -> Node | None:
    return _layers(given, LSTM, given["hx"])


@of("gru")
def gru(given: Given) -> Node | None:
    return _layers(given, GRU, [given["hx"]])


@of("rnn_tanh")
def rnn_tanh(given: Given) -> Node | None:
    return _layers(given, RNN, [given["hx"]])


@of("rnn_relu")
def rnn_relu(given: Given) -> Node | None:
    return _layers(given, RNN, [given["hx"]], relu=True)


def _cell(given: Given, node: type[Node], states: list[Node], **settings) -> Node | None:
    """Lower one step as a sequence of length 1."""
    if given.rank("input") != 2:
        return None
    batch, width = given.shape("input")
    x = Rearrange(given["input"], (batch, width), ((0,), (1,)), ((), (0,), (1,)))
    biases = [given[name] for name in ("b_ih", "b_hh") if given.has(name)]
    return node(x, *states, given["w_ih"], given["w_hh"], *biases, last=given.position, **settings)


@of("lstm_cell")
def lstm_cell(given: Given) -> Node | None:
    return _cell(given, LSTM, given["hx"])


@of("gru_cell")
def gru_cell(given: Given) -> Node | None:
    return _cell(given, GRU, [given["hx"]])


@of("rnn_tanh_cell")
def rnn_tanh_cell(given: Given) -> Node | None:
    return _cell(given, RNN, [given["hx"]])


@of("rnn_relu_cell")
def rnn_relu_cell(given: Given) -> Node | None:
    return _cell(given, RNN, [given["hx"]], relu=True)
