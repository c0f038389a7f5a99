"""The loader that a trainer of another framework sees."""

import sys
from collections.abc import Iterator
from typing import Any

from paceline._torch.loader import PreparedLoader


class WholeLoader:
    """A prepared loader that has the length it has alone, from before it is prepared.

    A trainer ends an epoch after as many batches, and a fast worker may get most of them.
    """

    def __init__(self, loader: Any) -> None:  # noqa: ANN401 any loader
        """Stand for a loader."""
        self.loader = loader
        self.prepared: PreparedLoader | None = None

    @property
    def is_sized(self) -> bool:
        """Whether the batches of an epoch can be counted."""
        try:
            len(self.loader)
        except TypeError:
            return False
        return True

    @property
    def is_over(self) -> bool:
        """Whether the next batch, if any, belongs to the next epoch."""
        return self.prepared is not None and self.prepared.is_over

    def steps(self, batches: int) -> float:
        """Return how many steps, of so many batches each, a script alone makes of the samples used so far."""
        if self.prepared is None:
            return 0.0
        samples = self.prepared.epoch_samples
        batch = self.prepared.batch_size if samples is None or not self.is_sized else samples / len(self)
        return self.prepared.used / (batch * batches)

    def __len__(self) -> int:
        """Return the batches of an epoch. Without a length, a trainer takes a batch before its size is known."""
        return len(self.loader) if self.is_sized else sys.maxsize

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 whatever the loader has
        """Return what the loader has."""
        return getattr(self.loader, name)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of an epoch."""
        yield from self.loader if self.prepared is None else self.prepared
