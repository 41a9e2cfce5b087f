"""One number of a run, followed back to its operands and forward to the cells that read it."""
