"""Datasets written out in the formats of other tools: one loop over files, and a small writer for each format."""
