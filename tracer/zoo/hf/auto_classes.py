"""Classes of transformers for a configuration, the likeliest first."""

from __future__ import annotations

import inspect
from contextlib import suppress
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from tracer.utils.internals.transformers_internals import auto_classes

TASKS = (
    "SPEECH_SEQ_2_SEQ",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "IMAGE_TEXT_TO_TEXT",
    "MULTIMODAL_LM",
    "MASKED_LM",
    "CAUSAL_LM",
    "IMAGE_CLASSIFICATION",
    "VIDEO_CLASSIFICATION",
    "OBJECT_DETECTION",
    "ZERO_SHOT_OBJECT_DETECTION",
    "SEMANTIC_SEGMENTATION",
    "UNIVERSAL_SEGMENTATION",
    "INSTANCE_SEGMENTATION",
    "DEPTH_ESTIMATION",
    "CTC",
    "AUDIO_CLASSIFICATION",
    "TEXT_TO_WAVEFORM",
    "TIME_SERIES_PREDICTION",
    "ZERO_SHOT_IMAGE_CLASSIFICATION",
    "MASK_GENERATION",
)
"""The Auto classes with a head, in the order in which they are preferred."""
HEADLESS_CLASSES = ("MODEL", "PRETRAINING", "TEXT_ENCODING", "BACKBONE")
"""Auto classes without a head."""


def classes(config) -> list[Any]:
    """Return the classes that a configuration may be of: its own `architectures`, or else those of the Auto classes,
    then those of its own file. Raise ValueError for a class that transformers does not have."""
    package = import_module("transformers")  # which `tracer.zoo.hf.hub` has imported
    named = [getattr(package, name, None) for name in config.architectures or ()]
    if config.architectures:
        if named[0] is None:
            raise ValueError(f"its class, {config.architectures[0]!r}, is none of transformers {package.__version__}")
        return named[:1]
    tasks = (*(f"MODEL_FOR_{task}" for task in (*TASKS, *HEADLESS_CLASSES)), "MODEL")
    names = dict.fromkeys(name for task in tasks for name in auto_classes(task, config.model_type))
    loaded = (getattr(package, name, None) for name in names)
    known = dict.fromkeys([*(model for model in loaded if model is not None), *_own(config)])
    return sorted(known, key=lambda model: not isinstance(config, model.config_class or ()))  # else for a part of it


def _own(config) -> list[Any]:
    """Return the models of the files beside the configuration's file that take it."""
    folder = import_module(type(config).__module__.rpartition(".")[0])
    members = []
    for file in iter_modules(folder.__path__):
        if file.name.startswith("modeling_"):
            with suppress(ImportError):  # what it needs is not installed
                members += _models(import_module(f"{folder.__name__}.{file.name}"))
    return [model for _, model in members if model.config_class is type(config)]


def _models(module: ModuleType) -> list[tuple[str, Any]]:
    base = import_module("transformers").PreTrainedModel
    members = inspect.getmembers(module, lambda value: inspect.isclass(value) and issubclass(value, base))
    mine = [(name, model) for name, model in members if model.__module__ == module.__name__]
    return [(name, model) for name, model in mine if not name.endswith(("PreTrainedModel", "PretrainedModel"))]
