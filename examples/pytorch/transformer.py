"""Train a small transformer that writes text, letter by letter. It reads this repository's documentation.

python transformer.py                                                 # alone
paceline train --scheme esync --workers 4 -- python transformer.py    # with four workers
"""

import argparse
import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import paceline

TEXT = sorted(Path(__file__).parents[2].glob("docs/*.md"))
CONTEXT, WIDTH, WARMUP = 64, 64, 20


class Transformer(nn.Module):
    """Predicts the next byte of a text from the bytes before it."""

    def __init__(self, layers: int) -> None:
        """Start from the same weights in every worker."""
        torch.manual_seed(1)
        super().__init__()
        self.bytes = nn.Embedding(256, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 256)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, text: Tensor) -> Tensor:
        """Return the scores of all bytes, at every place."""
        hidden = self.bytes(text) + self.places.weight
        hidden = self.layers(hidden, mask=self.mask, is_causal=True)
        scores: Tensor = self.head(self.norm(hidden))
        return scores


def main() -> None:
    """Train, and print the loss as it falls."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--characters", type=int, default=None, help="how much of the text to use")
    arguments = parser.parse_args()

    run = paceline.join()
    text = torch.tensor(list(b"".join(path.read_bytes() for path in TEXT)[: arguments.characters]))
    samples = text.unfold(0, CONTEXT + 1, CONTEXT // 2)
    loader = DataLoader(TensorDataset(samples), batch_size=arguments.batch, shuffle=True)
    steps = arguments.epochs * math.ceil(len(samples) / (arguments.batch * run.workers))

    model = Transformer(arguments.layers)
    weights = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim == 1]  # biases and norms
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.05, total_iters=WARMUP)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(steps - WARMUP, 1))
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], milestones=[WARMUP])
    model, optimizer, loader = run.prepare(model, optimizer, loader, scheduler)

    for epoch in range(arguments.epochs):
        losses = []
        for (batch,) in loader:
            with run.step():
                loss = functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
                optimizer.zero_grad()
                run.backward(loss)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                losses.append(loss.item())
        if run.rank == 0 and losses:
            rate = scheduler.get_last_lr()[0]
            print(f"epoch {epoch + 1}: loss {sum(losses) / len(losses):.3f}, learning rate {rate:.5f}")


if __name__ == "__main__":
    main()
