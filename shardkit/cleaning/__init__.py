"""What `shardkit clean` does: finds what no manifest names and no live conversion owns, and removes it.

`inventory` looks up the files, a pure function in `decide` decides which of them may go, and `remove` checks that again
before it deletes anything.
"""
