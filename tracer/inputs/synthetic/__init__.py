"""Inputs that are drawn and not recorded: scenes, surfaces, videos, point clouds, time series."""
