"""Plant faults of sensitivity, clipping, noise and counting in a copy of the code, and see whether an audit finds them.

``python tests/checking/audit_faults.py``            every fault that is listed here, and strategies that have none
``python tests/checking/audit_faults.py --only ID``  some of the faults

It fails if an audit does not find one of the faults, or calls a strategy without a fault broken.

The faults are in ``faults.toml``; no test runs. Each is looked for in strategies that have its code. The time of an
audit is processor time, so a busy machine finds as much. Some faults are
not listed here because they break no promise: a server that names another frame or norm than it should gets noise for
the bound that the client enforces; ``huge-rows-overflow`` and ``nan-is-short`` guard each other; ``excess-left`` leaves
a row too long by less than the 2^-50 by which every sensitivity is declared larger; after ``projection-not-clipped``
projected rows are counted, or clipped again; after ``client-rounds-miscounted`` a run has fewer rounds; and with
``l1-norm-clipped-as-l2`` the server clips what already has its noise.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from faults import FAULTS, Fault, plant_each, read_faults

#: Draws of the noise and seconds of an audit, as in benchmarks/audits.py; and of one for a fault that it does not find.
SIZES = (400, 4.0), (1000, 20.0)

PLACES = ("server", "clients", "local")
LLOYD = "federated-kmeans-private"
ONE, SHARES, LOCAL = (LLOYD,), (f"{LLOYD} clients-record",), (f"{LLOYD} local-record",)
FEDDP, FEDDP_CLIENT = ("feddp-kmeans",), ("feddp-kmeans server-client",)
FEDC, SAMPLED = ("dp-fedc turns",), ("dp-fedc sampled",)

#: fault -> the strategies in which it is looked for; their names are in ``cases``.
WHERE: dict[str, tuple[str, ...]] = {
    # Noise.
    "gaussian-noise-halved": FEDDP,
    "laplace-noise-halved": ONE,
    "laplace-noise-one-sided": FEDDP,
    "gaussian-shares-too-small": SHARES,
    "laplace-shares-ignored": ("feddp-kmeans clients-record",),
    "operating-system-replaced": ONE,
    "client-noise-fixed": LOCAL,
    "server-noise-fixed": ONE,
    "noise-same-every-round": LOCAL,
    "noise-same-at-every-client": LOCAL,
    "server-adds-no-noise-to-sums": ONE,
    "server-adds-no-noise-to-replies": ("gathered server",),
    "clients-add-no-share": SHARES,
    "local-noise-left-out": LOCAL,
    "local-noise-shared": LOCAL,
    "replies-with-shares": ("gathered clients",),
    "missing-shares-allowed": SHARES,
    "noise-with-holes": ONE,
    "noise-cut-off": ONE,
    "noise-of-16-bits": ONE,
    "words-used-again": ONE,
    "diagonal-narrow": FEDDP,
    "triangle-noise-too-narrow": FEDDP,
    # Noise that small arrays do not show.
    "noise-not-on-large-entries": ONE,
    "noise-not-on-zeros": FEDDP,
    "noise-away-from-zero": LOCAL,
    "noise-repeats-after-a-block": ONE,
    "noise-negated-after-a-block": FEDDP,
    "noise-missing-in-a-block": SHARES,
    "noise-narrower-in-large-arrays": ONE,
    "words-repeat-after-16-kilobytes": ONE,
    # Tables that small ones do not show.
    "every-37th-row-twice": ONE,
    "rows-beyond-2048-left-out": ONE,
    "every-37th-row-counted-twice": ONE,
    "the-first-row-of-a-large-batch-twice": FEDDP,
    "large-sums-in-float32": ONE,
    "late-rows-not-clipped": FEDDP,
    # Counting.
    "release-uncounted": ONE,
    "repeated-release-uncounted": ONE,
    "smallest-epsilon-reported": ("unequal",),
    "delta-ignored": FEDDP,
    "count-of-share-ignored": ONE,
    "sample-fraction-halved": SAMPLED,
    "batch-from-the-server": SAMPLED,
    "batch-too-large": SAMPLED,
    "joint-multiplier-too-large": SAMPLED,
    "report-hides-unprotected": ("unequal",),
    "row-count-called-harmless": ("unequal",),
    "kept-rows-not-dropped": ("kept twice",),
    "asked-clients-uncounted": FEDC,
    "fewest-rows-wrong": SAMPLED,
    "epsilon-after-the-fact": ONE,
    "aborted-round-uncounted": ONE,
    "unanswered-round-unlisted": ONE,
    "aborted-run-without-report": ONE,
    "lost-replies-unsaid": ONE,
    "metrics-unsaid": ONE,
    "sampler-not-counted": ONE,
    "silence-swallowed": ONE,
    # Sensitivity.
    "rows-relation-wrong": ("fedsc-perturbed-data",),
    "ffcm-sums": ("ffcm-private",),
    "cluster-sums": ONE,
    "cluster-presence": FEDDP_CLIENT,
    "second-moment": FEDDP,
    "moments-squares": ("fedsc long rows",),
    "moments-replaced": ("fedsc-perturbed-factors",),
    "dictionary-gradient": ("fedsc-perturbed-factors",),
    "codes": ("fedsc narrow",),
    "spectral-moment": ("fedsc-sums server-record",),
    "landmark-gradient": ("fed-speclust kernel",),
    "landmark-kernel": ("fed-speclust kernel",),
    "reduced-rows": ("fed-tsne-sums wide",),
    "cell-sums": ("spp-fgc-sums server-record",),
    "prototype-products": ("spp-fgc-private-prototypes",),
    "fedc-gradient": FEDC,
    "sensitivity-rounded-down": ONE,
    # Clipping, and what is exact.
    "rows-not-clipped": ONE,
    "means-not-clipped": FEDDP_CLIENT,
    "noisy-rows-not-clipped": ("fedsc-perturbed-data",),
    "row-gradients-not-clipped": ("fedsc-sums server-record",),
    "memberships-not-clipped": ("dp-fedc short centers",),
    "ties-in-floats": ("feddp wide",),
    "squares-rounded-up": ("fedsc-perturbed-factors", "fedsc-sums server-record"),
}

#: A file of which nothing is replaced.
NOTHING = "tests/faults.py"

#: Strategies that keep their promises, and must not be called broken: the clients of one fail at random.
SOUND = ("unlucky server", "unlucky clients", "unlucky local")


def cases():
    """Return the strategies in which faults are looked for, by name."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "strategies"))
    import checking_toys
    import test_strategies_every as every

    import flower_fedclust as fc
    from flower_fedclust_papers.dp_fedc_printed import DPFedCPrinted
    from flower_fedclust_papers.fedsc_perturbed import FedSCPerturbed
    from flower_fedclust_papers.ffcm import PrivateFFCM
    from flower_fedclust_papers.maps_perturbed import FedSpeClustPerturbed
    from flower_fedclust_papers.spp_fgc_private_prototypes import SPPFGCPrivatePrototypes

    found = dict(every.cases())
    fedc = {"n_clusters": 3, "max_norm": 1.0, "epsilon": 8.0, "fraction_fit": 0.5}
    found["dp-fedc turns"] = fc.DPFedC(**fedc, n_rounds=4)
    found["dp-fedc sampled"] = DPFedCPrinted(**fedc, n_rounds=12, batch_size=2, step_scale=2.0)
    found["ffcm-private"] = PrivateFFCM(3, n_rounds=2, epsilon=8.0, max_norm=1.0)
    found["spp-fgc-private-prototypes"] = SPPFGCPrivatePrototypes(
        3, n_neighbors=5, n_prototypes=6, epsilon=8.0, max_l1_norm=1.0
    )
    long_rows = {
        "n_clusters": 3,
        "n_rounds": 2,
        "n_atoms": 6,
        "n_lloyd_rounds": 2,
        "max_norm": 4.0,
        "epsilon": 8.0,
    }
    accepted = set(type(found["fedsc-sums server-record"]).parameter_names())
    found["fedsc long rows"] = type(found["fedsc-sums server-record"])(
        **{name: value for name, value in long_rows.items() if name in accepted}
    )
    perturbed = {"n_clusters": 3, "n_rounds": 2, "n_local_steps": 2, "n_atoms": 6, "n_neighbors": 5}
    perturbed |= {"epsilon": 1.0, "max_norm": 1.0}
    found["fedsc-perturbed-data"] = FedSCPerturbed(**perturbed, perturb="data")
    found["fedsc-perturbed-factors"] = factors = FedSCPerturbed(**perturbed, perturb="factors")
    found["fedsc narrow"] = type(factors)(
        **{name: getattr(factors, name) for name in factors.parameter_names()} | {"bandwidth": 0.2}
    )
    found["fed-speclust kernel"] = FedSpeClustPerturbed(
        3, n_landmarks=6, n_rounds=2, perturb="kernel", epsilon=8.0, max_norm=1.0, gamma=10.0
    )
    found["fed-tsne-sums wide"] = found["fed-tsne-sums server-record"]
    found["dp-fedc short centers"] = fc.DPFedC(**fedc, n_rounds=2, init=0.05 * np.eye(3, 4))
    public = 0.3 * np.random.default_rng(1).normal(size=(30, 24))
    found["feddp wide"] = fc.FedDPKMeans(n_clusters=4, epsilon=8.0, delta=1e-6, server_data=public)
    own = {name: getattr(found[LLOYD], name) for name in found[LLOYD].parameter_names()}
    found |= {
        f"{LLOYD} {noise}-record": type(found[LLOYD])(**own | {"noise": noise})
        for noise in PLACES[1:]
    }
    found["gathered server"] = checking_toys.Means(2, gathers=True)
    found["gathered clients"] = checking_toys.Means(2, gathers=True, noise="clients")
    found |= {f"unlucky {noise}": checking_toys.Unlucky(2, noise=noise) for noise in PLACES}
    found["unequal"] = checking_toys.Unequal(2)
    found["kept twice"] = checking_toys.KeptTwice(2)
    return found


def wide_rows():
    """Return tables of more columns than some strategies reduce rows to."""
    rng = np.random.default_rng(0)
    return [0.3 * rng.normal(size=(25, 24)) for _ in range(3)]


def look(names: Sequence[str], sizes: Sequence[tuple[int, float]]) -> int:
    """Audit strategies by their names, as long as nothing is broken; print what is, and return 0 if anything is."""
    from flower_fedclust.checking import audit

    time.perf_counter = time.process_time
    known = cases()
    # Else it would look as if the fault had kept a run from ending.
    if unknown := set(names) - known.keys():
        print(f"there is no {sorted(unknown)[0]} to be audited")
        return 1
    for name, (runs, seconds) in ((name, size) for size in sizes for name in names):
        try:
            rows = wide_rows() if name.endswith(" wide") else None
            found = audit(known[name], rows, runs=runs, seconds=seconds)
        except Exception as error:  # a fault may keep a run from ending, which is noticed, too
            print(f"{name}: ends with {type(error).__name__}: {error}")
            return 0
        if found.verdict == "broken":
            print(f"{name}: {found.sentence}")
            return 0
        print(f"{name}: {found.sentence}")
    return 1


def look_in_copy(fault: Fault) -> int:
    """Look for a fault with the script of the copy in which it is planted."""
    # The cases name strategies of the package; others are imported.
    os.environ["FEDCLUST_TESTED"] = "core"
    sys.path.insert(0, str(Path("tests/checking").resolve()))
    import audit_faults

    return audit_faults.look(fault.caught_by, SIZES[:1] if fault.file == NOTHING else SIZES)


def wanted_faults(ids: list[str], path: Path) -> list[Fault]:
    """Return the faults, with strategies in place of tests, and strategies of which an audit must not say anything."""
    faults = {fault.id: fault for fault in read_faults(path)}
    if unknown := sorted(set(ids) - (faults.keys() & WHERE.keys())):
        raise SystemExit(f"{path.name} or WHERE has no fault called {', '.join(unknown)}.")
    return [replace(faults[name], caught_by=WHERE[name]) for name in ids]


def main() -> int:
    """Run the script; return 1 if a fault is not found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", metavar="ID", help="faults to plant; by default all that are listed"
    )
    parser.add_argument("--faults", type=Path, default=FAULTS, help="another list of faults")
    parser.add_argument("--jobs", type=int, default=2, help="how many audits run at a time")
    args = parser.parse_args()
    wanted = wanted_faults(args.only or list(WHERE), args.faults)
    # In place of a fault, a text that is replaced by itself.
    text = '"""Plant faults'
    nothing = [] if args.only else [Fault(name, "", NOTHING, text, text, (name,)) for name in SOUND]
    n_found, alarms = 0, list[str]()
    for done in plant_each([*wanted, *nothing], look_in_copy, args.jobs):
        is_found = done.code == 0
        said = (done.said.strip().splitlines() or [""])[-1]
        if done.fault in nothing:
            alarms += [said] if is_found else []
            continue
        n_found += is_found
        verdict = "found     " if is_found else "NOT FOUND "
        print(f"{verdict}{done.fault.id} ({done.seconds:.0f} s): {said}", flush=True)
    print(
        f"an audit finds {n_found} of {len(wanted)} faults; alarms without a fault: {alarms or 'none'}."
    )
    return int(n_found < len(wanted) or bool(alarms))


if __name__ == "__main__":
    sys.exit(main())
