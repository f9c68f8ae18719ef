"""Data sets: readers that stream files to many ranks, and rows in memory."""

from resilient_ps.data.arrays import ArrayDataset, SparseArrayDataset
from resilient_ps.data.batch import Batch, Cursor, DenseBatch, SparseBatch
from resilient_ps.data.columns import Columns
from resilient_ps.data.corpus import Corpus, open_corpus, reuters
from resilient_ps.data.csv import open_criteo, open_csv
from resilient_ps.data.dataset import FORMATS, Dataset, open_dataset
from resilient_ps.data.libsvm import open_libsvm
from resilient_ps.data.npz import open_npz
from resilient_ps.data.parquet import open_parquet

__all__ = [
    "FORMATS",
    "ArrayDataset",
    "Batch",
    "Columns",
    "Corpus",
    "Cursor",
    "Dataset",
    "DenseBatch",
    "SparseArrayDataset",
    "SparseBatch",
    "open_corpus",
    "open_criteo",
    "open_csv",
    "open_dataset",
    "open_libsvm",
    "open_npz",
    "open_parquet",
    "reuters",
]
