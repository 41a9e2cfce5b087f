"""Sizes that log their comparisons are numbers like any other."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch

from tracer.capture.logged_sizes import SizeLog
from tracer.capture.tensors import ProducerIndex

RESULTS = {
    "sum": lambda n: n + 3,
    "difference": lambda n: 3 - n,
    "quotient": lambda n: n / 2,
    "whole quotient": lambda n: n // 4,
    "remainder": lambda n: -n % 64,
    "both": lambda n: divmod(n, 4),
    "power": lambda n: (n**2, 2**n, pow(n, 2, 5)),
    "bits": lambda n: (n & 1, 1 << n, n >> 1, n.bit_length(), ~n),
    "repeated": lambda n: (n * [1], [0] * n, "a" * n),
    "rounded": lambda n: (round(n / 2), math.ceil(n / 4), math.floor(n / 4), int(n * 0.7), math.trunc(n / 4)),
    "absolute": lambda n: (abs(-n), +n),
    "text": lambda n: (str(n), f"{n:>4}", repr(n / 2)),
    "key": lambda n: ({9: 1}[n], n in {9}, n in (1, 9), hash(n)),
    "sequence": lambda n: (range(n), [*range(12)][n], max(n, 3), sum([n, n])),
    "functions": lambda n: (math.sqrt(n), float(n), np.zeros(n).shape, n * np.float64(2), np.int64(3) * n),
    "tensor": lambda n: (n * torch.ones(2)).tolist(),
    "comparison": lambda n: (n < 10, n <= 9, n > 9, n >= 9.5, n == 9.0, n != 9, n / 2 > 4, bool(n - 9)),
}


def read(shape=(4, 9)):
    return torch.zeros(shape).shape[1]


@pytest.mark.parametrize("name", RESULTS)
def test_results_are_those_of_plain_numbers(name):
    with SizeLog():
        logged = RESULTS[name](read())
    assert repr(logged) == repr(RESULTS[name](9))


def test_copies_are_plain():
    with SizeLog():
        size = read()
    assert [type(copy.deepcopy(size)), type(pickle.loads(pickle.dumps(size / 2)))] == [int, float]


@pytest.mark.parametrize(
    ("compare", "count"),
    [
        (lambda n: n > 8, 1),
        (lambda n: min(n // 2, 6), 1),
        (lambda n: n % 64, 1),
        (lambda n: n % 4, 0),
        (lambda n: 1 if n % 4 else 2, 1),
        (lambda n: round(n * 0.01), 1),
        (lambda n: n * 2 + 1, 0),
        (lambda n: [n > 8 for _ in range(5)], 1),
    ],
)
def test_comparisons_are_logged_once_each(compare, count):
    with SizeLog() as log:
        compare(read())
    assert len(log.comparisons) == count


@pytest.mark.parametrize(
    ("ask", "count"),
    [
        (lambda x: x[:, :128], 1),
        (lambda x: x[..., :128], 1),
        (lambda x: x[:, :9], 0),
        (lambda x: x[:, None, :4], 1),
        (lambda x: x[x > 0][:3], 1),
        (lambda x: x.split(100, 1), 1),
        (lambda x: torch.split(x, [4, 5], 1), 0),
        (lambda x: x.chunk(2, -1), 1),
        (lambda x: x[:, x.shape[1] - 3], 1),
        (lambda x: x.numel() > 200, 1),
    ],
)
def test_sizes_that_are_asked_for_are_compared(ask, count):
    with SizeLog() as log:
        ask(torch.zeros(4, 9))
    assert len(log.comparisons) == count


def test_memory_that_was_written_to_and_freed_says_nothing_of_what_takes_its_place():
    producers = ProducerIndex({})
    for op in range(20):
        written = torch.zeros(3)
        producers.record(written, op)
        producers.wrote(written, op)
        del written
        assert producers.of(torch.zeros(3))[2] == "constant"
