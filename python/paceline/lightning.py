"""Train with Lightning's Trainer: `Trainer(callbacks=[paceline.lightning.Callback()])`."""

from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
from lightning.pytorch.utilities import rank_zero_only

from paceline._torch.whole_loader import WholeLoader
from paceline.errors import InputError
from paceline.run import Run, join

if TYPE_CHECKING:
    from torch import Tensor


class Callback(pl.Callback):
    """Makes a Trainer a worker of the run that its script was started for. Does nothing in a script started alone.

    Limits and schedules count the steps of all workers together, so that a script needs no other numbers than alone.

    Example:
        >>> import lightning, paceline.lightning
        >>> trainer = lightning.Trainer(callbacks=[paceline.lightning.Callback()], logger=False)

    """

    def __init__(self) -> None:
        """Take part in a run, if there is one."""
        self.run: Run = join()
        self._loader: WholeLoader | None = None
        if self.run.rank > 0:
            # Loggers write on rank 0 only.
            rank_zero_only.rank = self.run.rank  # type: ignore[attr-defined]

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Take the loader before anything else is made of it."""
        if self.run.is_alone or stage != "fit":
            return
        if trainer.world_size > 1:
            message = f"the Trainer has {trainer.world_size} devices of its own: give it devices=1"
            raise InputError(message)
        if not pl_module.automatic_optimization:
            message = "the module has automatic_optimization=False: use paceline.join() and run.backward in its steps"
            raise InputError(message)
        strategy = trainer.strategy
        process = strategy.process_dataloader

        def process_dataloader(dataloader: Any) -> Any:  # noqa: ANN401 as Lightning's
            dataloader = process(dataloader)
            if not trainer.training:
                return dataloader
            if self._loader is not None:
                message = "the Trainer has several loaders, or reloads them: expected one for the whole training"
                raise InputError(message)
            self._loader = WholeLoader(dataloader)
            return self._loader

        strategy.process_dataloader = process_dataloader  # type: ignore[method-assign]
        if self.run.rank > 0:
            strategy.save_checkpoint = strategy.remove_checkpoint = _nothing  # type: ignore[method-assign]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Join the run: the optimizer and the loader are there."""
        if self._loader is None:
            return
        if len(trainer.optimizers) != 1:
            message = f"the module has {len(trainer.optimizers)} optimizers: a run trains with one"
            raise InputError(message)
        optimizer = trainer.optimizers[0]
        loader = self._loader
        loader.prepared = self.run.prepare(pl_module, optimizer, loader.loader)[2]

        def steps() -> float:
            return loader.steps(trainer.accumulate_grad_batches)

        for config in trainer.lr_scheduler_configs:
            if config.interval == "step" and not config.reduce_on_plateau:
                self.run.follow(config.scheduler, steps)
        if not loader.is_sized:
            trainer.fit_loop.max_batches = float("inf")
        if trainer.val_check_interval == 1.0:
            # At the end of an epoch, whenever that is.
            trainer.val_check_batch = float("inf")

        def after_step(*_: object) -> None:
            if loader.is_over:
                trainer.fit_loop.epoch_loop.batch_progress.is_last_batch = True
            if self.run.is_over or 0 < trainer.max_steps <= steps():
                trainer.should_stop = True

        optimizer.register_step_post_hook(after_step)

    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: "Tensor") -> None:
        """Note the loss."""
        self.run.note(loss)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave the run."""
        self.run.leave()


def _nothing(*_: object, **__: object) -> None:
    """Do nothing."""
