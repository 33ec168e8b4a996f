"""What `shardkit doctor` finds out: whether the installation fits together, and whether a store keeps its promises.

Pure functions judge the findings (`store_guarantees`); the other modules collect them.
"""
