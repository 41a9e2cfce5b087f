"""Inputs that are drawn instead of recorded: scenes, surfaces, videos, point clouds, time series."""
