"""Code that pages share: the visitor's choices, the sidebar, and widgets."""
