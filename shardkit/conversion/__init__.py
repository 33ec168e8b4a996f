"""The steps of a conversion as plain functions: plan, extract, layout, write, commit.

Every step may be repeated: what it writes is a pure function of the plan, is published whole, and is found again by a
later run. `beam_pipelines` wires the steps together and carries only small descriptors between them.
"""
