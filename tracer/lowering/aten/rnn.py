"""Lowerings of recurrent layers: one node for each layer and direction."""

from __future__ import annotations

from tracer.expr import GRU, LSTM, RNN, Concat, Node, Rearrange, Slice, Stack
from tracer.lowering.aten import register_lowering
from tracer.lowering.call_arguments import BoundCall

FULL_SLICE = (None, None, None)


def _swap_batch_and_time(x: Node, shape: tuple) -> Node:
    return Rearrange(x, shape, ((0,), (1,), (2,)), ((1,), (0,), (2,)))


def _layers(call: BoundCall, node: type[Node], hidden: list[Node], **settings) -> Node | None:
    """Lower stacked layers; each reads the concatenated directions of the one before."""
    if "batch_sizes" in call.arguments or (call["train"] and call["dropout"]):
        return None
    shape = call.shape("input")
    x = _swap_batch_and_time(call["input"], shape) if call["batch_first"] else call["input"]
    ways, weights = 1 + call["bidirectional"], call["params"]
    count = len(weights) // (call["num_layers"] * ways)
    ends = []
    for layer in range(call["num_layers"]):
        layers = []
        for way in range(ways):
            place = layer * ways + way
            states = [Slice(state, (place, FULL_SLICE, FULL_SLICE)) for state in hidden]
            operands = (x, *states, *weights[place * count : (place + 1) * count])
            layers.append(node(*operands, back=bool(way), **settings))
            if call.position:
                ends.append(node(*operands, back=bool(way), last=call.position - 1, **settings))
        x = layers[0] if ways == 1 else Concat(*layers, axis=2, rank=3)
    if call.position:
        return Stack(*ends, axis=0)
    states = call.shape("hx")
    width = ways * (states[0] if isinstance(states, list) else states)[-1]
    return _swap_batch_and_time(x, (shape[1], shape[0], width)) if call["batch_first"] else x


@register_lowering("lstm")
def lstm(call: BoundCall) -> Node | None:
    return _layers(call, LSTM, call["hx"])


@register_lowering("gru")
def gru(call: BoundCall) -> Node | None:
    return _layers(call, GRU, [call["hx"]])


@register_lowering("rnn_tanh")
def rnn_tanh(call: BoundCall) -> Node | None:
    return _layers(call, RNN, [call["hx"]])


@register_lowering("rnn_relu")
def rnn_relu(call: BoundCall) -> Node | None:
    return _layers(call, RNN, [call["hx"]], relu=True)


def _cell(call: BoundCall, node: type[Node], states: list[Node], **settings) -> Node | None:
    """Lower one step as a sequence of length 1."""
    if call.rank("input") != 2:
        return None
    batch, width = call.shape("input")
    x = Rearrange(call["input"], (batch, width), ((0,), (1,)), ((), (0,), (1,)))
    biases = [call[name] for name in ("b_ih", "b_hh") if call.has(name)]
    return node(x, *states, call["w_ih"], call["w_hh"], *biases, last=call.position, **settings)


@register_lowering("lstm_cell")
def lstm_cell(call: BoundCall) -> Node | None:
    return _cell(call, LSTM, call["hx"])


@register_lowering("gru_cell")
def gru_cell(call: BoundCall) -> Node | None:
    return _cell(call, GRU, [call["hx"]])


@register_lowering("rnn_tanh_cell")
def rnn_tanh_cell(call: BoundCall) -> Node | None:
    return _cell(call, RNN, [call["hx"]])


@register_lowering("rnn_relu_cell")
def rnn_relu_cell(call: BoundCall) -> Node | None:
    return _cell(call, RNN, [call["hx"]], relu=True)
