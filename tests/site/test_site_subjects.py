"""A site whose rows are persons' counts persons, and knows before a charge that it has them."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hostile import ENROL, NO_LIMIT, NOISE, PLAN, SUM, Server, arrays_of, audit, refused, site

from flower_fedclust.engine import ClientData
from flower_fedclust.engine.client_data import Outline
from flower_fedclust.exact.grid import MOST_ROWS
from flower_fedclust.site.app import Site
from flower_fedclust.site.check import checked_rows
from flower_fedclust.site.kept import read_outline, report_of, write_outline
from flower_fedclust.site.policy import Refused, SiteSettings

ROWS = np.random.default_rng(0).normal(size=(240, 3))
WHOSE = np.arange(240) // 4  # 60 persons


def site_of_persons(folder, limits=(), **policy):
    settings, most_rows = (
        site(folder, limits=limits, **policy).settings,
        dict(limits).get("most_rows", MOST_ROWS),
    )
    return Site(settings, lambda: ClientData(ROWS, subjects=WHOSE, most_rows=most_rows))


def test_an_outline_is_kept_whole(tmp_path):
    kept = site(tmp_path).kept
    outline = Outline(240, 3, ("a", "b", "c"), None, 2 * MOST_ROWS, 60)
    write_outline(kept, "this table", outline)
    assert read_outline(kept, "this table") == outline
    assert read_outline(kept, "another table") is None


def test_a_site_with_a_larger_bound_on_rows_has_it_in_every_message(tmp_path):
    own = site_of_persons(tmp_path, limits={"most_rows": 2 * MOST_ROWS})
    for _ in range(2):  # from the rows, and from what was kept
        assert own.outline.most_rows == 2 * MOST_ROWS
        own = Site(own.settings, lambda: pytest.fail("the rows were read"))


def test_too_few_persons_answer_nothing_however_many_rows_they_have(tmp_path):
    assert site_of_persons(tmp_path / "enough", fewest_subjects=60).data.n_subjects == 60
    own = site_of_persons(tmp_path / "few", fewest_subjects=61)
    for asked in (lambda: own.data, lambda: own.outline):
        with pytest.raises(
            Refused, match="rows of 60 persons; fewest_subjects in the policy is 61"
        ):
            asked()
    assert "fewest_subjects" in refused(Server(own).send([], ENROL), own)


def test_before_a_charge_the_number_of_persons_is_not_known(tmp_path):
    own = site_of_persons(tmp_path, fewest_subjects=20)
    assert own.outline.n_subjects == 20
    assert site(tmp_path / "of rows").outline.n_subjects == 0


def test_a_sample_of_persons_may_have_any_number_of_rows(tmp_path):
    limits = {"most_rows": 2 * MOST_ROWS}
    own = site_of_persons(tmp_path, limits=limits, sample=50)
    assert (own.data.n_subjects, own.data.n_rows) == (50, 200)
    assert own.outline.most_rows == 2 * MOST_ROWS
    assert site(tmp_path / "of rows", limits=limits, sample=50).outline.most_rows == MOST_ROWS


def test_a_site_with_persons_answers_runs_that_protect_them_and_no_others(tmp_path):
    own = site_of_persons(tmp_path, **NO_LIMIT)
    assert Server(own).ask_sum().metrics["failure"] == "refused"
    assert "protects single rows" in audit(own)[-1]["reason"]
    assert not own.ledger.read()
    plan = replace(PLAN, unit="subject").to_json()
    arrays_of(Server(own, 2).ask(SUM, releases=[NOISE], plan=plan))
    charged = own.ledger.read()[-1]
    assert (charged["epsilon"], charged["unit"]) == (pytest.approx(1.0, rel=1e-3), "subject")
    assert report_of([charged], "private-kmeans").unit == "subject"


def test_the_line_of_a_study_says_whom_its_epsilon_is_for(tmp_path):
    own = site_of_persons(tmp_path, approve="studies")
    plan = replace(PLAN, unit="subject").to_json()
    answer = Server(own).send([], ENROL | {"plan": plan})
    assert answer.metrics["failure"].startswith("waiting for approval")
    (study,) = own.studies.read()
    assert " for each person (noise: local)" in str(study)


def test_the_schema_of_a_site_may_name_the_subject_column(tmp_path):
    (tmp_path / "rows.csv").write_text(
        "a,who\n" + "".join(f"{row[0]},{who}\n" for row, who in zip(ROWS, WHOSE, strict=True))
    )
    (tmp_path / "columns.toml").write_text('subject_column = "who"\n[columns.a]\nkind = "number"\n')
    lines = 'name = "north"\ndata = "rows.csv"\nschema = "columns.toml"\n'
    (tmp_path / "site.toml").write_text(lines + "[policy]\nfewest_subjects = 20\n")
    data, reasons = checked_rows(SiteSettings.from_toml(tmp_path / "site.toml"))
    assert reasons == []
    assert (data.n_subjects, list(data.table.columns)) == (60, ["a"])
    (tmp_path / "site.toml").write_text(f'{lines}subject_column = "a"\n')
    _, reasons = checked_rows(SiteSettings.from_toml(tmp_path / "site.toml"))
    assert reasons == ["subject_column is 'a', and in the schema it is 'who'; give one of them."]


WRONG = {
    'subject_column = "who"\n[policy]\nfewest_subjects = 61\n': "has rows of 60 persons; fewest_subjects in the",
    'subject_column = "who"\n[policy]\nsample = 40\n': "sample in the policy is 40, but fewest_subjects is 50",
    "[policy]\nfewest_subjects = 20\n": "name the subject_column",
}


@pytest.mark.parametrize("given", WRONG)
def test_what_a_policy_says_of_persons_is_checked_before_the_site_starts(tmp_path, given):
    lines = [
        f"{json.dumps(row.tolist())[1:-1]},{who}" for row, who in zip(ROWS, WHOSE, strict=True)
    ]
    (tmp_path / "rows.csv").write_text("\n".join(["a,b,c,who", *lines]))
    (tmp_path / "site.toml").write_text(f'name = "north"\ndata = "rows.csv"\n{given}')
    _, reasons = checked_rows(SiteSettings.from_toml(tmp_path / "site.toml"))
    assert any(WRONG[given] in reason for reason in reasons)
