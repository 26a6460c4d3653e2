"""What Algorithms 2 and 3 share: codes of every row by the landmarks leave the clients, and what takes noise."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, ClassVar, Literal

from flower_fedclust.engine import parameter
from flower_fedclust.engine.parts import Part
from flower_fedclust.engine.rounds import Askable, Round
from flower_fedclust.privacy.releases import Relation
from flower_fedclust.strategies.common.perturbed_rows import NOISY_ROWS, ROWS_PART, perturb_rows
from flower_fedclust.strategies.maps.landmarks import Landmarks, LandmarkStrategy


class CodedRowsStrategy(LandmarkStrategy):
    """Base of the strategies whose clients send something of each row, from which the row can be computed.

    Parameters
    ----------
    perturb : "nothing", "data", "landmarks", "gradients", or what is sent of each row, default="nothing"
        What takes noise. "data" (section 5.1) protects all that leaves. So does noise on what is sent of each row
        ("distances" in Fed-tSNE and Fed-UMAP, "kernel" in Fed-SpeClust), which with epsilon goes with noise on the
        landmarks' gradients. Noise on "landmarks" or "gradients" alone (the paper's Fed-tSNE+) protects neither the
        rows nor what is sent of them; with epsilon the two are one, as noise on the gradients moves the landmarks by as
        much.
    relative_noise : float, default=0.0
        beta of appendix A: the noise over the standard deviation of what it is added to. For experiments: it has no
        epsilon.
    noise : "local", default="local"
        Each client adds all of the noise, since the server sees what is sent of every row.
    """

    #: What a client sends of each row: "distances" or "kernel".
    codes: ClassVar[str]
    #: The answer that sends them with noise.
    codes_answer: ClassVar[Askable[..., Any]]

    perturb: str = parameter("nothing")
    relative_noise: float = parameter(0.0, at_least=0)
    noise: Literal["local"] = parameter("local")

    def check_parameters(self) -> None:
        """Raise a ValueError that names the first parameter which cannot be right."""
        super().check_parameters()
        perturb, relative, private = self.perturb, self.relative_noise > 0, self.epsilon is not None
        on_landmarks = perturb in ("landmarks", "gradients")
        wrong = [
            (
                relative and perturb == "nothing",
                "relative_noise is given and perturb is 'nothing'; say what it is added to.",
            ),
            (
                perturb == "landmarks" and self.averaging == "gradients",
                "perturb is 'landmarks' and averaging is 'gradients', where no client sends landmarks; set "
                "perturb='gradients' or averaging='landmarks'.",
            ),
            (
                on_landmarks and self.n_rounds == 0,
                f"perturb is '{perturb}' and n_rounds is 0, so that no client sends {perturb}; give 1 or more.",
            ),
            (
                relative and private,
                "epsilon and relative_noise are both given; relative noise has no epsilon, so give one.",
            ),
            (
                perturb != "nothing" and not (relative or private),
                f"perturb is '{perturb}' and there is no noise level; give epsilon and max_norm, or relative_noise.",
            ),
            (
                private and perturb == "nothing",
                "epsilon is given and perturb is 'nothing'; say what takes the noise.",
            ),
        ]
        for holds, sentence in wrong:
            if holds:
                raise ValueError(sentence)

    def privacy_notes(self) -> list[str]:
        """Add what the server can compute."""
        notes = super().privacy_notes()
        if self.perturb not in ("data", self.codes):
            what = "distances to" if self.codes == "distances" else "kernel values with"
            notes.append(
                f"The server can read the rows: their {what} the landmarks, which it knows, give each row by solving "
                "linear equations where there are more landmarks than columns. Noise on the landmarks changes nothing "
                "of that."
            )
        if self.relative_noise > 0:
            notes.append(
                "The noise is relative to the spread of what it is added to, for experiments: it has no epsilon."
            )
        return notes

    def landmarks(self) -> Generator[Round, Any, Landmarks]:
        """Run Algorithm 1, on rows with noise where these take it."""
        if self.perturb == "data":
            yield from perturb_rows(self.max_norm_of_rows, relative_noise=self.relative_noise)
        return (
            yield from self.learn_landmarks(
                averaging="gradients" if self.perturb == "gradients" else self.averaging,
                relative_noise=self.relative_noise if self.perturb in ("landmarks", "gradients") else 0.0,
                rows=self.coded_rows,
            )
        )

    @property
    def coded_rows(self) -> str:
        """Which rows of the clients everything is computed from."""
        return NOISY_ROWS if self.perturb == "data" else ""

    @property
    def noise_on_codes(self) -> float:
        """The relative noise that a client adds to what it sends of its rows."""
        return self.relative_noise if self.perturb == self.codes else 0.0

    # Rounds and budget.

    @property
    def landmarks_cost_epsilon(self) -> bool:
        """Whether every round of Algorithm 1 is a release; rows with noise have paid for everything."""
        return self.epsilon is not None and self.perturb != "data"

    @property
    def n_protocol_rounds(self) -> int:
        """Those of Algorithm 1, one each for noise on the rows, for codes, and for what the clients get back."""
        return self.n_landmark_rounds + (self.perturb == "data") + 2

    @property
    def relation(self) -> Relation:
        """For rows that are replaced, as what is sent of each row shows how many there are."""
        return "replace"

    def parts(self) -> Mapping[str, Part]:
        """Return those of the moments, the landmarks' gradients and the codes; or all for the rows."""
        if self.perturb == "data":
            return ROWS_PART
        of_codes = Part(type(self).codes_answer, 0.7, int(self.perturb == self.codes))
        return {**self.landmark_parts(0.1, 0.2, replaced=True), self.codes: of_codes}
