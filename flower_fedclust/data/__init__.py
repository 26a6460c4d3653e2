"""Rows for the strategies: data sets, files, databases, and ways to split a table over clients.

A :class:`Table` holds rows in one place, from :func:`load_dataset`, :func:`read_table` or :func:`read_query`.
:func:`partition` splits a table over clients. A :class:`FederatedRows` holds the rows of several clients, as
``simulate`` and the apps take them; :func:`read_folder` reads one from a folder with a file for each client.
"""

from flower_fedclust.data.batches import Batches
from flower_fedclust.data.datasets import DATASETS, dataset_names, find_dataset, load_dataset
from flower_fedclust.data.federation import FederatedRows, Table
from flower_fedclust.data.files import read_batches, read_folder, read_query, read_table
from flower_fedclust.data.partition import hold_out_server_rows, partition, partition_indices

__all__ = [
    "DATASETS",
    "Batches",
    "FederatedRows",
    "Table",
    "dataset_names",
    "find_dataset",
    "hold_out_server_rows",
    "load_dataset",
    "partition",
    "partition_indices",
    "read_batches",
    "read_folder",
    "read_query",
    "read_table",
]
