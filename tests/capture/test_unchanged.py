"""A trace changes nothing: neither the module, nor its inputs, nor the process; and it reports what it lacks."""

import copy
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue

import pytest
import torch
from torch import nn

import tracer
from tests.support.hazards import FusedAttention
from tests.support.sweeping import cases
from tracer import zoo
from tracer.capture import modes, record
from tracer.capture.state import StateSnapshot


class Remembers(nn.Module):
    """A module that changes whatever a module can hold, and takes another branch where the sequence is short (like
    BigBird)."""

    @dataclass
    class Config:
        way: str = "sparse"

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 5)
        self.config = self.Config()
        self.calls, self.seen, self.cache = 0, [], {"first": None}
        self.sizes, self.last, self.plain = set(), deque(maxlen=3), torch.zeros(3)
        self.register_buffer("table", torch.zeros(4))
        self.short = False

    def forward(self, x, store=None):
        self.calls += 1
        self.seen.append(x.shape)
        self.cache["first"] = x
        self.cache["more"] = 1
        self.sizes.add(x.shape[1])
        self.last.append(self.calls)
        self.plain += 1
        self.table = self.table + 1
        self.config.way = "full"
        self.fresh = x.mean()
        if x.shape[1] < 70:
            self.short = True
        if store is not None:
            store["x"] = x
        y = self.linear(x)
        return y * 2 if self.short else y


def snapshot(value, depth=6):
    if isinstance(value, torch.Tensor):
        return ("tensor", id(value), value.detach().clone().flatten().tolist()[:50])
    if isinstance(value, (str, int, float, bool, type(None), bytes)):
        return value
    if depth == 0:
        return type(value).__name__
    if isinstance(value, dict):
        return [(str(key), snapshot(item, depth - 1)) for key, item in value.items()]
    if isinstance(value, (list, tuple, deque)):
        return [snapshot(item, depth - 1) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    return type(value).__name__, snapshot(vars(value), depth - 1) if hasattr(value, "__dict__") else ""


@pytest.mark.parametrize("symbols", [None, {"B": 0, "T": 1}], ids=["alone", "probed"])
def test_attributes_caches_and_counters_are_as_they_were(symbols):
    net, x, store = Remembers(), torch.randn(2, 80, 5), {}
    expected = copy.deepcopy(net)(x)
    before = snapshot(net)
    trace = tracer.trace(net, x, store=store, symbols=symbols)
    assert snapshot(net) == before and store == {} and torch.equal(trace.output, expected)
    assert torch.equal(net(x), expected)


def test_a_failing_forward_leaves_nothing_behind():
    net = Remembers()
    before = snapshot(net)
    with pytest.raises(RuntimeError):
        tracer.trace(net, torch.randn(2, 80, 4))
    assert snapshot(net) == before


def test_inputs_are_as_they_were_and_the_output_is_what_ran():
    class Writes(nn.Module):
        def forward(self, x):
            return x.relu_()

    x = torch.randn(2, 5)
    before = x.clone()
    trace = tracer.trace(Writes(), x, symbols={"B": 0})
    assert torch.equal(x, before) and torch.equal(trace.output, before.relu())


def test_the_probes_run_a_copy_that_shares_the_parameters():
    calls = SimpleQueue()  # a list would be put back

    class Looks(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(5))

        def forward(self, x):
            calls.put((id(self), id(self.weight)))
            return x * self.weight

    net = Looks()
    tracer.trace(net, torch.randn(2, 5), symbols={"B": 0})
    ran = [calls.get() for _ in range(calls.qsize())]
    assert {weight for _, weight in ran} == {id(net.weight)}
    assert ran[0][0] == id(net) and id(net) not in {module for module, _ in ran[1:]} and len(ran) == 10


def test_threads_that_trace_one_module_leave_each_other_its_cache():
    class Caches(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = None

        def forward(self, x):
            if self.table is None:
                self.table = torch.ones(5)
            return x.sin().cos() * self.table.exp()

    net = Caches()
    with ThreadPoolExecutor(4) as pool:
        for trace in pool.map(lambda _: tracer.trace(net, torch.randn(2, 5)), range(40)):
            assert trace.ops[-1].op == "mul"
    assert net.table is None


FAMILIES = [name for name in zoo.examples() if not name.startswith("torchvision:") or name.endswith("vit_b_16")]


@pytest.mark.parametrize("name", cases(FAMILIES, FAMILIES[::8]))
def test_every_family_is_as_it_was(name):
    model = tracer.load(name, **zoo.tiny(name))
    given = model.inputs()
    first = next(iter(record(model.net, tuple(given), given.named).inputs))
    before = snapshot(model.net)
    model.trace(prove=False)
    with torch.no_grad():
        tracer.trace(model.net, *given, prove=False, symbols={"B": (first, 0)}, **given.named)
    assert snapshot(model.net) == before


def test_a_big_bird_stays_sparse():
    from transformers import BigBirdConfig, BigBirdModel

    config = BigBirdConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        block_size=4, num_random_blocks=1, max_position_embeddings=128, attention_type="block_sparse",
    )  # fmt: skip
    net, ids = BigBirdModel(config).eval(), torch.randint(50, (1, 64))
    with torch.no_grad():
        before = snapshot(net)
        tracer.trace(net, ids, symbols={"B": 0, "T": 1}, prove=False)
        assert net.attention_type == "block_sparse" and snapshot(net) == before


def test_a_forward_that_works_in_other_threads_says_so():
    class Threaded(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(5, 5)

        def forward(self, x):
            found = []
            thread = threading.Thread(target=lambda: found.append(self.linear(x)))
            thread.start()
            thread.join()
            return found[0] + 1

    class Pooled(Threaded):
        pool = ThreadPoolExecutor(1)

        def forward(self, x):
            return self.pool.submit(self.linear, x).result() + 1

    start = threading.Thread.start
    Pooled.pool.submit(int).result()  # its thread is there before the trace
    for net in (Threaded(), Pooled()):
        trace = tracer.trace(net, torch.randn(2, 5))
        assert trace.notes == (
            "The forward hands work to other threads: operations that run in them are not in this trace.",
        )
    assert threading.Thread.start is start and tracer.trace(nn.Linear(5, 5), torch.randn(2, 5)).notes == ()


def test_an_opened_fast_path_says_by_how_much_the_output_differs():
    layer, x = nn.TransformerEncoderLayer(12, 2, 20, batch_first=True).eval(), torch.randn(2, 7, 12)
    assert tracer.trace(layer, x).opened_error is None  # with gradients, PyTorch takes no fast path
    with torch.no_grad():
        trace, plain = tracer.trace(layer, x), layer(x)
        assert trace.opened_error == pytest.approx(float((trace.output - plain).abs().max() / plain.abs().max()))
        assert f"differs by {trace.opened_error:.1e} of the largest value" in trace.notes[0]
        assert tracer.trace(FusedAttention(), x).notes == ()


def test_padded_rows_that_a_fast_path_leaves_out_are_said():
    layer, x = nn.TransformerEncoderLayer(12, 2, 20, batch_first=True), torch.randn(2, 7, 12)
    net, mask = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True).eval(), torch.zeros(2, 7, dtype=torch.bool)
    mask[1, 4:] = True
    with torch.no_grad():
        trace = tracer.trace(net, x, src_key_padding_mask=mask)
        assert not net(x, src_key_padding_mask=mask)[1, 4:].any()
        most = trace.output[1, 4:].abs().max().item()
        assert (
            f"0 in 3 of the 14 rows of the output, as for padding, where opened they give up to {most:.3g}"
            in (trace.notes[0])
        )
        mask[0, 6:] = True  # other padding: compared anew
        assert "4 of the 14 rows" in tracer.trace(net, x, src_key_padding_mask=mask).notes[0]


def test_a_fast_path_is_compared_once(monkeypatch):
    calls, compared = [], modes._run_fast_path
    monkeypatch.setattr(modes, "_run_fast_path", lambda *given: calls.append(1) or compared(*given))
    net = nn.MultiheadAttention(12, 2, batch_first=True).eval()
    with torch.no_grad():
        notes = [tracer.trace(net, *[torch.randn(2, 7, 12)] * 3).notes[0] for _ in range(3)]
    assert len(calls) == 1 and notes[1].startswith(notes[0]) and "first input of these sizes" in notes[1]


def test_state_looks_at_no_more_than_it_may():
    held = {str(i): [i] for i in range(30_000)}
    before = StateSnapshot(held)
    held["0"].append(1)
    held["new"] = 2
    before.restore()
    assert "new" not in held


@pytest.mark.parametrize("call", [torch.linalg.svdvals, torch.linalg.eigvalsh])
def test_numbers_whose_vectors_are_computed_because_they_are_watched_are_said(call):
    """PyTorch asks for vectors where a mode sees the op, and LAPACK then takes another routine."""
    torch.manual_seed(0)
    x = torch.randn(5, 5)
    x = x + x.T
    with torch.no_grad():
        trace, plain = tracer.trace(call, x), call(x)
        assert tracer.trace(lambda x: torch.linalg.svd(x)[1] + torch.linalg.eigh(x)[0], x).notes == ()
    assert trace.notes == (
        f"While a run is watched, PyTorch computes '{call.__name__}' with the vectors, by another routine: without a "
        "trace its last digits may be others.",
    )
    assert torch.allclose(trace.output, plain, rtol=1e-5)
