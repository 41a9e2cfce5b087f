"""An independent reader of printed equations: LaTeX to a tree, a tree and tensors to a value.

It shares nothing with what prints and runs equations: no PyTorch, no sympy, no `tracer.expr`; a test holds it to
NumPy, the standard library and `tracer.utils`.
"""
