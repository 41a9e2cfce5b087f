"""The parts of the lesson on writing."""
