"""A trace changes nothing: not the module, nor what it is given, nor the process; and what it lacks, it says."""

import copy
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import torch
from hazards import FusedAttention
from sweeping import cases
from torch import nn
from torch.nn.attention import flex_attention as flex

import tracer
from tracer import sources
from tracer.recorder import fast, record
from tracer.recorder.state import State


class Remembers(nn.Module):
    """Changes whatever a module can hold, and takes another way where the sequence is short (like BigBird)."""

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
    ran = []

    class Looks(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(5))

        def forward(self, x):
            ran.append((id(self), id(self.weight)))
            return x * self.weight

    net = Looks()
    tracer.trace(net, torch.randn(2, 5), symbols={"B": 0})
    assert {weight for _, weight in ran} == {id(net.weight)}
    assert ran[0][0] == id(net) and id(net) not in {module for module, _ in ran[1:]} and len(ran) == 6


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


FAMILIES = [name for name in sources.examples() if not name.startswith("torchvision:") or name.endswith("vit_b_16")]


@pytest.mark.parametrize("name", cases(FAMILIES, FAMILIES[::2]))
def test_every_family_is_as_it_was(name):
    model = tracer.load(name, **sources.tiny(name))
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


@dataclass(frozen=True)
class Batch:
    x: torch.Tensor
    times: int = 3


def test_dataclasses_go_in_and_come_out():
    class Doubles(nn.Module):
        def forward(self, batch):
            return Batch(batch.x * batch.times, batch.times)

    batch = Batch(torch.randn(2, 5))
    trace = tracer.trace(Doubles(), batch, symbols={"B": ("batch.x", 0)})
    assert trace.ops[0].inputs[0].maker == "input batch.x" and trace.ops[0].outputs[0].symbolic == ("B", "5")
    assert torch.equal(trace.output.x, batch.x * 3) and trace.output.times == 3


@pytest.mark.parametrize(
    ("symbols", "said"),
    [
        ({"B": 0, "N": 0}, "'B' and 'N' both name axis 0 of 'x'"),
        ({"T": 1, "S": ("x", -1)}, "'T' and 'S' both name axis 1 of 'x'"),
        ([("B", 0)], "expected such as {'B': 0"),
        ({"B B": 0}, "'B B' is no name for a size"),
        ({"B": "x"}, "expected an axis, or (input, axis)"),
        ({"T": 1}, "'T' is 5 in axis 1 of 'x', 4 in axis 1 of 'y'"),
    ],
)
def test_symbols_that_name_no_one_size_are_refused_in_words(symbols, said):
    class Both(nn.Module):
        def forward(self, x, y=None):
            return x + 1

    y = (torch.randn(3, 4),) if symbols == {"T": 1} else ()
    with pytest.raises(ValueError) as caught:
        tracer.trace(Both(), torch.randn(2, 5), *y, symbols=symbols)
    assert said in str(caught.value)


def test_a_function_is_traced_with_the_modules_that_it_reads():
    linear, weight = nn.Linear(5, 3), nn.Parameter(torch.randn(3, 4))

    def head(x):
        return linear(x) @ weight

    trace = tracer.trace(head, torch.randn(2, 5), symbols={"B": 0})
    assert trace.model == "head" and trace.params == 18 + 12 and trace.ops[-1].outputs[0].symbolic == ("B", "4")
    assert {name for op in trace.ops for name in op.parameters} == {"linear.weight", "linear.bias", "weight"}
    net = Remembers()
    before = snapshot(net)
    assert tracer.trace(net.linear.forward, torch.randn(2, 5)).ops[-1].parameters == ("bias",)
    assert tracer.trace(net.forward, torch.randn(2, 80, 5), symbols={"B": 0}).ops[-1].outputs[0].symbolic[0] == "B"
    assert snapshot(net) == before
    with pytest.raises(ValueError, match="3 can't be run, expected a module or a function"):
        tracer.trace(3)


def test_autocast_shows_every_cast():
    net, x = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 3)), torch.randn(2, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = net(x)
        trace = tracer.trace(net, x, symbols={"B": 0})
    assert torch.equal(trace.output, expected) and trace.output.dtype == torch.bfloat16
    assert {name for op in trace.ops for name in op.parameters} == {n for n, _ in net.named_parameters()}
    assert all("?" not in t.symbolic for op in trace.ops for t in op.outputs)


LAID_OUT = {
    "transposed": torch.randn(5, 2).t(),
    "sliced": torch.randn(2, 8)[:, :5],
    "every other": torch.randn(2, 10)[:, ::2],
    "expanded": torch.randn(1, 5).expand(2, 5),
}


@pytest.mark.parametrize("name", LAID_OUT)
def test_inputs_that_are_not_contiguous_are_probed_as_they_lie(name):
    class Flattens(nn.Module):
        def forward(self, x):
            return x.reshape(-1) * 2

    trace = tracer.trace(Flattens(), LAID_OUT[name], symbols={"B": 0, "T": 1})
    assert [op.op for op in trace.ops] == (
        ["view", "mul"] if name == "every other" else ["clone", "_unsafe_view", "mul"]
    )
    assert all("?" not in tensor.symbolic for op in trace.ops for tensor in (*op.inputs, *op.outputs))
    assert trace.ops[-1].outputs[0].symbolic == ("B*T",)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested_tensors_are_refused_in_words(layout):
    nested = torch.nested.nested_tensor([torch.randn(2, 5), torch.randn(3, 5)], layout=layout)
    with pytest.raises(ValueError, match=r"a nested tensor can't be traced.*pad them"):
        tracer.trace(nn.Linear(5, 3), nested)


def test_parameters_without_a_shape_are_refused_in_words():
    with pytest.raises(ValueError, match=r"'0.weight' has no shape before the first forward"):
        tracer.trace(nn.Sequential(nn.LazyLinear(3)), torch.randn(2, 5))


def test_flex_attention_is_traced_completely():
    class Causal(nn.Module):
        def forward(self, q):
            def mask(score, batch, head, i, j):
                return torch.where(i >= j, score, -float("inf"))

            return flex.flex_attention(q, q, q, score_mod=mask)

    q = torch.randn(2, 3, 7, 4)
    before = flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG
    trace = tracer.trace(Causal(), q, symbols={"B": 0, "T": 2})
    assert before == flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG
    expected = nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    assert torch.allclose(trace.output, expected, atol=1e-6)
    names = [op.op for op in trace.ops]
    assert names.count("matmul") == 2 and "_safe_softmax" in names and "where" in names


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
    calls, compared = [], fast._compared
    monkeypatch.setattr(fast, "_compared", lambda *given: calls.append(1) or compared(*given))
    net = nn.MultiheadAttention(12, 2, batch_first=True).eval()
    with torch.no_grad():
        notes = [tracer.trace(net, *[torch.randn(2, 7, 12)] * 3).notes[0] for _ in range(3)]
    assert len(calls) == 1 and notes[1].startswith(notes[0]) and "first input of these sizes" in notes[1]


def test_state_looks_at_no_more_than_it_may():
    held = {str(i): [i] for i in range(30_000)}
    before = State(held)
    held["0"].append(1)
    held["new"] = 2
    before.restore()
    assert "new" not in held
