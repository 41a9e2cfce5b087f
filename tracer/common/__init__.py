"""What every part uses and none is about: quoting, parsing, files, seeds, cores and bounds."""
