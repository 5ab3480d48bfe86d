"""Inference over files: each worker loads the model once, and the model gets each file once.

The model is a stand-in that needs no GPU. Twelve files are scored. Then four more arrive, and the
same job runs again: it calls the model only for those four.
"""

import os
import shutil
from functools import partial

import numpy as np
import pyarrow.dataset as ds

import millrace as mr

FOLDER = "example-02"


class Model:
    """Created once in each worker process; its weights stay in memory for all calls."""

    def __init__(self, folder: str) -> None:
        with open(f"{folder}/loads.log", "a", encoding="utf-8") as log:
            log.write(f"worker {os.getpid()}\n")
        self.weights = np.load(f"{folder}/weights.npy")

    def __call__(self, row: dict[str, str]) -> dict[str, object]:
        """Score one file. With the type hint `pa.RecordBatch` it would get many rows at once."""
        score = float(np.fromfile(row["path"], np.float32) @ self.weights)
        label = "cat" if score > 0 else "dog"
        return {"file": os.path.basename(row["path"]), "label": label, "score": round(score, 3)}


def make_images(numbers: range) -> None:
    """Files of 64 numbers each."""
    for number in numbers:
        pixels = np.random.default_rng(number).normal(size=64).astype(np.float32)
        pixels.tofile(f"{FOLDER}/images/{number:02}.img")


shutil.rmtree(FOLDER, ignore_errors=True)
os.makedirs(f"{FOLDER}/images")
np.save(f"{FOLDER}/weights.npy", np.random.default_rng(7).normal(size=64).astype(np.float32))
with mr.open(f"{FOLDER}/mill") as ws:
    for numbers in (range(12), range(12, 16)):
        make_images(numbers)
        job = ws.job("label")
        images = job.source("images", mr.files(f"{FOLDER}/images/*.img"))
        schema, model = "file string, label string, score double", partial(Model, FOLDER)
        # With GPUs: resources={"gpu": 1}
        labels = images.map("model", model, schema=schema, expensive=True, workers=2)
        labels.sink_parquet(f"{FOLDER}/labels")
        # New files are new work. All other files are done and stay done.
        done = job.run(on_change="continue").step("model")
        print(f"{done.calls_now} files scored now, {done.reused} were done before")
with open(f"{FOLDER}/loads.log", encoding="utf-8") as log:
    print(f"the model was loaded {len(log.readlines())} times for 16 files")
print(ds.dataset(f"{FOLDER}/labels").to_table().sort_by("file").slice(10).to_pandas())
