"""TFRecord files that others wrote become a dataset where they lie: scanned once, never rewritten."""
