"""Devices of a model: it runs where the user chooses; the kept tensors of its run, and the proofs, are on the CPU."""

import pytest
import torch

import tracer
from tests.cli.test_cli import refusal
from tracer.utils import devices

ELSEWHERE = "expected cpu"


@pytest.fixture
def meta(monkeypatch):
    """Device `meta`, which every machine has, among the selectable ones."""
    monkeypatch.setattr(devices, "available", lambda: ("cpu", "meta"))


class Far(torch.Tensor):
    """A tensor that claims to be on a GPU, and counts how often it is copied to the CPU."""

    came = 0

    @property
    def device(self):
        return torch.device("cuda")

    def cpu(self):
        Far.came += 1
        return self.as_subclass(torch.Tensor)


@pytest.mark.parametrize("name", ["cuda", "mps", "cuda:3", "gpu", ""])
def test_a_device_that_is_not_here_is_refused_in_one_sentence(name, monkeypatch):
    monkeypatch.setattr(devices, "available", lambda: ("cpu",))
    with pytest.raises(ValueError, match=ELSEWHERE) as refusal:
        tracer.load("vit", device=name)
    assert repr(name) in str(refusal.value) and "\n" not in str(refusal.value)


def test_the_command_line_refuses_a_device_in_one_line(capsys, monkeypatch):
    monkeypatch.setattr(devices, "available", lambda: ("cpu",))
    assert "'cuda' is not available here, expected cpu" in refusal(capsys, "trace", "vit", "--device", "cuda")
    assert "--module" in refusal(capsys, "trace", "--module", "a.b:c", "--device", "cuda")


def test_a_number_of_a_device_has_to_be_one_of_this_machine(monkeypatch):
    monkeypatch.setattr(devices, "available", lambda: ("cpu", "cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices.device_of("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ValueError, match="expected cuda:0 to cuda:1"):
        devices.device_of("cuda:2")


def test_the_net_the_inputs_and_the_probes_are_on_the_device(meta):
    model = tracer.load("nanogpt", device="meta")
    assert {tensor.device.type for tensor in model.net.state_dict().values()} == {"meta"}
    inputs = model.inputs(text="To be")
    assert {tensor.device.type for tensor in inputs} == {"meta"} and inputs.words == tuple("To be")
    probe = model.vocabulary.probe({**model.sizes, "B": 2, "T": 3}, primitives=False)
    assert probe.ops and model.vocabulary.device.type == "meta"


def test_the_seed_gives_the_same_weights_on_each_device(meta):
    one, two = (tracer.load("nanogpt", D=16, h=2, device=name) for name in ("cpu", "meta"))
    assert one.weights == two.weights == "seeded random weights"
    drawn = []
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr(type(one), "on", lambda self, device: drawn.append(self.net.state_dict()) or self)
        tracer.load("nanogpt", D=16, h=2, device="meta")
    assert all(torch.equal(tensor, drawn[0][name]) for name, tensor in one.net.state_dict().items())


def test_what_is_on_a_device_is_brought_to_the_cpu_to_be_kept_and_verified():
    Far.came = 0
    far = torch.ones(3).as_subclass(Far)
    assert type(devices.to_cpu(far)) is torch.Tensor and type(devices.copy_to_cpu(far)) is torch.Tensor
    assert Far.came == 2
    near = torch.ones(3)
    assert devices.to_cpu(near) is near and devices.copy_to_cpu(near) is not near


def test_half_precision_is_allowed_its_own_rounding():
    block = torch.nn.TransformerEncoderLayer(16, 2, 24, batch_first=True).eval().bfloat16()
    with torch.no_grad():
        trace = tracer.trace(block, torch.randn(2, 5, 16).bfloat16())
    computed = [step for step in trace.steps if step.error is not None and step.dtype == "bfloat16"]
    assert (
        computed
        and all(step.verdict == "verified" for step in computed)
        and max(step.error for step in computed) > 1e-5
    )


def test_kernels_of_other_devices_are_read_and_counted_as_those_of_the_cpu():
    from tracer.capture.calls import kind
    from tracer.symbols import cost

    kernels = ("efficient_attention", "flash_attention", "cudnn_attention", "fused_attention_overrideable")
    for name in kernels:
        op = getattr(torch.ops.aten, f"_scaled_dot_product_{name}").default
        assert kind(op).attention == "fused" and {"query", "key"} <= set(kind(op).arguments)
    shapes = ((1, 2, 5, 4),) * 3
    counts = {
        cost.flops(f"_scaled_dot_product_{name}", shapes, shapes[0])
        for name in (*kernels[:3], "flash_attention_for_cpu")
    }
    assert counts == {cost.attention_flops(*shapes)}
    assert cost.flops("_scaled_dot_product_attention_math_for_mps", shapes, shapes[0]) in counts
