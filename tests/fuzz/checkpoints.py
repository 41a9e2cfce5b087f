"""Checkpoints: weights of our models with their cards, and folders in the hub's format, damaged in every file."""

import io
import json
import os
import pickle
import zipfile
from functools import lru_cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory, mkdtemp
from typing import NamedTuple

import safetensors.torch
import torch

import tracer
from tests.fuzz import mutate
from tracer import export, zoo

TINY = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 12}
PIXELS = {"image_size": 8, "patch_size": 4, "num_labels": 3}


class Files(NamedTuple):
    """Name of a model to open, and the file of its weights."""

    name: str
    weights: Path | bytes | None


class Executes:
    """A pickle whose loading runs a command."""

    def __reduce__(self):
        return os.system, ("true",)


def make_input(chance: Random, folder: Path) -> Files:
    """Write files into a folder of their own: facts of one are cached by its name."""
    folder = Path(mkdtemp(dir=folder))
    name, files = chance.choice(_originals())
    files = dict(files)
    if chance.random() < 0.1:
        extra = {
            "modeling_own.py": b"import os; os.system('true')",
            "pytorch_model.bin": pickle.dumps(Executes()),
            "tokenizer.json": json.dumps(
                {"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}
            ).encode(),
            "vocab.txt": b"[UNK]\n[CLS]\n[SEP]\na\nb\n",
            "preprocessor_config.json": b'{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0, 0.5]}',
            "generation_config.json": b'{"max_length": 1e99}',
            "model.safetensors.index.json": b'{"weight_map": {"x": "../../../../etc/passwd"}}',
        }
        for more in chance.sample(sorted(extra), 2):
            files[more] = extra[more]
    for path in chance.sample(sorted(files), min(len(files), chance.choice((1, 1, 2)))):
        files[path] = _damage_file(path, files[path], chance)
    for path, data in files.items():
        if data is not None:
            (folder / path).write_bytes(data)
    if ":" in name:
        return Files(f"hf:{folder}", None)
    path = next(folder / path for path in files if not path.endswith(".json"))
    sent = path.suffix == ".safetensors" and path.is_file() and chance.random() < 0.3
    return Files(name, path.read_bytes() if sent else path)


def open_input(files: Files, chance: Random):
    """Return a run of the model, or the model alone. Raise ValueError for one that is refused."""
    given = {} if files.weights is None else {"weights": files.weights}
    model = tracer.load(files.name, **given)
    return model.trace(prove=False) if chance.random() < 0.1 else model


def show_input(found, chance: Random) -> None:
    """Render the run as a table, where there is one."""
    if isinstance(found, tracer.Trace):
        export.render(found, "ops", "markdown")


@lru_cache(maxsize=1)
def _originals() -> tuple[tuple[str, dict[str, bytes]], ...]:
    """Return models and their files, all of which open: ours with a card, as a checkpoint of PyTorch, and the hub's."""
    found = [
        _ours("vit", {"L": 1, "H": 4, "W": 6, "P": 2, "D": 6, "h": 2, "d_ff": 5, "K": 3}, "safetensors"),
        _ours("nanogpt", {"L": 1, "T_max": 5, "D": 6, "h": 2, "d_ff": 5, "V": 7}, "safetensors"),
        _ours("transformer", {"L": 1, "T_max": 5, "D": 6, "h": 2, "d_ff": 5, "V": 7}, "pt"),
    ]
    library = zoo.source_of("hf:bert")[0].import_transformers()
    text = {"vocab_size": 23, "max_position_embeddings": 50}
    nets = (
        library.BertModel(library.BertConfig(**TINY, **text)),
        library.GPT2LMHeadModel(
            library.GPT2Config(
                n_embd=8, n_head=2, n_layer=1, n_positions=60, vocab_size=23, bos_token_id=0, eos_token_id=0
            )
        ),
        library.ViTForImageClassification(library.ViTConfig(**TINY, **PIXELS)),
        library.LlamaForCausalLM(library.LlamaConfig(**TINY, num_key_value_heads=1, vocab_size=23)),
    )
    for net in nets:
        with TemporaryDirectory() as folder:
            net.save_pretrained(folder)
            found.append(("hf:", {path.name: path.read_bytes() for path in Path(folder).iterdir()}))
    return tuple(found)


def _ours(name: str, sizes: dict[str, int], kind: str) -> tuple[str, dict[str, bytes]]:
    tensors = tracer.load(name, **sizes).net.state_dict()
    if kind == "pt":
        torch.save(tensors, file := io.BytesIO())
        data = file.getvalue()
    else:
        data = safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()})
    card = {"sizes": sizes, "data": "drawn", "classes": ["cat", "dog", "owl"], "mean": [0.5] * 3, "std": [0.5] * 3}
    return name, {f"own.{kind}": data, "own.json": json.dumps(card).encode()}


def _damage_file(name: str, data: bytes, chance: Random) -> bytes | None:
    """Return the content of one file changed in its structure or in its bytes, or None for a file that is gone."""
    if chance.random() < 0.03:
        return None
    if chance.random() < 0.25:
        return mutate.damage(data, chance)
    if name.endswith(".json"):
        fields = json.loads(data)
        if isinstance(fields, dict) and chance.random() < 0.1:
            fields |= {"auto_map": {"AutoConfig": "modeling_own.Own", "AutoModel": "modeling_own.Own"}}
            fields["_name_or_path"] = "/etc"
        mutate.alter(fields, chance)
        return mutate.dump_json(fields).encode("utf-8", "surrogatepass")
    if name.endswith(".safetensors"):
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        mutate.alter(header, chance)
        text = mutate.dump_json(header).encode("utf-8", "surrogatepass")
        return len(text).to_bytes(8, "little") + text + data[8 + length :]
    if name.endswith(".pt"):
        return _repickle(data, chance)
    return data


def _repickle(data: bytes, chance: Random) -> bytes:
    """Return a checkpoint of PyTorch with another pickle: damaged, of other things, or one that would run a command."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        for entry in old.namelist():
            content = old.read(entry)
            if entry.endswith("data.pkl"):
                other = chance.choice((Executes(), {"a": 1}, [], {"model": {"x": Executes()}}, None))
                content = mutate.damage(content, chance) if chance.random() < 0.6 else pickle.dumps(other)
            new.writestr(entry, content)
    return out.getvalue()
