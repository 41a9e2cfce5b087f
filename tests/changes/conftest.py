"""A vit of three blocks, on which changes are tried: a changed run is derived anew, in a time that grows with them."""

import pytest


@pytest.fixture(scope="session")
def vit():
    """Model of the changed runs, which is never modified."""
    import tracer  # loads torch

    return tracer.load("vit", L=3)


@pytest.fixture(scope="session")
def plain(vit):
    """Run of the model without changes."""
    return vit.trace()
