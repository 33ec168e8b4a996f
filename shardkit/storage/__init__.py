"""Object stores: where they are, how they are asked, and what is done with the objects in them.

`shardkit.storage` is the door: it takes local paths and URLs alike, and nobody else asks for more than it gives.
"""
