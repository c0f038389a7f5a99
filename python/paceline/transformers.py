"""Train with the Trainer of Hugging Face: `Trainer(callbacks=[paceline.transformers.Callback()])`."""

import functools
from typing import TYPE_CHECKING, Any

import transformers

from paceline._torch.whole_loader import WholeLoader
from paceline.errors import InputError
from paceline.run import Run, join

if TYPE_CHECKING:
    from torch import Tensor


class Callback(transformers.TrainerCallback):
    """Makes a Trainer a worker of the run that its script was started for. Does nothing in a script started alone.

    Limits and schedules count the steps of all workers together, so that a script needs no other numbers than alone.

    Example:
        >>> import paceline.transformers
        >>> callback = paceline.transformers.Callback()  # for Trainer(callbacks=[callback])

    """

    def __init__(self) -> None:
        """Take part in a run, if there is one."""
        self.run: Run = join()
        self._loader: WholeLoader | None = None
        if not self.run.is_alone:
            _show_trainers()

    def attach(self, trainer: transformers.Trainer) -> None:
        """Have a Trainer that begins to train take its batches from the run, and note its losses."""
        if trainer.args.world_size > 1 or trainer.args.n_gpu > 1:
            message = "the Trainer has several devices of its own: give every worker one"
            raise InputError(message)
        get_train_dataloader = trainer.get_train_dataloader
        backward = trainer.accelerator.backward

        def prepared() -> WholeLoader:
            self._loader = loader = WholeLoader(get_train_dataloader())
            optimizer = trainer.create_optimizer()
            loader.prepared = self.run.prepare(trainer.model, optimizer, loader.loader)[2]  # type: ignore[type-var]
            return loader

        def noted(loss: "Tensor", **settings: Any) -> None:  # noqa: ANN401 as Accelerate's
            self.run.note(loss)
            backward(loss, **settings)

        trainer.get_train_dataloader = prepared  # type: ignore[method-assign,assignment]
        trainer.accelerator.backward = noted
        if self.run.rank > 0:
            # The first worker alone shows and saves.
            trainer.is_world_process_zero = trainer.is_local_process_zero = lambda: False  # type: ignore[method-assign]
            trainer.save_model = lambda *_, **__: None  # type: ignore[method-assign]

    def on_train_begin(
        self,
        args: transformers.TrainingArguments,
        state: transformers.TrainerState,
        control: transformers.TrainerControl,
        **kwargs: Any,  # noqa: ANN401 as the base class
    ) -> None:
        """Let the schedule follow the run."""
        self.run.follow(kwargs["lr_scheduler"], lambda: self._steps(args))

    def on_step_end(
        self,
        args: transformers.TrainingArguments,
        state: transformers.TrainerState,
        control: transformers.TrainerControl,
        **kwargs: Any,  # noqa: ANN401 as the base class
    ) -> None:
        """End when all workers together have made the steps of the training, or the run is over."""
        if self.run.is_over or 0 < args.max_steps <= self._steps(args):
            control.should_training_stop = True
        self._leave_saving(control)

    def on_epoch_end(
        self,
        args: transformers.TrainingArguments,
        state: transformers.TrainerState,
        control: transformers.TrainerControl,
        **kwargs: Any,  # noqa: ANN401 as the base class
    ) -> None:
        """Leave checkpoints to the first worker."""
        self._leave_saving(control)

    def on_train_end(self, *_: object, **__: object) -> None:
        """Leave the run."""
        self.run.leave()

    def _steps(self, args: transformers.TrainingArguments) -> float:
        """Return how many steps the Trainer would have made alone."""
        return 0.0 if self._loader is None else self._loader.steps(args.gradient_accumulation_steps)

    def _leave_saving(self, control: transformers.TrainerControl) -> None:
        """Leave checkpoints to the first worker."""
        if self.run.rank > 0:
            control.should_save = False


@functools.cache
def _show_trainers() -> None:
    """Show callbacks the Trainer that begins to train: it gives them all that it has, but not itself."""
    train = transformers.Trainer.train

    @functools.wraps(train)
    def shown(trainer: transformers.Trainer, *arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401 as the Trainer's
        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, Callback):
                callback.attach(trainer)
        return train(trainer, *arguments, **keywords)

    transformers.Trainer.train = shown  # type: ignore[method-assign,assignment]
