"""TFRecord files that others wrote become a dataset where they are: scanned once, never rewritten."""
