"""Parts of the layout that pages share: frame, sidebar, texts, tables and style sheets."""

from pathlib import Path

STYLES = Path(__file__).with_name("styles")
"""The folder of the style sheets that pages load."""
