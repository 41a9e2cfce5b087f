"""Pictures of a run: data in, plotly figure or SVG out. No Streamlit, no session, no torch import."""
