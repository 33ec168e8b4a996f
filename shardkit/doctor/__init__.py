"""What `shardkit doctor` finds out: whether the installation fits together, and whether a store keeps its promises.

Pure functions judge what was seen (`store_guarantees`, `requirements`); the modules beside them look.
"""
