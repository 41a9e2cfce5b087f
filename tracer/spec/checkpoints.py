"""Weights from files: how they are found, read and checked, and the card beside them."""

from __future__ import annotations

import re
from math import prod
from os.path import isfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from tracer.shapes.variation import TooLarge, on_meta
from tracer.spec.model_cards import card_of
from tracer.symbols.notation import MEANINGS, parse
from tracer.utils.errors import limits, quote, quoted_setting
from tracer.utils.torch_state import seeded_draws

if TYPE_CHECKING:
    from tracer.spec.spec import Spec


# Checks of a net's sizes and options before building it takes time or memory.

DEEPEST = 256
"""The most blocks that a net is built with: building takes time even where it takes no memory."""


def check_config(spec: Spec, name: str, options: dict) -> None:
    """Raise ValueError with one sentence for a size or option that the model does not take.

    These are a size that the model lacks, that is derived or of the input's, a value that is not a positive integer,
    and an option that is not allowed.
    """
    for symbol, value in options.items():
        if symbol in spec.options:
            if value not in spec.options[symbol]:
                allowed = " or ".join(map(repr, spec.options[symbol]))
                raise ValueError(
                    f"{quoted_setting(symbol, value)} is not a choice of {quote(name)}, expected {allowed}"
                )
        elif symbol in spec.runs:
            raise ValueError(f"{symbol} is not a size of the weights but of the input: give it to inputs or trace")
        elif symbol in spec.derived or symbol == "S":
            equals = spec.derived.get(symbol)
            of = [size for size in spec.sizes if equals and size in _names(equals)]
            how = f" ({symbol} = {equals.replace('**', '^')}): set {' or '.join(of)} instead" if equals else ""
            raise ValueError(
                f"{quoted_setting(symbol, value)} can't be set, since {symbol} is derived{how or ' from the others'}"
            )
        elif symbol not in spec.sizes:
            known = MEANINGS.get(symbol)
            what = f"has no size {quote(symbol)} ({known})" if known else f"has no size {quote(symbol)}"
            raise ValueError(f"{quote(name)} {what}; its sizes are {', '.join(spec.sizes)}")
        elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{quoted_setting(symbol, value)} is not a size, expected a whole number of at least 1")
        elif symbol.startswith("L") and value > DEEPEST:
            raise ValueError(f"{symbol}={value:,} blocks are too many: at most {DEEPEST} are built")


def check_memory(spec: Spec, name: str, config: dict) -> None:
    """Raise `TooLarge` with one sentence, before anything is built or downloaded, for a model beyond the limits.

    These are the number of blocks, and the size of the float32 weights that the operator allows (`TRACER_MODEL_GB`).
    """
    for symbol, size in config.items():
        if symbol.startswith("L") and size > DEEPEST:
            raise TooLarge(f"{quote(name)} has {symbol}={size:,} blocks; at most {DEEPEST} are built")
    check_count(name, sum(map(prod, shapes(spec, config).values())))


def check_count(name: str, count: int) -> None:
    """Raise `TooLarge` for more float32 parameters than the operator allows (`TRACER_MODEL_GB`)."""
    limit = limits().model_gb
    if count * 4 > limit * 2**30:
        raise TooLarge(
            f"{quote(name)} at these sizes has {count:,} parameters, {count * 4 / 2**30:,.0f} GB; at most {limit:g} "
            "GB are allowed (TRACER_MODEL_GB sets the limit)"
        )


def shapes(spec: Spec, config: dict) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the net's parameters at these sizes and options, built on `meta` without memory.

    Raise `TooLarge` in one sentence for more parameters than can be counted.
    """
    with seeded_draws(0):
        net = on_meta(lambda: spec.net(**config))
    return {name: tuple(parameter.shape) for name, parameter in net.named_parameters()}


def _names(text: str) -> set[str]:
    return {str(free_symbol) for free_symbol in parse(text).free_symbols}


# Weights from a file into a net: names and shapes must fit, and nothing is executed.

PICKLE_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin")


def read(weights) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file, by its path or bytes, or of a checkpoint of PyTorch, by its path alone.

    A checkpoint is read with `weights_only=True`; bytes come from a browser, and are never unpickled. Raise ValueError
    in one sentence that quotes the file if it can't be read or holds something else.
    """
    if isinstance(weights, bytes):
        return _safetensors(weights, "the file")
    path = Path(str(weights))
    try:
        return (
            _checkpoint(path) if path.suffix in PICKLE_SUFFIXES else _safetensors(path.read_bytes(), repr(str(weights)))
        )
    except OSError as error:
        raise ValueError(f"weights {quote(str(path))} can't be read: {error.strerror or error}") from None


def convert(spec, weights, config: dict) -> tuple[dict[str, torch.Tensor], dict]:
    """Return the tensors of a file in the model's own names, and `config` with the sizes and options of the file.

    Raise ValueError in one sentence if `config` contradicts them, or the file deviates from its layout.
    """
    tensors = read(weights)
    try:
        converted = spec.convert(tensors, config) if spec.convert else None
    except ValueError as error:
        raise ValueError(f"{label(weights)} don't fit: {error}") from None
    if converted is None:
        return tensors, config
    tensors, facts = converted
    for symbol, value in facts.items():
        if config.get(symbol, value) != value:
            raise ValueError(f"{label(weights)} don't fit: {symbol}={config[symbol]} was given, they have {value}")
    return tensors, {**facts, **config}


def place(net: torch.nn.Module, weights, tensors: dict[str, torch.Tensor] | None = None) -> str:
    """Load a file, or its tensors, into the net, cast to its dtype, and return the name of the weights.

    Raise ValueError in one sentence on the tensors that misfit.
    """
    tensors, wanted = read(weights) if tensors is None else tensors, net.state_dict()
    problem = _misfit(tensors, wanted)
    if problem:
        raise ValueError(f"{label(weights)} don't fit: {problem}")
    net.load_state_dict({name: tensor.to(wanted[name].dtype) for name, tensor in tensors.items()})
    return "uploaded weights" if isinstance(weights, bytes) else f"weights of {weights}"


def card_beside(weights) -> dict | None:
    """Return the card beside a file of weights, as training writes it, or None if there is none.

    The card is JSON of the same name with the "sizes". Raise ValueError in one sentence if it can't be read.
    """
    file = None if isinstance(weights, bytes) else Path(str(weights)).with_suffix(".json")
    if file is None or not isfile(file):
        return None
    return card_of(file.read_bytes(), file)


def label(weights) -> str:
    """Return the name of the weights in messages."""
    return "the uploaded weights" if isinstance(weights, bytes) else f"the weights of {quote(str(weights))}"


def _safetensors(data: bytes, name: str) -> dict[str, torch.Tensor]:
    try:
        return load(data)
    except SafetensorError:
        raise ValueError(f"{name} is not a safetensors file, the only format that is loaded") from None
    except RuntimeError as error:  # an empty tensor may state sizes whose product no 64 bits hold
        raise ValueError(f"{name} has a tensor whose shape PyTorch refuses: {error}") from None


def _checkpoint(path: Path) -> dict[str, torch.Tensor]:
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception:  # a damaged pickle makes the reader raise anything
        reason = "is not a checkpoint of tensors alone, and nothing else is loaded"
        raise ValueError(f"{quote(str(path))} {reason}") from None
    for inner in ("model", "state_dict"):
        if isinstance(checkpoint, dict) and isinstance(checkpoint.get(inner), dict):
            checkpoint = checkpoint[inner]
    if not isinstance(checkpoint, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in checkpoint.values()):
        raise ValueError(f"{quote(str(path))} holds no tensors by their names")
    return checkpoint


def _misfit(tensors, wanted) -> str:
    for name, tensor in wanted.items():
        if name not in tensors:
            return f"they lack {quote(name)} {list(tensor.shape)}"
        if tensors[name].shape != tensor.shape:
            return f"{quote(name)} is {list(tensors[name].shape)} there, and {list(tensor.shape)} at these sizes"
    extra = next((name for name in tensors if name not in wanted), None)
    return f"they also hold {quote(extra)}, which the model does not have" if extra else ""


# Checkpoints in the GPT-2 layout, as nanoGPT, minGPT and transformers write them, in the names of our `nanogpt`.
#
# The layout: `transformer.wte`, `.wpe`, `.h.0.ln_1`, `.h.0.attn.c_attn` (queries, keys and values in one matrix),
# `.h.0.attn.c_proj`, `.h.0.ln_2`, `.h.0.mlp.c_fc`, `.h.0.mlp.c_proj`, `.ln_f`, and `lm_head`. Matrices are [out, in]
# (`nn.Linear`: nanoGPT, minGPT) or [in, out] (`Conv1D`: OpenAI, transformers), which the shape of `c_attn` tells.

WRAPPER_PREFIX = re.compile(r"^(_orig_mod\.|module\.)*(transformer\.)?")
MASKS = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")
"""Causal masks that some checkpoints hold as buffers; ours is computed in the run."""

NORMS = {"norm1": "ln_1", "norm2": "ln_2"}
LINEARS = {"attention.output": "attn.c_proj", "mlp.expand": "mlp.c_fc", "mlp.contract": "mlp.c_proj"}
PACKED_LAYERS = ("attention.query", "attention.key", "attention.value")


def from_gpt2(tensors: dict[str, torch.Tensor], config: dict) -> tuple[dict[str, torch.Tensor], dict] | None:
    """Return the tensors in our names, and their sizes and options; None for tensors in another layout.

    `config` is the caller's choice: the layout does not contain the number of heads (`h`) nor the GELU (`gelu`). Raise
    ValueError, to follow "the weights don't fit:", if these or tensors are missing, and for wrong shapes.
    """
    left = {WRAPPER_PREFIX.sub("", name): tensor for name, tensor in tensors.items()}
    if "wte.weight" not in left or not any(name.startswith("h.") for name in left):
        return None
    lacking = [name for name in ("h", "gelu") if name not in config]
    if lacking:
        choose = {"h": "h=… for the heads", "gelu": "gelu='exact' or gelu='tanh'"}
        raise ValueError(f"the file does not say all, give {' and '.join(choose[name] for name in lacking)}")
    left = {name: tensor for name, tensor in left.items() if not MASKS.fullmatch(name)}

    def take(name: str, axes: int) -> torch.Tensor:
        if name not in left:
            raise ValueError(f"they lack {quote(name)} of the GPT-2 layout")
        if left[name].dim() != axes:
            raise ValueError(
                f"{quote(name)} is {list(left[name].shape)}, expected {axes} {'axes' if axes > 1 else 'axis'}"
            )
        return left.pop(name)

    converted = {"tokens.weight": take("wte.weight", 2), "positions": take("wpe.weight", 2)}
    (V, D), T_max = converted["tokens.weight"].shape, len(converted["positions"])
    packed = left.get("h.0.attn.c_attn.weight", torch.empty(0))
    if tuple(packed.shape) not in ((3 * D, D), (D, 3 * D)):
        expected = f"[{3 * D}, {D}] or [{D}, {3 * D}]"
        raise ValueError(f"'h.0.attn.c_attn.weight' is {list(packed.shape)}, expected {expected}")
    is_linear, bias = packed.shape[0] == D, "h.0.attn.c_attn.bias" in left
    L = len({name.split(".")[1] for name in left if name.startswith("h.")})
    parts = ("weight", "bias") if bias else ("weight",)

    def matrix(name: str, part: str) -> torch.Tensor:
        tensor = take(f"{name}.{part}", 2 if part == "weight" else 1)
        return tensor.t() if is_linear and part == "weight" else tensor

    for layer in range(L):
        for part in parts:
            ours, theirs = f"block{layer + 1}", f"h.{layer}"
            for name, gpt2_name in NORMS.items():
                converted[f"{ours}.{name}.{part}"] = take(f"{theirs}.{gpt2_name}.{part}", 1)
            for name, tensor in zip(PACKED_LAYERS, matrix(f"{theirs}.attn.c_attn", part).tensor_split(3), strict=True):
                converted[f"{ours}.{name}.{part}"] = tensor
            for name, gpt2_name in LINEARS.items():
                converted[f"{ours}.{name}.{part}"] = matrix(f"{theirs}.{gpt2_name}", part)
    converted |= {f"norm.{part}": take(f"ln_f.{part}", 1) for part in parts}
    head = left.pop("lm_head.weight", converted["tokens.weight"])
    tied = torch.equal(head, converted["tokens.weight"])
    if not tied:
        converted["head.weight"] = head
        if bias:  # ours has one wherever the blocks have; theirs never has
            converted["head.bias"] = left.pop("lm_head.bias", torch.zeros(V))
    if left:
        raise ValueError(f"they also hold {quote(next(iter(left)))}, which is not of the GPT-2 layout")
    d_ff = len(converted["block1.mlp.expand.weight"])
    return converted, {"V": V, "T_max": T_max, "D": D, "d_ff": d_ff, "L": L, "bias": bias, "tied": tied}
