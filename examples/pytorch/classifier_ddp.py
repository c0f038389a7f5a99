"""Train the network of classifier.py with torch.distributed, for comparison.

python classifier_ddp.py                                  # alone
torchrun --nproc-per-node 4 classifier_ddp.py             # with four workers
"""

import argparse
import os

import torch
from torch import distributed
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from digits import accuracy, digits, network


def main() -> None:
    """Train, and evaluate the model at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--samples", type=int, default=6000)
    parser.add_argument("--batch", type=int, default=32)
    arguments = parser.parse_args()

    if "RANK" not in os.environ:
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = digits(arguments.samples, seed=1)
    sampler: DistributedSampler[object] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=arguments.batch, sampler=sampler)
    replica = DistributedDataParallel(model)

    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        losses = []
        for images, labels in loader:
            loss = functional.cross_entropy(replica(images), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call] # waits for the slowest worker
            optimizer.step()
            losses.append(loss.item())
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {sum(losses) / len(losses):.3f}")

    if rank == 0:
        print(f"held-out accuracy {accuracy(model, digits(2000, seed=2)):.4f}")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
