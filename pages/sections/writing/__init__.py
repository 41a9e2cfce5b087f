"""Parts of the lesson on writing."""
