"""Write made-up hospitals as DuckDB files in the OMOP common data model, for the tutorial `omop.md`.

    python omop_databases.py FOLDER

The tables, columns and concepts are OMOP's. The patients are made up: each has one of four courses of disease, which
decides how old they are, which conditions they have, what is measured, and how often they come. No database has real
persons in it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd

#: Hospitals, how many persons each has, and how common each course is there.
HOSPITALS = {
    "north": (4000, (0.45, 0.25, 0.18, 0.12)),
    "south": (2500, (0.35, 0.35, 0.20, 0.10)),
    "west": (1500, (0.55, 0.15, 0.10, 0.20)),
}
#: Concepts of OMOP's vocabulary.
MALE, FEMALE = 8507, 8532
HYPERTENSION, DIABETES, HEART_FAILURE, LUNG_DISEASE = 320128, 201826, 316139, 255573
BLOOD_PRESSURE, BODY_MASS, HBA1C = 3004249, 3038553, 3004410
INPATIENT, OUTPATIENT = 9201, 9202
CONDITIONS = (HYPERTENSION, DIABETES, HEART_FAILURE, LUNG_DISEASE)
MEASUREMENTS = (BLOOD_PRESSURE, BODY_MASS, HBA1C)

#: For each course (healthy, metabolic, heart, lung): years of age and visits, on average; how common each condition
#: is; the means of the measurements; and the part of the visits for which somebody stays overnight.
AGE = np.array([38.0, 58.0, 76.0, 66.0])
VISITS = np.array([3.0, 9.0, 14.0, 10.0])
HAS_CONDITION = np.array(
    [
        [0.08, 0.02, 0.00, 0.02],
        [0.70, 0.75, 0.05, 0.05],
        [0.80, 0.30, 0.85, 0.15],
        [0.40, 0.12, 0.12, 0.90],
    ]
)
MEASURED = np.array(
    [[121.0, 24.0, 5.3], [138.0, 33.0, 7.4], [134.0, 27.0, 6.1], [131.0, 24.0, 5.7]]
)
SPREAD = np.array([10.0, 3.0, 0.5])
OVERNIGHT = np.array([0.03, 0.08, 0.30, 0.22])
#: Months until half of those with a course have died, from the end of 2023 on; the databases end two years later.
HALF_LIFE, END = np.array([600.0, 120.0, 22.0, 40.0]), 24.0


def hospital(name: str, n_persons: int, courses: tuple[float, ...]) -> dict[str, pd.DataFrame]:
    """Return the tables of a hospital; the same name gives the same persons."""
    numbers = np.random.default_rng(list(name.encode()))
    course = numbers.choice(4, size=n_persons, p=courses)
    identity = numbers.permutation(np.arange(10**6, 10**6 + n_persons))
    age = np.clip(numbers.normal(AGE[course], 9), 18, 95)
    person = pd.DataFrame(
        {
            "person_id": identity,
            "gender_concept_id": numbers.choice([MALE, FEMALE], size=n_persons),
            "year_of_birth": (2024 - age).astype(int),
        }
    )
    visits = _visits(numbers, course, identity)
    measurements = _measurements(numbers, course, identity, visits)
    conditions = _conditions(numbers, course, identity)
    death, observed = _follow_up(numbers, course, identity)
    return {
        "person": person,
        "visit_occurrence": visits,
        "condition_occurrence": conditions,
        "measurement": measurements,
        "death": death,
        "observation_period": observed,
    }


def _visits(numbers: np.random.Generator, course: np.ndarray, identity: np.ndarray) -> pd.DataFrame:
    n_visits = 1 + numbers.poisson(VISITS[course])
    whose = np.repeat(np.arange(len(course)), n_visits)
    stays = numbers.random(len(whose)) < OVERNIGHT[course[whose]]
    return pd.DataFrame(
        {
            "visit_occurrence_id": np.arange(len(whose)),
            "person_id": identity[whose],
            "visit_concept_id": np.where(stays, INPATIENT, OUTPATIENT),
            "visit_start_date": np.datetime64("2022-01-01") + numbers.integers(0, 730, len(whose)),
        }
    )


def _measurements(
    numbers: np.random.Generator, course: np.ndarray, identity: np.ndarray, visits: pd.DataFrame
) -> pd.DataFrame:
    """Return what was measured at visits; at four of ten, a measurement was left out."""
    usual = MEASURED[course] + numbers.normal(size=(len(course), 3)) * SPREAD
    place = pd.Series(np.arange(len(identity)), index=identity)[visits["person_id"]].to_numpy()
    tables = []
    for index, concept in enumerate(MEASUREMENTS):
        is_taken = numbers.random(len(visits)) < 0.6
        values = (
            usual[place[is_taken], index] + numbers.normal(size=is_taken.sum()) * SPREAD[index] / 3
        )
        taken = visits.loc[is_taken, ["person_id", "visit_occurrence_id", "visit_start_date"]]
        taken = taken.rename(columns={"visit_start_date": "measurement_date"})
        tables.append(taken.assign(measurement_concept_id=concept, value_as_number=values.round(1)))
    return pd.concat(tables, ignore_index=True)


def _conditions(
    numbers: np.random.Generator, course: np.ndarray, identity: np.ndarray
) -> pd.DataFrame:
    """Return the conditions, each written down one to six times."""
    has = numbers.random((len(course), 4)) < HAS_CONDITION[course]
    whose, which = np.nonzero(has)
    again = numbers.integers(1, 7, len(whose))
    whose, which = np.repeat(whose, again), np.repeat(which, again)
    return pd.DataFrame(
        {
            "person_id": identity[whose],
            "condition_concept_id": np.array(CONDITIONS)[which],
            "condition_start_date": np.datetime64("2021-01-01")
            + numbers.integers(0, 1095, len(whose)),
        }
    )


def _follow_up(
    numbers: np.random.Generator, course: np.ndarray, identity: np.ndarray
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return who has died when, and until when each person was observed; some have moved away."""
    until = numbers.exponential(HALF_LIFE[course] / np.log(2.0))
    seen = np.minimum(numbers.exponential(80.0, len(course)), END)
    start = np.datetime64("2023-12-31")
    last = start + (30.4 * np.minimum(until, seen)).astype(int)
    has_died = until <= seen
    death = pd.DataFrame({"person_id": identity[has_died], "death_date": last[has_died]})
    observed = {
        "person_id": identity,
        "observation_period_start_date": np.datetime64("2021-01-01"),
        "observation_period_end_date": last,
    }
    return death, pd.DataFrame(observed)


def write_hospitals(folder: str | Path) -> list[Path]:
    """Write a DuckDB file for each hospital into a folder that exists, and return the paths."""
    files = []
    for name, (n_persons, courses) in HOSPITALS.items():
        files.append(Path(folder) / f"{name}.duckdb")
        with duckdb.connect(str(files[-1])) as database:
            for table, rows in hospital(name, n_persons, courses).items():
                database.register("rows", rows)
                database.execute(f"CREATE OR REPLACE TABLE {table} AS SELECT * FROM rows")
                database.unregister("rows")
    return files


if __name__ == "__main__":
    print(*write_hospitals(sys.argv[1]), sep="\n")
