"""A loader whose batches have the sizes that the scheme assigns."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Sampler, SequentialSampler

from paceline._torch.state import random_state, set_random_state
from paceline.errors import InputError

if TYPE_CHECKING:
    from paceline._torch.training import Training


class ShardSampler(Sampler[int]):
    """One worker's share of the indices, the same number for every worker, in an order that all workers agree on."""

    def __init__(self, length: int, rank: int, workers: int, seed: int, *, shuffled: bool) -> None:
        """Take every `workers`-th index of `length`, from `rank` on. The first fill up the shares at the end."""
        self.length, self.rank, self.workers, self.seed, self.shuffled = length, rank, workers, seed, shuffled
        #: The pass through the data, which gives the order, and where in it the next iteration starts.
        self.number, self.start = 0, 0

    def __len__(self) -> int:
        """Return the indices of a pass."""
        return (self.length + self.workers - 1) // self.workers

    def __iter__(self) -> Iterator[int]:
        """Yield the indices of the next pass."""
        start, self.start = self.start, 0
        if self.shuffled:
            generator = torch.Generator().manual_seed(self.seed + self.number)
            order: Sequence[int] = torch.randperm(self.length, generator=generator).tolist()
        else:
            order = range(self.length)
        return (order[(position * self.workers + self.rank) % self.length] for position in range(start, len(self)))


class PreparedLoader:
    """Batches for one worker, as large as its tasks say.

    One pass is an epoch of all workers: it ends when they have used as many samples as the data has. Whatever else the
    loader has, such as `dataset`, this one has too.
    """

    def __init__(self, loader: Iterable[Any], training: "Training") -> None:
        """Share the data among the workers if the loader draws from all of it."""
        self._training = training
        self._sampler: ShardSampler | None = None
        self._epochs = 0
        self._passes = 0
        self._random: dict[str, Any] | None = None
        self._batches: Rebatched | None = None
        if isinstance(loader, DataLoader):
            loader = self._shared(loader)
        loader, self.batch_size = _with_batch_size(loader)
        self._loader = loader
        #: The samples of an epoch of all workers, if they can be counted.
        self.epoch_samples = self._count_samples()

    def _shared(self, loader: "DataLoader[Any]") -> "DataLoader[Any]":
        """Return the same loader for this worker's share of the data."""
        if loader.batch_size is None and loader.batch_sampler is None:
            message = "the loader has batch_size=None, so that its samples can't be counted: give it a batch size"
            raise InputError(message)
        training, batches = self._training, loader.batch_sampler
        # A sampler of batches may do anything, and so may one of samples.
        if training.workers == 1 or isinstance(loader.dataset, IterableDataset) or type(batches) is not BatchSampler:
            return loader
        sampler = batches.sampler
        shuffled = isinstance(sampler, RandomSampler) and not sampler.replacement
        if not shuffled and type(sampler) is not SequentialSampler:
            return loader
        length = len(loader.dataset)  # type: ignore[arg-type] # a sampler of these kinds needs a length
        if length == 0:
            message = "the loader's data set is empty"
            raise InputError(message)
        self._sampler = ShardSampler(length, training.rank, training.workers, training.seed, shuffled=shuffled)
        return DataLoader(
            loader.dataset,
            batch_size=batches.batch_size,
            sampler=self._sampler,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            drop_last=batches.drop_last,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=loader.generator,
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers,
        )

    def _count_samples(self) -> int | None:
        """Count the samples of an epoch of all workers."""
        loader, workers = self._loader, self._training.workers
        if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
            return None
        try:
            share = len(loader.batch_sampler.sampler)  # type: ignore[union-attr] # those of torch have one
        except (AttributeError, TypeError):
            return None
        if loader.batch_sampler.drop_last:  # type: ignore[union-attr]
            share -= share % self.batch_size
        if share == 0:
            message = "a worker's share of the data is empty, or smaller than a batch that drop_last drops"
            raise InputError(message)
        return share * workers

    def __len__(self) -> int:
        """Return the batches of a pass, if all have the loader's batch size."""
        return len(self._loader)  # type: ignore[arg-type] # an error there is an error here

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 whatever the loader has
        """Return what the loader has."""
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Any]:
        """Yield batches until the epoch ends, or the run."""
        training = self._training
        self._epochs += 1
        if training.evaluator is not None and not training.over:
            training.evaluator.serve(training)
        if not training.has_task():
            return
        if self._batches is None:
            self._batches = self._begin()
        while not self.is_over:
            asked = perf_counter()
            batch, count = self._batches.take(max(training.samples, 2 if training.needs_pairs else 1))
            training.loaded(perf_counter() - asked)
            if count == 0 or (count == 1 and training.needs_pairs):
                # A pass ends. Without a known length that is the end of the epoch.
                self._batches = self._next_pass(batch)
                if self.epoch_samples is None:
                    return
                continue
            training.computes(count)
            if training.keeper is not None:
                training.keeper.position = Position(self._passes - 1, self._batches.taken, self._random)
            yield batch

    @property
    def is_over(self) -> bool:
        """Whether the pass is over. Without a known length, that shows only when its data ends."""
        end = None if self.epoch_samples is None else self._epochs * self.epoch_samples
        return not self._training.has_task() or (end is not None and self._training.used >= end)

    def steps(self) -> float:
        """Return how many steps the run is old, each of as many batches as the loop accumulates, of all workers.

        A scheduler that a script plans in batches of its loader ends with the last epoch then, under every scheme.
        Under `bsp` these are the versions of the model. With `--lr-rule adascale`, or without a known length of the
        data, they are what the server counts.
        """
        training = self._training
        follows_gain = str(training.description.get("lr_rule")).startswith("adascale")
        if self.epoch_samples is None or training.task is None or follows_gain:
            return training.task.progress if training.task else 0.0
        epochs, samples = divmod(training.used, self.epoch_samples)
        batches = -(-samples // (self.batch_size * training.workers))
        per_step = training.batches_per_step
        return float(epochs * -(-len(self) // per_step) - -batches // per_step)

    @property
    def used(self) -> int:
        """The samples that all workers have used."""
        return self._training.used

    def _begin(self) -> "Rebatched":
        """Return the first batches, from where this worker was if the run resumes or the worker was restarted."""
        keeper = self._training.keeper
        position = keeper.restored_position if keeper is not None else None
        if position is None and self.epoch_samples is not None:
            number, start = divmod(self._training.offset, self.epoch_samples // self._training.workers)
            position = Position(number, start, None)
        if position is None:
            return self._next_pass()
        if position.random is not None:
            set_random_state(position.random)
        self._passes = position.number
        if self._sampler is not None:
            self._sampler.start = position.samples
        batches = self._next_pass()
        if self._sampler is None:
            batches.take(position.samples)
        else:
            batches.taken = position.samples
        if keeper is not None:
            keeper.restore_random()
            keeper.position = Position(position.number, position.samples, self._random)
        return batches

    def _next_pass(self, rest: Any = None) -> "Rebatched":  # noqa: ANN401 a batch
        """Begin a pass through the data, after what is left of the last one."""
        keeper = self._training.keeper
        self._random = random_state() if keeper is not None and self._sampler is None else None
        if self._sampler is not None:
            self._sampler.number = self._passes
        self._passes += 1
        return Rebatched(self._loader, rest)


class Position(NamedTuple):
    """Where a worker is in its data: the pass, how many samples of it, and the random state before it."""

    number: int
    samples: int
    random: dict[str, Any] | None


def _with_batch_size(loader: Iterable[Any]) -> tuple[Iterable[Any], int]:
    """Return a loader and the size of its batches: as it says, or that of its first batch."""
    for source in (loader, getattr(loader, "batch_sampler", None)):
        if size := getattr(source, "batch_size", None):
            return loader, int(size)
    iterator = iter(loader)
    first = next(iterator, None)
    if first is None:
        message = "the loader is empty"
        raise InputError(message)
    # An iterator can't begin again.
    return chain([first], iterator) if iterator is loader else loader, batch_size(first)


class Rebatched:
    """One pass through a loader, in batches of any size: in order, nothing lost, nothing twice."""

    def __init__(self, loader: Iterable[Any], rest: Any = None) -> None:  # noqa: ANN401 a batch
        """Begin a pass, after what is left of the last one."""
        self._iterator = iter(loader)
        self._rest: Any = rest
        #: The samples taken so far.
        self.taken = 0

    def take(self, count: int) -> tuple[Any, int]:
        """Return the next `count` samples as one batch; fewer at the end of the pass."""
        parts: list[Any] = []
        taken = 0
        while taken < count:
            batch = self._rest if self._rest is not None else next(self._iterator, None)
            self._rest = None
            if batch is None:
                break
            size = batch_size(batch)
            if size > count - taken:
                self._rest = cut(batch, slice(count - taken, size))
                batch, size = cut(batch, slice(count - taken)), count - taken
            if size:
                parts.append(batch)
                taken += size
        self.taken += taken
        if not parts:
            return None, 0
        return (parts[0] if len(parts) == 1 else joined(parts)), taken


def batch_size(batch: Any) -> int:  # noqa: ANN401 a batch is what the user's loader gives
    """Count the samples in a batch: the length of its first tensor or list."""
    if isinstance(batch, Tensor):
        if batch.ndim == 0:
            message = "the loader gives tensors without dimensions: expected a first dimension that counts samples"
            raise InputError(message)
        return len(batch)
    if isinstance(batch, Mapping):
        return batch_size(next(iter(batch.values())))
    if isinstance(batch, tuple) or (
        isinstance(batch, list) and batch and isinstance(batch[0], (Tensor, Mapping, list, tuple))
    ):
        return batch_size(batch[0])
    if isinstance(batch, (list, str)):
        return len(batch)
    message = (
        f"the loader gives batches of type {type(batch).__name__}, which can't be cut: expected tensors, or tuples, "
        "lists or dicts of them"
    )
    raise InputError(message)


def cut(batch: Any, section: slice) -> Any:  # noqa: ANN401 a batch is what the user's loader gives
    """Return some samples of a batch."""
    if isinstance(batch, Tensor):
        return batch[section]
    if isinstance(batch, Mapping):
        return _same_mapping(batch, {key: cut(value, section) for key, value in batch.items()})
    if isinstance(batch, tuple):
        parts = (cut(value, section) for value in batch)
        return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
    if isinstance(batch, list) and batch and isinstance(batch[0], (Tensor, Mapping, list, tuple)):
        return [cut(value, section) for value in batch]
    return batch[section]


def joined(parts: Sequence[Any]) -> Any:  # noqa: ANN401 a batch is what the user's loader gives
    """Join several batches to one."""
    first = parts[0]
    if isinstance(first, Tensor):
        for part in parts[1:]:
            if part.shape[1:] != first.shape[1:]:
                message = (
                    f"batches of shapes {tuple(first.shape)} and {tuple(part.shape)} can't be joined to one of the "
                    "size that the scheme assigns: pad all samples to the same length"
                )
                raise InputError(message)
        return torch.cat(list(parts))
    if isinstance(first, Mapping):
        return _same_mapping(first, {key: joined([part[key] for part in parts]) for key in first})
    if isinstance(first, tuple):
        columns = (joined(column) for column in zip(*parts, strict=True))
        return type(first)(*columns) if hasattr(first, "_fields") else tuple(columns)
    if isinstance(first, list) and first and isinstance(first[0], (Tensor, Mapping, list, tuple)):
        return [joined(column) for column in zip(*parts, strict=True)]
    return [sample for part in parts for sample in part]


def _same_mapping(like: Mapping[Any, Any], values: dict[Any, Any]) -> Mapping[Any, Any]:
    """Return the values as the same kind of mapping, such as the batches of Hugging Face."""
    return values if type(like) is dict else type(like)(values)  # type: ignore[call-arg] # by convention
