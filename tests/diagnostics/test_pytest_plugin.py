"""Plugin for pytest: shapes and findings in a user's own tests."""

import subprocess
import sys
import textwrap

TESTS = """
    import torch
    from torch import nn


    class Scores(nn.Module):
        def forward(self, q, k):
            return q @ k.transpose(-2, -1)


    def merge(heads):
        return heads.reshape(heads.shape[0], -1, 12)


    def test_shapes(trace_module):
        trace = trace_module(Scores(), torch.randn(2, 5, 8), torch.randn(2, 5, 8), symbols={"B": 0, "T": 1})
        assert trace.steps[-1].symbolic == ("B", "T", "T")


    def test_wrong_shape(trace_module):
        trace = trace_module(Scores(), torch.randn(2, 5, 8), torch.randn(2, 5, 8), symbols={"B": 0, "T": 1})
        assert trace.steps[-1].symbolic == ("B", "T", "8")


    def test_clean(trace_module, assert_no_findings):
        assert_no_findings(trace_module(lambda x: x.reshape(2, 60), torch.randn(2, 3, 5, 4)))


    def test_mistake(trace_module, assert_no_findings):
        assert_no_findings(trace_module(merge, torch.randn(2, 3, 5, 4)))
"""


def test_shapes_and_findings_are_held(tmp_path):
    (tmp_path / "test_mine.py").write_text(textwrap.dedent(TESTS))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tracer.diagnostics.pytest_plugin", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    assert "2 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert "test_mine.py::test_wrong_shape" in done.stdout and "axes mixed at" in done.stdout
