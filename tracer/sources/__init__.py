"""Models of libraries, by name: `torchvision:vit_b_16`, `timm:NAME`, `hf:ID` or `hf:` and a local folder.

Every file of this folder that has a `PREFIX` is a library, found by itself and imported only when it is used. It says
what its models are (`examples()`, `summary(id)`, `spec(id)`), and loads their weights where they can be had
(`pretrained(id, spec, sizes)`: the net or None, what is known of it, and where its weights come from, in words).
"""

from __future__ import annotations

import ast
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module, util
from importlib.resources import files
from pkgutil import iter_modules


@lru_cache(maxsize=1)
def libraries() -> dict[str, tuple[str, str]]:
    """Prefix to (file, package that must be installed), read without running the files."""
    found = {}
    for module in iter_modules(__path__):
        path = files(__name__) / f"{module.name}.py"
        if not path.is_file():
            continue
        stated = {
            line.targets[0].id: line.value.value
            for line in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant)
        }
        if "PREFIX" in stated:
            found[stated["PREFIX"]] = module.name, stated["PACKAGE"]
    return found


def is_foreign(name: str) -> bool:
    """Whether a name is that of a library's model: it has a colon."""
    return ":" in name


def available(prefix: str) -> bool:
    """Whether the library is installed, without importing it."""
    return util.find_spec(libraries()[prefix][1]) is not None


def source_of(name: str):
    """The library's module and the model's name in it. ValueError for an unknown prefix or a library that is not
    installed."""
    prefix, _, id = name.partition(":")
    if prefix not in libraries():
        near = get_close_matches(prefix, libraries(), n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}:{id}?" if near else f"known are {', '.join(f'{p}:…' for p in libraries())}"
        raise ValueError(f"there is no library {prefix!r} (in {name!r}); {hint}")
    file, package = libraries()[prefix]
    if not available(prefix):
        raise ValueError(f"{name!r} needs the package {package}, which is not installed: pip install {package}")
    return import_module(f"{__name__}.{file}"), id


def spec_of(name: str):
    """The `Spec` of a library's model. ValueError in one sentence where there is no such model."""
    source, id = source_of(name)
    return source.spec(id)


def summary(name: str) -> str:
    """What the model is, in a few words."""
    source, id = source_of(name)
    return source.summary(id)


def examples() -> tuple[str, ...]:
    """Names to start from, of the libraries that are installed."""
    names = []
    for prefix, (file, _) in libraries().items():
        if available(prefix):
            names += [f"{prefix}:{id}" for id in import_module(f"{__name__}.{file}").examples()]
    return tuple(names)


def tiny(name: str) -> dict[str, int]:
    """Sizes at which the model's proofs take no time."""
    spec = spec_of(name)
    return {symbol: size for symbol, size in spec.tiny.items() if symbol not in spec.runs}


def load(name: str, *, weights=None, **config):
    """A library's model, ready to run; see `tracer.load`.

    With the library's own weights where those are on this machine or can be downloaded, else with seeded random
    ones; `model.weights` says which, and why. At other sizes always with seeded random weights.
    """
    from tracer.model import Model, check_config, check_memory, seeded

    source, id = source_of(name)
    spec = source.spec(id)
    check_config(spec, name, config)
    full = {**spec.sizes, **{option: values[0] for option, values in spec.options.items()}, **config}
    check_memory(spec, name, full)
    net, card, origin = None, None, "seeded random weights"
    if weights is None and all(full[symbol] == value for symbol, value in spec.sizes.items()):
        net, card, origin = source.pretrained(id, spec, full)
    if net is None:
        net = seeded(spec.net, full)
    if weights is not None:
        from tracer.weights import load_into, named, read

        load_into(net, read(weights), named(weights))
        origin = "uploaded weights" if isinstance(weights, bytes) else f"weights of {weights}"
    sizes = {symbol: full[symbol] for symbol in spec.sizes}
    options = {option: full[option] for option in spec.options}
    return Model(name=name, net=net, spec=spec, sizes=sizes, options=options, weights=origin, card=card)
