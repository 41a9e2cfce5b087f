"""Following one number of the run, on every page that draws cells."""
