"""Recurrent layers, as printed equations have them: numpy and nothing else."""

from __future__ import annotations

import numpy as np


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _lstm(given: np.ndarray, kept: np.ndarray, states: list[np.ndarray], relu: bool) -> list[np.ndarray]:
    enter, forget, new, out = np.split(given + kept, 4, axis=-1)
    cell = _sigmoid(forget) * states[1] + _sigmoid(enter) * np.tanh(new)
    return [_sigmoid(out) * np.tanh(cell), cell]


def _gru(given: np.ndarray, kept: np.ndarray, states: list[np.ndarray], relu: bool) -> list[np.ndarray]:
    (r_x, z_x, n_x), (r_h, z_h, n_h) = np.split(given, 3, axis=-1), np.split(kept, 3, axis=-1)
    z = _sigmoid(z_x + z_h)
    return [(1 - z) * np.tanh(n_x + _sigmoid(r_x + r_h) * n_h) + z * states[0]]


def _rnn(given: np.ndarray, kept: np.ndarray, states: list[np.ndarray], relu: bool) -> list[np.ndarray]:
    return [np.maximum(given + kept, 0) if relu else np.tanh(given + kept)]


def _recurrent(step, count: int):
    def run(below, x: np.ndarray, *rest: np.ndarray) -> np.ndarray:
        states, (w, u, *biases) = list(rest[:count]), rest[count:]
        b, d = biases or (0, 0)
        order = range(len(x))[::-1] if below.has("back") else range(len(x))
        made = np.empty((len(x), *states[0].shape))
        for place in order:
            states = step(x[place] @ w.T + b, states[0] @ u.T + d, states, below.has("relu"))
            made[place] = states[0]
        return states[1] if below.has("last cell") else states[0] if below.has("last") else made

    return run


RECURRENT = {"LSTM": _recurrent(_lstm, 2), "GRU": _recurrent(_gru, 1), "RNN": _recurrent(_rnn, 1)}
