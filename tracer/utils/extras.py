"""Packages that only some features need, each with the extra of `pyproject.toml` that installs it."""

from importlib import import_module
from types import ModuleType

EXTRAS = {
    "pandas": "tables",
    "plotly": "figures",
    "pyarrow": "survey",
    "ray": "survey-ray",
    "streamlit": "app",
    "tokenizers": "lessons",
    "tqdm": "train",
}
"""Package to extra. The extra `app` has all of these but ray and tqdm, too."""


def require(package: str, feature: str) -> ModuleType:
    """Import a package of `EXTRAS`. Raise ModuleNotFoundError with one sentence on how to install it."""
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ModuleNotFoundError(sentence(package, feature), name=package) from None


def explain(error: ModuleNotFoundError, feature: str) -> str:
    """Return the sentence for an import that failed, "" where the package belongs to no extra."""
    package = (error.name or "").partition(".")[0]
    return sentence(package, feature) if package in EXTRAS else ""


def sentence(package: str, feature: str) -> str:
    """Return the sentence on what a feature needs and how to install it."""
    return f"{feature} needs {package}, which is not installed: pip install 'tensor-tracer[{EXTRAS[package]}]'"
