"""What `shardkit clean` does: finds what no manifest names and no live conversion owns, and removes it.

What lies there is looked up (`inventory`), what may go is decided by a pure function (`decide`), and before anything is
deleted it is asked again whether that still holds (`remove`).
"""
