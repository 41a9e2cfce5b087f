"""Private names of PyTorch and transformers: each is in one file, and fulfils its purpose there."""

import ast
from collections.abc import Iterator

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention  # registers the op
from torch.nn.functional import linear

from tests.project.test_architecture import APP, LIBRARY, ROOT
from tracer.utils import torch_internals, transformers_internals
from tracer.zoo.hf.hub import import_transformers

INTERNALS = frozenset(ROOT / "tracer" / "utils" / f"{library}_internals.py" for library in ("torch", "transformers"))
LIBRARIES = ("torch", "transformers")
aten = torch.ops.aten
NAMESPACES = torch, torch._C, torch.Tensor
"""Where PyTorch has functions; the name of an op, such as `_softmax`, is also a string in every recording."""
SYMPY = {"_print"}
"""What a printer of sympy is documented to call; `torch` has one of its own."""
OBJECTS = torch.UntypedStorage, torch.nn.Module(), aten.add, aten.add.Tensor, torch_internals.DispatchMode


def is_private(name: str) -> bool:
    """Return whether a name begins with one underscore."""
    return name.startswith("_") and not name.startswith("__")


def private_names(*owners: object) -> frozenset[str]:
    """Return the private attributes of some objects."""
    return frozenset(name for owner in owners for name in dir(owner) if is_private(name))


def own_names(tree: ast.Module) -> set[str]:
    """Return the names of functions in a module, and of attributes that a class of it sets on itself."""
    nodes = list(ast.walk(tree))
    functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    stored = [node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    return functions | {node.attr for node in stored if ast.unparse(node.value) == "self"}


def uses_of_private_names(source: str, attributes: frozenset[str], strings: frozenset[str]) -> Iterator[str]:
    """Yield where a module imports something private of the libraries, reads one of `attributes` of another object than
    its own, or contains one of `strings`, as `getattr` takes them."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        used: list[str] = []
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in LIBRARIES:
            used = [*str(node.module).split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            used = [part for alias in node.names for part in alias.name.split(".")]
        elif isinstance(node, ast.Attribute) and node.attr in attributes:
            mine = ast.unparse(node.value) in ("self", "cls") and node.attr in own_names(tree)
            used = [] if mine else [node.attr]
        elif isinstance(node, ast.Constant) and node.value in strings:
            used = [node.value]
        yield from (f"{node.lineno}: {name}" for name in used if is_private(name))


def test_private_names_of_libraries_stand_in_one_file_for_each():
    pytest.importorskip("transformers")
    transformers = import_transformers()
    strings = private_names(*OBJECTS, transformers.PreTrainedModel, transformers.PretrainedConfig)
    names = (strings | private_names(*NAMESPACES)) - SYMPY
    uses = {
        path.relative_to(ROOT).as_posix(): list(uses_of_private_names(path.read_text(encoding="utf-8"), names, strings))
        for path in (*LIBRARY, *APP)
        if path not in INTERNALS
    }
    assert {file: lines for file, lines in uses.items() if lines} == {}


def test_a_private_name_elsewhere_would_be_seen():
    source = (
        "import torch._dynamo\nfrom torch.utils._pytree import tree_map\nfrom torch import _C\n"
        "class A:\n    def __init__(self, x):\n        self._version = x._version\n        self._version\n"
        "def f(net): return getattr(net, '_modules')"
    )
    names = frozenset({"_version", "_modules"})
    uses = sorted(uses_of_private_names(source, names, names))
    assert uses == ["1: _dynamo", "2: _pytree", "3: _C", "6: _version", "8: _modules"]


class Names(torch_internals.DispatchMode):
    """A mode that lists the ops that it sees."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def run_linear(*contexts) -> list[str]:
    """Return the ops that a mode sees of a linear layer within these contexts."""
    mode = Names()
    for context in contexts:
        context.__enter__()
    torch_internals.push_dispatch_mode(mode)
    try:
        linear(torch.ones(2, 3), torch.ones(4, 3), torch.ones(4))
    finally:
        torch_internals.pop_dispatch_mode()
        for context in reversed(contexts):
            context.__exit__(None, None, None)
    linear(torch.ones(2, 3), torch.ones(4, 3))  # which the mode does not see any more
    return mode.seen


def test_autograd_takes_composite_ops_apart_unless_its_keys_are_excluded():
    exclude, restore = torch_internals.exclude_autograd_keys, torch_internals.restore_autograd_keys
    assert run_linear() == ["ones"] * 3 + ["t", "addmm"]
    assert run_linear(exclude()) == ["ones"] * 3 + ["linear"]
    with exclude():
        assert run_linear(restore()) == ["ones"] * 3 + ["t", "addmm"]


def test_modes_can_be_passed_by():
    with Names() as mode, torch_internals.disable_dispatch_modes():
        torch.ones(1)
    assert mode.seen == []


def test_schemas_and_kernels_of_ops_can_be_read():
    schema = torch_internals.function_schema(aten.add_.Tensor)
    assert schema.name == "aten::add_" and [one.name for one in schema.arguments] == ["self", "other", "alpha"]
    assert torch_internals.has_composite_kernel(aten.linear.default)
    assert not torch_internals.has_composite_kernel(aten.addmm.default)
    assert isinstance(aten.add, torch_internals.OpOverloadPacket)
    assert isinstance(torch.ops.higher_order.flex_attention, torch_internals.HigherOrderOperator)
    assert flex_attention is not None and torch_internals.eager_kernel(torch.ops.higher_order.flex_attention)


def test_ops_have_decompositions():
    assert torch_internals.is_decomposable(aten.linear.default)
    assert not torch_internals.is_decomposable(aten.mm.default)
    assert torch_internals.op_decomposition(aten.mm.default) is None
    x = torch.arange(4.0)
    torch.testing.assert_close(torch_internals.op_decomposition(aten.silu.default)(x), torch.nn.functional.silu(x))


def test_storages_are_told_apart_without_values():
    x, y = torch.empty(4, device="meta"), torch.empty(4, device="meta")
    id = torch_internals.storage_id(x.untyped_storage())
    assert id == torch_internals.storage_id(x[1:].untyped_storage())
    assert id != torch_internals.storage_id(y.untyped_storage())
    z = torch.ones(4)
    alone = torch_internals.count_storage_owners(torch_internals.storage_id(z.untyped_storage()))
    view = z[1:]
    assert torch_internals.count_storage_owners(torch_internals.storage_id(view.untyped_storage())) == alone + 1


def test_writes_are_counted():
    x = torch.ones(2)
    before = torch_internals.write_count(x)
    x[:1].add_(1)
    assert torch_internals.write_count(x) == before + 1
    with torch.inference_mode():
        assert torch_internals.write_count(torch.ones(2)) == 0


def test_members_are_shared_and_what_is_compiled_is_known():
    owner, module = torch.nn.Sequential(torch.nn.Linear(2, 2)), torch.nn.Module()
    torch_internals.share_members(module, owner)
    owner.append(torch.nn.Linear(2, 3))
    owner.register_buffer("count", torch.zeros(1))
    assert [*module.state_dict()] == [*owner.state_dict()] and dict(module.named_children()).keys() == {"0", "1"}
    assert not torch_internals.is_compiled(owner) and not torch_internals.is_compiled(linear)
    assert torch_internals.is_compiled(torch.compile(linear)) and torch_internals.is_compiled(torch.compile(owner))
    owner.compile()
    assert torch_internals.is_compiled(owner)


def test_fake_tensors_have_shapes_and_devices():
    mode = torch_internals.fake_tensor_mode()
    fake = torch_internals.fake_tensor(mode, torch.empty(2, 3, device="meta"), torch.device("cpu"))
    with mode:
        assert (fake @ fake.T).shape == (2, 2) and fake.device.type == "cpu"


def test_nested_values_are_walked():
    value = {"a": [torch.ones(1), 2]}
    assert torch_internals.tree_leaves(value) == [torch.ones(1), 2]
    assert [torch_internals.keystr(path) for path, _ in torch_internals.tree_leaves_with_path(value)] == [
        "['a'][0]",
        "['a'][1]",
    ]
    assert torch_internals.tree_map_only(int, str, value)["a"][1] == "2"


def test_models_of_transformers_are_built_and_listed():
    pytest.importorskip("transformers")
    transformers = import_transformers()
    config = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=16, n_positions=8)
    for attention in ("eager", "sdpa"):
        net = transformers_internals.build_from_config(transformers.GPT2Model, config, attention)
        assert transformers_internals.supports_sdpa(net) and net(torch.zeros(1, 2).long())[0].shape == (1, 2, 8)
    assert not transformers_internals.supports_sdpa(torch.nn.Linear(1, 1))
    assert {"bert", "gpt2"} <= {*transformers_internals.model_types()}
    assert transformers_internals.auto_classes("MODEL_FOR_CAUSAL_LM", "gpt2") == ("GPT2LMHeadModel",)
    assert transformers_internals.auto_classes("MODEL_FOR_NOTHING", "gpt2") == ()
    assert transformers_internals.has_auto_class("bert")
    assert not transformers_internals.has_auto_class("sam3_mask_decoder")


def test_hooks_of_a_module_are_replaced_in_their_order():
    module = torch.nn.Identity()
    for factor in (2.0, 3.0):
        module.register_forward_hook(lambda module, args, result, factor=factor: result * factor + 1)
    module.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    expected = module(torch.ones(2))
    seen = []
    torch_internals.map_hooks(module, lambda hook: lambda *args: (seen.append(hook), hook(*args))[1])
    assert module(torch.ones(2)).equal(expected) and len(seen) == 3
