"""Model inputs from a person's photo or text: `images` for photos, `text` for words."""
