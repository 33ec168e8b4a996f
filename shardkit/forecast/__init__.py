"""Forecasts the needs of a conversion before it begins: arithmetic on counts and sizes.

Only `shardkit.forecast.measure` reads anything: real inputs, to count and size them.
"""
