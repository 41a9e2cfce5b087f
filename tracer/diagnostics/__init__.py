"""What is wrong with a model's code, and what its shapes are: failures, findings, annotations, a plugin for pytest."""
