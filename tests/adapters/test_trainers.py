"""Lightning and the Trainer of Hugging Face train on the datasets of PyTorch as they are."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

import shardkit
from tests.support.paths import ROOT

pytestmark = pytest.mark.full

LIGHTNING = """
import json, sys
import pytorch_lightning as lightning, torch
from torch.utils.data import DataLoader
import shardkit
from shardkit.adapters.torch import BatchDataset

batches = BatchDataset(shardkit.open(sys.argv[1])["train"], global_batch_size=8, seed=1, remainder="pad")

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def on_train_epoch_start(self):
        self.seen.append([])

    def training_step(self, batch, index):
        is_real = batch.get("mask", torch.ones(len(batch["x"]), dtype=torch.bool))
        self.seen[-1] += batch["x"][is_real].tolist()
        errors = (self.layer(batch["x"][:, None])[:, 0] - batch["y"]) ** 2
        return errors[is_real].mean()

    def on_train_epoch_end(self):
        batches.set_epoch(self.current_epoch + 1)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

model = Model()
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", devices=1, **quiet)
trainer.fit(model, DataLoader(batches, batch_size=None, num_workers=int(sys.argv[2])))
print(json.dumps(model.seen))
"""
# The positions are drawn by the Trainer's own sampler.
TRAINER = """
import json, sys
import torch
from transformers import Trainer, TrainingArguments
import shardkit
from shardkit.adapters.torch import ExampleDataset

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def forward(self, x, y):
        self.seen += x.tolist()
        predicted = self.layer(x[:, None])[:, 0]
        return {"loss": ((predicted - y) ** 2).mean(), "predicted": predicted}

model = Model()
settings = TrainingArguments(
    sys.argv[3], num_train_epochs=2, per_device_train_batch_size=8, use_cpu=True, remove_unused_columns=False,
    report_to="none", save_strategy="no", disable_tqdm=True, dataloader_num_workers=int(sys.argv[2]),
)
Trainer(model, settings, train_dataset=ExampleDataset(shardkit.open(sys.argv[1])["train"])).train()
half = len(model.seen) // 2
print(json.dumps([model.seen[:half], model.seen[half:]]))
"""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    url = tmp_path_factory.mktemp("trainers") / "out"
    rows = {"x": [i / 64 for i in range(50)], "y": [i / 32 for i in range(50)]}
    shardkit.convert(rows, url, cast={"x": "float32", "y": "float32"})
    return url


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, marks=pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not installed"))
        for program, name in ((LIGHTNING, "pytorch_lightning"), (TRAINER, "transformers"))
    ],
    ids=["lightning", "transformers"],
)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_each_epoch_has_every_example_once_in_another_order(dataset, tmp_path, program, num_workers):
    run = subprocess.run(
        [sys.executable, "-c", program, dataset, str(num_workers), tmp_path],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert run.returncode == 0, run.stderr
    first, second = json.loads(run.stdout.splitlines()[-1])
    assert sorted(first) == sorted(second) == [i / 64 for i in range(50)]
    assert first != second
