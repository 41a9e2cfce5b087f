"""Problems of a model's code, and its shapes: failures, findings, annotations, a plugin for pytest."""
