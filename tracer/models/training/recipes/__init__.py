"""One training recipe per model, found by its file's name."""
