"""Contracts of the recorder, each on the model that endangers it."""

import gc
import inspect
import random
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules import module as module_internals
from torch.utils import _python_dispatch

import tracer
from tests.support.hazards import (
    CalledTwice,
    ExplicitAttention,
    FusedAttention,
    HalfWay,
    InPlace,
    KeywordOnly,
    Random,
    Recovers,
    SeveralOutputs,
    SharedModule,
    TiedWeights,
    TracesInside,
    TupleAndDict,
    WritesBuffer,
)
from tests.support.sweeping import cases
from tracer.capture import record
from tracer.capture.tensors import TensorStore, ValueVersions

HAZARDS = {
    "in-place": (InPlace, torch.randn(4, 5)),
    "shared": (SharedModule, torch.randn(4, 5)),
    "called-twice": (CalledTwice, torch.randn(4, 5)),
    "tied": (TiedWeights, torch.arange(7)[None]),
    "tuple-and-dict": (TupleAndDict, {"x": torch.randn(4, 5)}),
    "several-outputs": (SeveralOutputs, torch.randn(4, 6)),
    "recovers": (Recovers, torch.randn(4, 5)),
    "fused": (FusedAttention, torch.randn(2, 7, 12)),
    "explicit": (ExplicitAttention, torch.randn(2, 7, 12)),
}


def equal(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


@pytest.mark.parametrize("name", HAZARDS)
def test_output_is_bit_equal_and_in_the_callers_grad_mode(name):
    make, x = HAZARDS[name]
    net = make()
    with torch.no_grad():
        assert equal(tracer.trace(net, x).output, net(x))
    assert equal(tracer.trace(net, x).output, net(x))


def left_behind():
    return {
        "hooks": (len(module_internals._global_forward_hooks), len(module_internals._global_forward_pre_hooks)),
        "flags": (_python_dispatch._is_in_torch_dispatch_mode, _python_dispatch._is_in_non_infra_torch_dispatch_mode),
        "stacks": (torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()),
        "grad": torch.is_grad_enabled(),
        "rng": torch.get_rng_state().sum().item(),
        "numpy": np.random.get_state()[2],
        "random": random.getstate()[1][-1],
    }


@pytest.mark.parametrize("make", [Random, HalfWay, InPlace, TracesInside], ids=lambda make: make.__name__)
def test_nothing_stays_behind_also_after_an_error(make):
    net, x = make(), torch.randn(4, 5)
    before = left_behind()
    try:
        tracer.trace(net, x)
    except (KeyError, RuntimeError):
        assert make in (HalfWay, TracesInside)
    assert left_behind() == before


def test_modules_and_buffers_are_as_they_were():
    net = WritesBuffer().train()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    tracer.trace(net, torch.randn(4, 5))
    assert net.training and net.norm.training
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    assert not net._forward_hooks and not net.norm._forward_hooks


def test_in_place_writes_change_the_maker_and_not_what_was_kept():
    net, x = InPlace(), torch.randn(4, 5)
    recording = record(net, (x,), cap=1 << 20)
    first = next(i for i, op in enumerate(recording.ops) if op.name == "addmm")
    assert torch.equal(recording.store.get(f"{first}.0"), net.first(x))
    trace = tracer.trace(net, x)
    second = [op for op in trace.ops if op.op == "addmm"][1]
    assert trace.ops[second.inputs[1].maker].op == "fill_"


def test_the_traced_output_is_a_copy():
    net, x = nn.Linear(5, 3), torch.randn(4, 5)
    trace = tracer.trace(net, x)
    with torch.no_grad():
        net.weight.zero_()
    assert trace.output.any()


def test_shared_module_goes_by_the_name_of_its_first_place_and_calls_are_counted():
    trace = tracer.trace(SharedModule(), torch.randn(4, 5))
    assert [(op.module, op.call) for op in trace.ops if op.op == "addmm"] == [("encoder", 0), ("encoder", 1)]
    trace = tracer.trace(CalledTwice(), torch.randn(4, 5))
    assert [(op.module, op.call) for op in trace.ops if op.op == "addmm"] == [("inner", 0), ("inner", 1)]


def test_tied_weights_are_counted_once():
    net = TiedWeights()
    trace = tracer.trace(net, torch.arange(7)[None])
    assert trace.params == sum(p.numel() for p in net.parameters()) == 55
    assert [op.op for op in trace.ops if op.params] == ["embedding"]


def test_inputs_are_named_in_nested_and_keyword_calls():
    trace = tracer.trace(TupleAndDict(), {"x": torch.randn(4, 5)})
    assert "input batch.x" in {t.maker for op in trace.ops for t in op.inputs}
    assert trace.output[1]["name"] == "y"
    trace = tracer.trace(KeywordOnly(), x=torch.randn(4, 5), scale=2.0)
    assert "input x" in {t.maker for op in trace.ops for t in op.inputs}


def test_each_output_of_an_op_has_its_maker():
    trace = tracer.trace(SeveralOutputs(), torch.randn(4, 6))
    topk = next(op for op in trace.ops if op.op == "topk")
    assert [t.shape for t in topk.outputs] == [(4, 2), (4, 2)] and topk.outputs[1].dtype == "int64"
    assert [op.op for op in trace.ops if topk.index in {t.maker for t in op.inputs}] == ["sum", "sum"]


def test_a_failing_forward_raises_its_own_error_with_the_ops_so_far():
    with pytest.raises(KeyError) as caught:
        tracer.trace(HalfWay(), torch.randn(4, 5))
    assert [op.op for op in caught.value.trace.ops] == ["add", "mul"]
    assert caught.value.trace.ops[1].module == "breaking"
    assert "traced 2 ops; the last was mul in breaking" in caught.value.__notes__[0]


def test_a_module_that_recovers_is_traced_under_its_own_path():
    trace = tracer.trace(Recovers(), torch.randn(4, 5))
    assert [op.module for op in trace.ops if op.op == "addmm"] == ["linear"]


def test_a_trace_within_a_trace_is_refused_in_words():
    with pytest.raises(RuntimeError, match="can't run inside another trace"):
        tracer.trace(TracesInside(), torch.randn(4, 5))


def test_eight_threads_on_one_model_hold_their_own_run_each():
    net = FusedAttention(layers=3).eval()
    inputs = [torch.randn(1, 3 + i, 12) for i in range(8)]
    with torch.no_grad():
        alone = [tracer.trace(net, x) for x in inputs]

        def run(i):
            with torch.no_grad():
                return i % 8, tracer.trace(net, inputs[i % 8])

        # sums of as many threads as before: a thread begins with those that OMP_NUM_THREADS says
        with ThreadPoolExecutor(8, initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),)) as pool:
            for i, trace in pool.map(run, range(80)):
                assert trace.ops == alone[i].ops
                assert torch.equal(trace.output, alone[i].output)
                assert torch.equal(trace.attention(2), alone[i].attention(2))
    assert left_behind()["hooks"] == (0, 0)


def test_threads_that_do_not_trace_are_not_seen():
    net = nn.Sequential(nn.Linear(5, 5), nn.ReLU())
    expected = len(tracer.trace(net, torch.randn(4, 5)).ops)
    with ThreadPoolExecutor(4) as pool:
        busy = [pool.submit(lambda: [net(torch.randn(4, 5)) for _ in range(50)]) for _ in range(3)]
        assert all(len(tracer.trace(net, torch.randn(4, 5)).ops) == expected for _ in range(10))
        for job in busy:
            job.result()


@pytest.mark.parametrize("inference", [False, True], ids=["no_grad", "inference_mode"])
def test_encoder_layer_on_its_fast_path_is_traced_completely(inference):
    layer = nn.TransformerEncoderLayer(12, 3, 20, batch_first=True).eval()
    x = torch.randn(2, 7, 12)
    with torch.inference_mode() if inference else torch.no_grad():
        trace = tracer.trace(layer, x)
        plain = layer(x)
    names = [op.op for op in trace.ops]
    assert "_transformer_encoder_layer_fwd" not in names and names.count("native_layer_norm") == 2
    assert len(trace.attentions) == 1 and trace.attention(0).shape == (2, 3, 7, 7)
    assert (trace.output - plain).abs().max() / plain.abs().max() < 1e-5


@pytest.mark.parametrize("need_weights", [True, False])
def test_multihead_attention_is_opened_and_its_maps_are_its_own(need_weights):
    attention = nn.MultiheadAttention(12, 3, batch_first=True).eval()
    x = torch.randn(2, 7, 12)
    with torch.no_grad():
        _, expected = attention(x, x, x, average_attn_weights=False)
        trace = tracer.trace(attention, x, x, x, need_weights=need_weights)
    assert "_native_multi_head_attention" not in {op.op for op in trace.ops}
    assert (trace.attention(0) - expected).abs().max() < 1e-6


def test_every_op_has_the_models_own_source_line():
    net = InPlace()
    trace = tracer.trace(net, torch.randn(4, 5))
    assert {op.source.file.rsplit("/")[-1] for op in trace.ops} == {"hazards.py"}
    texts = [op.source.text for op in trace.ops if op.op == "addmm"]
    assert texts == ["x = self.first(x)", "return self.second(x)"]
    code = inspect.getsource(sys.modules[InPlace.__module__]).splitlines()
    assert all(code[op.source.line - 1].strip() == op.source.text for op in trace.ops)


def test_a_plain_torch_module_has_no_source_of_its_own():
    assert all(op.source is None for op in tracer.trace(nn.Linear(5, 3), torch.randn(4, 5)).ops)


@pytest.mark.parametrize("make", [FusedAttention, ExplicitAttention], ids=lambda make: make.__name__)
def test_what_a_trace_holds_grows_linearly_with_the_sequence(make):
    net = make(layers=2, mask="causal")
    held = []
    for length in (65, 129, 257):
        with torch.no_grad():
            trace = tracer.trace(net, torch.randn(1, length, 12), prove=False)
        held.append(sum(tensor.nbytes for tensor in trace.values.values()) / length)
    assert max(held) == pytest.approx(min(held), rel=0.01)


def test_kept_values_stay_under_the_cap():
    net = nn.Sequential(*(nn.Linear(50, 50) for _ in range(10)))
    recording = record(net, (torch.randn(100, 50),), cap=100_000)
    kept = [f"{index}.0" in recording.store for index in range(len(recording.ops))]
    assert recording.store.bytes <= 100_000 and any(kept) and not all(kept)


@pytest.fixture
def left_to_the_collector():
    """Run something whose results are dropped; return the tensors that only a garbage collection would free."""

    def tensors_left(run) -> list[torch.Tensor]:
        run()  # what is remembered for the next run stays
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            run()
            gc.collect()
            return [found for found in gc.garbage if isinstance(found, torch.Tensor)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()

    return tensors_left


@pytest.mark.parametrize("name", cases(HAZARDS, ("fused",)))
def test_a_trace_that_is_dropped_frees_its_tensors_at_once(name, left_to_the_collector):
    make, x = HAZARDS[name]
    net = make()
    assert left_to_the_collector(lambda: tracer.trace(net, x, primitives=True)) == []


def test_a_verified_trace_that_is_dropped_frees_its_tensors_at_once(left_to_the_collector):
    model = tracer.load("vit")
    assert left_to_the_collector(model.trace) == []


def test_grad_still_flows_through_a_traced_module_afterwards():
    net, x = nn.Linear(5, 3), torch.randn(4, 5)
    tracer.trace(net, x)
    net(x).sum().backward()
    assert net.weight.grad is not None


def test_a_new_tensor_where_a_written_one_lay_was_not_written_into():
    told = []
    values = ValueVersions({}, TensorStore(0), lambda *write: told.append(write))
    for _ in range(50):
        written = torch.zeros(4)
        values.wrote(written, "0.0")
        del written
        values.of(torch.zeros(4).view(2, 2))  # of a storage that may get the same address
    assert not told
