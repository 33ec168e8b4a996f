"""What the tests of WebDatasets pack and read."""

from __future__ import annotations

import io
import tarfile

import numpy as np
from PIL import Image

from shardkit.sources import list_inputs
from shardkit.sources.base import SourceOptions
from shardkit.sources.webdataset.source import WebDatasetSource

WEBDATASET = SourceOptions(format="webdataset")


FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def pack(members, form=tarfile.USTAR_FORMAT):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for name, data in members:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            if isinstance(data, bytes):
                info.size = len(data)
            tar.addfile(info, io.BytesIO(data) if isinstance(data, bytes) else None)
    return buffer.getvalue()


def write(folder, content, name="a.tar"):
    path = folder / name
    path.write_bytes(content)
    return path


def read(*paths, options=WEBDATASET, features=None, batch_bytes=4 << 20):
    files = list_inputs([str(p) for p in paths], options).files
    source = WebDatasetSource(batch_bytes=batch_bytes)
    features = features or source.infer(files, options)
    batches = [b for split in source.split(files, options) for b in source.read(split, files, features, options)]
    return features, batches


def rows(batches):
    return [row for b in batches for row in b.batch.to_pylist()]


def png(color=0):
    buffer = io.BytesIO()
    Image.new("L", (3, 2), color).save(buffer, "PNG")
    return buffer.getvalue()


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()
