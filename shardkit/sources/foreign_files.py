"""Ways to read files of other tools: a command for each kind, which makes a file of it that shardkit reads."""

from __future__ import annotations

import json
import shlex

from shardkit.messages import printable

_TABLE = "import pandas; pandas.DataFrame(pandas.CALL(SOURCE)).to_parquet(TARGET)"
_ARRAYS = "import MODULE, numpy; numpy.savez(TARGET, **{k: VALUE for k, v in CALL(SOURCE).items() if TEST})"
_HDF5 = (".npz", _ARRAYS, {"MODULE": "h5py", "CALL": "h5py.File", "VALUE": "v[()]", "TEST": 'hasattr(v, "shape")'})
_ARFF = (
    "import pandas, scipy.io.arff; pandas.DataFrame(scipy.io.arff.loadarff(SOURCE)[0])"
    ".map(lambda v: v.decode() if isinstance(v, bytes) else v).to_parquet(TARGET)"
)
_YAML = "import pandas, yaml; pandas.DataFrame(yaml.safe_load(open(SOURCE))).to_parquet(TARGET)"
# Of a dictionary the values that have a length are columns. Python 2 wrote those of CIFAR, which pandas cannot open.
_PICKLE = (
    "import fsspec, pandas, pickle; "
    'd = pickle.load(fsspec.open(SOURCE, compression="infer").open(), encoding="latin1"); '
    "n = lambda k: k.decode() if isinstance(k, bytes) else str(k); "
    'c = lambda v: list(v) if getattr(v, "ndim", 1) > 1 else v; '
    'd = {n(k): c(v) for k, v in d.items() if hasattr(v, "__len__") and not isinstance(v, (str, bytes))} '
    "if isinstance(d, dict) else d; pandas.DataFrame(d).to_parquet(TARGET)"
)
_SEQUENCES = 'import fsspec, pandas; t = fsspec.open(SOURCE, "rt", compression="infer").open().read(); '
_FASTA = (
    f'{_SEQUENCES}r = [s.partition("\\n") for s in t.lstrip(">").split("\\n>")]; '
    'pandas.DataFrame([(*(n.split(None, 1) + ["", ""])[:2], "".join(s.split())) for n, _, s in r], '
    'columns=["id", "description", "sequence"]).to_parquet(TARGET)'
)
_FASTQ = (
    f"{_SEQUENCES}n = t.strip().splitlines(); "
    'pandas.DataFrame({"id": [i[1:] for i in n[::4]], "sequence": n[1::4], "quality": n[3::4]}).to_parquet(TARGET)'
)
_TRUSTED = " and you trust it, as it may run any code"
# By the words for the kind: the extension of the file that the command writes, the command, and what it holds.
_WAYS = {
    "an Excel or Office document": (".parquet", _TABLE, {"CALL": "read_excel"}),
    "an old Office document": (".parquet", _TABLE, {"CALL": "read_excel"}),
    "an OpenDocument file": (".parquet", _TABLE, {"CALL": "read_excel"}),
    "a Stata file": (".parquet", _TABLE, {"CALL": "read_stata"}),
    "an SPSS file": (".parquet", _TABLE, {"CALL": "read_spss"}),
    "a SAS file": (".parquet", _TABLE, {"CALL": "read_sas"}),
    "a pickle of Python": (".parquet", _PICKLE, {}),
    "an HDF5 file": _HDF5,
    "an HDF5 file of MATLAB": _HDF5,
    "a MATLAB file": (
        ".npz", _ARRAYS, {"MODULE": "scipy.io", "CALL": "scipy.io.loadmat", "VALUE": "v", "TEST": 'k[0] != "_"'}
    ),
    "a file of PyTorch": (
        ".npz", _ARRAYS, {"MODULE": "torch", "CALL": "torch.load", "VALUE": "v.numpy()", "TEST": 'hasattr(v, "numpy")'}
    ),
    "ARFF text": (".parquet", _ARFF, {}),
    "XML text": (".parquet", _TABLE, {"CALL": "read_xml"}),
    "HTML text": (".parquet", "import pandas; pandas.read_html(SOURCE)[0].to_parquet(TARGET)", {}),
    "YAML text": (".parquet", _YAML, {}),
    "FASTA text": (".parquet", _FASTA, {}),
    "FASTQ text": (".parquet", _FASTQ, {}),
    "an object of R": (".parquet", "arrow::write_parquet(readRDS(SOURCE), TARGET)", {}),
}  # fmt: skip


def way_to_read(kind: str, path: str) -> str | None:
    """Returns what makes a file of another tool readable, for a message; None if there is no usual way.

    Args:
        kind: What the file is, as `file_types.foreign_format` words it.
    """
    if kind == "a pointer of Git LFS":
        return "Run  git lfs pull  in its repository, which puts the file in its place"
    if kind == "SQL text":
        name = printable(path)
        made = shlex.quote(f"{name.rpartition('/')[2]}.sqlite")
        return f"If it is a dump of SQLite, run  sqlite3 {made} <{shlex.quote(name)}  and convert {made} --table NAME"
    if kind not in _WAYS:
        return None
    suffix, command, words = _WAYS[kind]
    source = printable(path)
    target = f"{source.rpartition('/')[2]}{suffix}"
    for word, text in {**words, "SOURCE": json.dumps(source), "TARGET": json.dumps(target)}.items():
        command = command.replace(word, text)
    program = "Rscript -e" if kind == "an object of R" else "python -c"
    held = "arrays" if suffix == ".npz" else "a table"
    trusted = _TRUSTED if "pickle" in kind else ""
    return f"If it holds {held}{trusted}, run  {program} {shlex.quote(command)}  and convert {shlex.quote(target)}"
