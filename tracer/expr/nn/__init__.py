"""Nodes of neural networks: norms, convolutions, embeddings, positions, recurrences."""
