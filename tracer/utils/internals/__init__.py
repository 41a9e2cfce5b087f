"""Private names of the libraries below, one file for each library.

Elsewhere only public names are used, which `tests/project/test_private_names.py` holds; it also fails when one of the
private names goes. `pyproject.toml` bounds the versions of the libraries from above for their sake.
"""
