"""What `shardkit doctor` finds out: whether the installation fits together, and whether a store keeps its promises.

What was seen is judged by pure functions (`promises`, `requirements`); seeing is done by the modules beside them.
"""
