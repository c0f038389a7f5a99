"""Train a network that reads digits.

python classifier.py                                                   # alone
paceline train --scheme lb-bsp --workers 4 -- python classifier.py     # with four workers
"""

import argparse

import torch
from torch.nn import functional
from torch.utils.data import DataLoader

import paceline
from digits import accuracy, digits, network


def main() -> None:
    """Train, and evaluate the model at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--samples", type=int, default=6000)
    parser.add_argument("--batch", type=int, default=32)
    arguments = parser.parse_args()

    run = paceline.join()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(digits(arguments.samples, seed=1), batch_size=arguments.batch, shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    held_out = digits(2000, seed=2)

    @run.evaluate
    def measure() -> dict[str, float]:
        return {"accuracy": accuracy(model, held_out)}

    for epoch in range(arguments.epochs):
        losses = []
        for images, labels in loader:
            with run.step():
                loss = functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                run.backward(loss)
                optimizer.step()
                losses.append(loss.item())
        if run.rank == 0 and losses:
            print(f"epoch {epoch + 1}: loss {sum(losses) / len(losses):.3f}")

    if run.rank == 0:
        print(f"held-out accuracy {accuracy(model, held_out):.4f}")


if __name__ == "__main__":
    main()
