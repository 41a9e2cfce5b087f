"""The model that most changes are tried on, and its run without changes."""

import pytest

import tracer


@pytest.fixture(scope="module")
def vit():
    return tracer.load("vit")


@pytest.fixture(scope="module")
def plain(vit):
    return vit.trace()
