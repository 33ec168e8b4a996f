"""Classes of protobuf messages that are declared at run time."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_KEPT: list[Any] = []


def declare_messages(file: descriptor_pb2.FileDescriptorProto) -> dict[str, Any]:
    """Returns the class of each message of a file by the message's name; they live in a pool of their own."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = [message.name for message in file.message_type]
    classes = {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{name}")) for name in names
    }
    # Protobuf 6 holds classes weakly. One that only its messages refer to becomes garbage with them; whoever parses
    # while that garbage is being cleared, in another thread, gets a class without methods, and the process dies.
    _KEPT.extend(classes.values())
    return classes
