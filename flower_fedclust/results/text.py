"""A result in ten lines, for a terminal and for a notebook: what came out, what it is worth, and what protects it."""

from __future__ import annotations

import textwrap
from html import escape

import numpy as np

from flower_fedclust.results.findings import Findings
from flower_fedclust.privacy.report import PrivacyReport

#: How many clusters' sizes are shown.
_SIZES = 12
_WIDTH = 118
_MARGIN = 13


def as_text(result: Findings) -> str:
    """Return a result in at most ten lines."""
    lines = [_headline(result)]
    for name, text in _facts(result).items():
        lines.append(f"{name:<{_MARGIN}}{textwrap.shorten(text, _WIDTH - _MARGIN, placeholder=' ...')}")
    return "\n".join(lines)


def as_html(result: Findings) -> str:
    """Return a result as a small table for a notebook, with the privacy report to be opened."""
    rows = "".join(
        f'<tr><th style="text-align:left;vertical-align:top">{escape(name)}</th>'
        f'<td style="text-align:left">{escape(text)}</td></tr>'
        for name, text in _facts(result).items()
    )
    return (
        f'<div style="max-width:60em"><p><b>{escape(_headline(result))}</b></p><table>{rows}</table>'
        f"<details><summary>The privacy report</summary>"
        f'<pre style="white-space:pre-wrap">{escape(str(result.privacy))}</pre></details></div>'
    )


def _headline(result: Findings) -> str:
    n_rows, n_clients = sum(map(len, result.labels)), len(result.names)
    rows = f" of {n_rows:,} rows" if n_rows else ""
    return (
        f"{result.strategy}: {result.model.n_clusters:,} clusters{rows} at {n_clients:,} "
        f"client{'' if n_clients == 1 else 's'}, in {result.summary()['rounds']:,} rounds and {result.seconds:.2g} s"
    )


def _facts(result: Findings) -> dict[str, str]:
    """Return what there is to say, nine things at most, by name."""
    metrics, privacy = result.metrics, result.privacy
    facts: dict[str, str] = {}
    if any(map(len, result.labels)):
        facts["sizes"] = _sizes(result)
    if "cost_per_row" in metrics:
        facts["cost"] = f"{metrics['cost_per_row']:.4g} a row"
        if "cost_of_one_cluster" in metrics:
            facts["cost"] += f", where one cluster for all has {metrics['cost_of_one_cluster']:.4g}"
    scores = {"accuracy": "accuracy", "nmi": "NMI", "ari": "ARI"}
    if found := [f"{name} {metrics[key]:.3f}" for key, name in scores.items() if key in metrics]:
        facts["scores"] = ", ".join(found)
    facts["privacy"] = _privacy(privacy)
    contents = list(dict.fromkeys(f"{one.content} ({one.detail})" for one in privacy.unprotected))
    facts["unprotected"] = "; ".join(contents) or "nothing that depends on the rows"
    if result.failures:
        first = result.failures[0]
        facts["failed"] = f"{len(result.failures)}: {first.client} in round {first.round}: {first.reason}"
    if result.doubts:
        facts["doubts"] = f"{len(result.doubts)}: {result.doubts[0]}"
    facts["model"] = repr(result.model)
    described = "print(.clusters), " if result.clusters is not None else ""
    facts["look at"] = f"{described}.model.predict(table), .labels, .metrics, .doubts, print(.privacy), .save(folder)"
    return facts


def _privacy(report: PrivacyReport) -> str:
    """Return the guarantee in a line, with what it covers first."""
    of_run, of_releases = "The whole run is covered by ", "The releases below compose to "
    said = report.guarantee()
    if said.startswith(of_releases):
        said = f"none for the whole run; what noise covers has {said.removeprefix(of_releases).partition('. ')[0]}"
    said = said.removeprefix(of_run).rstrip(".")
    if report.releases and any("drawn from a seed" in note for note in report.notes):
        said += "; its noise has a seed and protects nobody"
    return said


def _sizes(result: Findings) -> str:
    sizes = np.bincount(np.concatenate(result.labels), minlength=result.model.n_clusters)
    if len(sizes) <= _SIZES:
        return ", ".join(f"{size:,}" for size in sizes)
    return f"{sizes.min():,} to {sizes.max():,}, and {np.count_nonzero(sizes == 0):,} empty"
