"""Time to draw integer noise for an entry on one thread, and the cost of a call that draws little.

python benchmarks/noise.py
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from common import header, timed

from flower_fedclust.privacy.noise import (
    NoiseSource,
    OperatingSystemNoise,
    SeededNoise,
    sample_gaussian,
    sample_gaussian_share,
    sample_laplace,
    sample_laplace_share,
    total_variation,
)

#: Of a radius of 2^25 units with noise of 1.3 times the radius.
SCALE = 1.3 * 2.0**25
LIMITS = {"laplace": 1.0, "gaussian": 2.0}  # microseconds an entry


def measured(
    sample: Callable[[int, NoiseSource], np.ndarray], size: int, source: NoiseSource
) -> float:
    return timed(lambda: sample(size, source))[1]


def main() -> None:
    print(header())
    samplers = {
        "laplace": lambda size, source: sample_laplace(SCALE, size, source),
        "gaussian": lambda size, source: sample_gaussian(SCALE, size, source),
    }
    for name, sample in samplers.items():
        for source in (OperatingSystemNoise(), SeededNoise([0])):
            microseconds = measured(sample, 500_000, source) * 1e6 / 500_000
            kept = "within" if microseconds <= LIMITS[name] else "ABOVE"
            where = "operating system" if isinstance(source, OperatingSystemNoise) else "seed"
            print(f"{name}, {where}: {microseconds:.3f} us an entry, {kept} {LIMITS[name]:g} us")
        print(f"  10 entries: {measured(sample, 10, OperatingSystemNoise()) * 1e6:.0f} us a call")
        print(f"  total variation: 2^{np.log2(total_variation(name, SCALE)):.0f} an entry")
    for n_shares in (2, 10, 100, 1000):
        for name, share in (("laplace", sample_laplace_share), ("gaussian", sample_gaussian_share)):
            seconds = measured(
                lambda size, source, s=share, n=n_shares: s(SCALE, n, size, source),
                100_000,
                OperatingSystemNoise(),
            )
            print(
                f"{name}, one of {n_shares} shares: {seconds * 10:.3f} us an entry, "
                f"total variation of all 2^{np.log2(total_variation(name, SCALE, n_shares)):.0f} an entry"
            )


if __name__ == "__main__":
    main()
