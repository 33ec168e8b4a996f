"""Rows that a Python program holds, on their way into a dataset."""
