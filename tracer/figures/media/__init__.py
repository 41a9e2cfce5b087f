"""Pictures of inputs that are heard, played or turned, and of the tokens that they are cut into."""
