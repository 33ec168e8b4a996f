"""The card of a dataset on the hub of Hugging Face: the README.md of a repository that has none."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardkit.storage import files as storage

_MARK = "<!-- Written by shardkit, which replaces it as long as this line is here. -->"
_SHARDS = """The examples are TFRecord shards with a manifest, in `{url}`. The library `datasets` reads no TFRecord:

    import shardkit
    batches = shardkit.open("{url}")["{split}"].batches(global_batch_size=256)

`shardkit export-data {url} URL --to parquet` writes Parquet that `load_dataset` reads.
"""
_TABLES = """    from datasets import load_dataset
    rows = load_dataset("{repository}", split="{split}")
"""


def _tables_of(card: str) -> list[dict[str, Any]]:
    """Returns the configurations of tables that a card names."""
    # It takes 20 ms to import, and most destinations have no card.
    import yaml

    parts = card.split("---\n")
    try:
        head = yaml.safe_load(parts[1]) if len(parts) > 1 else None
    except yaml.YAMLError:
        return []
    if not isinstance(head, dict) or not head.get("viewer") or not isinstance(head.get("configs"), list):
        return []
    return [config for config in head["configs"] if isinstance(config, dict)]


def _folder_of(config: dict[str, Any]) -> str:
    match config.get("data_files"):
        case [{"path": str(path)}, *_]:
            return path.rpartition("/")[0]
    return ""


def put_card(folder: str, files: Mapping[str, str], *, is_table: bool) -> None:
    """Writes the card of a repository that has none, or replaces one of shardkit's by that of tables; else nothing.

    Args:
        folder: Of the files; where it is not on the hub, nothing is done.
        files: The pattern of the files of each split, below the folder.
        is_table: Whether the library `datasets` reads the files.

    Raises:
        StorageError: If the store kept failing.
    """
    if (root := storage.repository_of(folder)) is None:
        return
    url = storage.join(root, "README.md")
    card = storage.read_bytes(url).decode(errors="replace") if storage.exists(url) else None
    if card is not None and not (is_table and _MARK in card):
        return
    content = card_of(root, folder, files, is_table=is_table, card=card).encode()
    if card is None:
        # Of two writers either card will do.
        storage.try_create(url, content)
        return
    with tempfile.TemporaryDirectory(prefix="shardkit-card-") as scratch:
        path = Path(scratch) / "README.md"
        path.write_bytes(content)
        storage.put_file(path, url)


def card_of(root: str, folder: str, files: Mapping[str, str], *, is_table: bool, card: str | None = None) -> str:
    """Returns a card with a configuration that names the files of each split, relative to the repository. Pure.

    Args:
        card: Of shardkit, whose configurations of tables in other folders stay; None if there is none.
    """
    below = folder[len(root) :].strip("/")
    paths = [{"split": split, "path": f"{below}/{path}".lstrip("/")} for split, path in files.items()]
    configs = [config for config in _tables_of(card or "") if _folder_of(config) != below]
    name_of_config = below.replace("/", "-") if any(c.get("config_name") == "default" for c in configs) else "default"
    configs.append({"config_name": name_of_config, "data_files": paths})
    head = {"configs": configs, "tags": ["shardkit"], "viewer": is_table}
    name = root.partition("://datasets/")[2].partition("@")[0]
    text = (_TABLES if is_table else _SHARDS).format(url=folder, repository=name, split=next(iter(files)))
    import yaml

    return f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n{_MARK}\n\n# {name.partition('/')[2]}\n\n{text}"
