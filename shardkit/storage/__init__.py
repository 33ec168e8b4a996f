"""Object stores: where they are, how requests are made, and what is done with the objects in them.

`shardkit.storage` is the door: it takes local paths and URLs alike. Other modules use only the door.
"""
