"""Model inputs from a user's photo or text: `images` for photos, `text` for words."""
