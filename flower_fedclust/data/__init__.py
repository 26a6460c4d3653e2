"""Where rows come from: data sets, files and databases; and ways to split a table over clients.

A :class:`Table` holds rows in one place, from :func:`load_dataset`, :func:`read_table` or :func:`read_query`.
:func:`partition` splits a table over clients. A :class:`FederatedRows` holds the rows of several clients, as
``simulate`` and the apps take them; :func:`read_folder` reads one from a folder with a file for each client.
"""

from flower_fedclust.data.batches import Batches as Batches
from flower_fedclust.data.datasets import DATASETS as DATASETS
from flower_fedclust.data.datasets import dataset_names as dataset_names
from flower_fedclust.data.datasets import find_dataset as find_dataset
from flower_fedclust.data.datasets import load_dataset as load_dataset
from flower_fedclust.data.federation import FederatedRows as FederatedRows
from flower_fedclust.data.federation import Table as Table
from flower_fedclust.data.files import read_batches as read_batches
from flower_fedclust.data.files import read_folder as read_folder
from flower_fedclust.data.files import read_query as read_query
from flower_fedclust.data.files import read_table as read_table
from flower_fedclust.data.partition import hold_out_server_rows as hold_out_server_rows
from flower_fedclust.data.partition import partition as partition
from flower_fedclust.data.partition import partition_indices as partition_indices
