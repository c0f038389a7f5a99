"""Trains with Lightning's Trainer, as a script of its users. Prints what came out as a line of JSON."""

from __future__ import annotations

import json
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader
from torch_features import network, samples

import paceline.lightning


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = network(nn.BatchNorm1d(16))
        self.losses: list[float] = []
        self.rates: list[float] = []
        self.validations = 0

    def training_step(self, batch: Any, _: int) -> Tensor:
        loss = functional.cross_entropy(self.network(batch[0]), batch[1])
        self.losses.append(loss.item())
        self.rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        self.validations += 1
        self.log("validation", functional.cross_entropy(self.network(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        # Raises an error if it is stepped more often.
        scheduler = OneCycleLR(
            optimizer, 0.1, total_steps=int(self.trainer.estimated_stepping_batches), cycle_momentum=False
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


if __name__ == "__main__":
    torch.set_num_threads(1)
    lightning.seed_everything(1, verbose=False)
    module = Module()
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        gradient_clip_val=0.5,
        enable_progress_bar=False,
        callbacks=[paceline.lightning.Callback()],
    )
    trainer.fit(module, DataLoader(samples(60), 8, shuffle=True), DataLoader(samples(), 64))
    values = torch.cat([value.flatten().double() for value in module.state_dict().values()])
    printed: dict[str, Any] = {"losses": module.losses, "rates": module.rates, "validations": module.validations}
    printed["sum"] = values.sum().item()
    print(json.dumps(printed), flush=True)
