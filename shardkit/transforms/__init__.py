"""Transformations of row batches: what is done to rows between reading and encoding.

Every step is a function of one batch and its options, and gives each row the same result however rows are cut into
batches. `pipeline` plans the steps and applies them; `options` says what can be asked for.
"""
