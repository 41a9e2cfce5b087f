"""Records of a run: ops, their primitives, calls of modules and of composite ops."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Source:
    """A line of the model's own source code."""

    file: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """A tensor at one op: shape, dtype and producer.

    `maker` is the index of the op that made it, or the name of the parameter, buffer or input it is.
    """

    shape: tuple[int, ...]
    dtype: str
    maker: int | str
    symbolic: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Op:
    """One tensor operation that PyTorch ran.

    Attributes:
        module: The path of the innermost module that was running.
        call: The number of earlier calls of that module.
        function: The Python-level name, if the model called one.
        params: The number of elements of the parameters that are first used here.
        flops: 2 per multiply-add; None if its products are not counted.
    """

    index: int
    module: str
    call: int
    op: str
    function: str
    source: Source | None
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]
    parameters: tuple[str, ...] = ()
    params: int = 0
    params_symbolic: str = "0"
    flops: int | None = 0
    flops_symbolic: str = "0"
    step: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Primitive:
    """One of the operations that an op decomposes into.

    The `maker` of a tensor is the number of the primitive of this op that made it, or which of the op's inputs it is:
    `"input 0"`. `within` names the ops, from the outside in, that PyTorch opened to get from the op to here, such as
    `"_safe_softmax/_softmax"`.
    """

    name: str
    within: str
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]


@dataclass(frozen=True, slots=True)
class Decomposition:
    """PyTorch's own decomposition of op `op`, run on the op's arguments.

    `error` is max|decomposition - op| / max|op|; None for an op that stays one primitive, and `note` says why unless
    it only lays data out anew.
    """

    op: int
    primitives: tuple[Primitive, ...]
    error: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class ModuleRecord:
    """One call of a module, as the forward hooks saw it: path, class, number of earlier calls, inputs and outputs.

    `around` is the number of the module call that it ran in, or None; its ops are `first` to `last - 1`. `params` are
    the elements of all parameters that these read, `flops` what those cost that are counted. `problem` says in a
    sentence where what the hooks saw and what the ops did are not of one run.
    """

    path: str
    kind: str
    call: int
    around: int | None
    first: int
    last: int
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]
    params: int = 0
    flops: int = 0
    problem: str = ""

    @property
    def verdict(self) -> str:
        """Return the verdict of the ops beneath on the hooks' record: "proven" or "disproven"."""
        return "disproven" if self.problem else "proven"


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a call by its name in the op's schema: its `value` as text, or its `tensors`, several for a list.
    `default` is True if it equals the schema's default."""

    name: str
    value: str = ""
    tensors: tuple[TensorRecord, ...] = ()
    default: bool = False


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One composite op that the code called, in call `call` of a module; it ran ops `first` to `last - 1`."""

    name: str
    arguments: tuple[Argument, ...]
    outputs: tuple[TensorRecord, ...]
    module: str
    call: int
    first: int
    last: int

    @property
    def text(self) -> str:
        """Return the call as source code: `scaled_dot_product_attention(query, key, value, is_causal=True)`, without
        defaults."""
        arguments = (
            argument.name if argument.tensors else f"{argument.name}={argument.value}"
            for argument in self.arguments
            if not argument.default
        )
        return f"{self.name}({', '.join(arguments)})"


@dataclass(frozen=True, slots=True)
class ReturnedTensor:
    """A tensor that forward returned. `name` is its position in the output: `logits`, `[1]`,
    `past_key_values.layers[0].keys`, "" for a tensor alone.

    `step` is the id of the step whose tensor it is, bit by bit. `of` is what the run was given and gives back as it is:
    "input x", "parameter weight", "constant 0". Both are empty for a tensor that no step has.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    step: str = ""
    of: str = ""
