"""DeepFM of program ctr in PyTorch, one process: `python benchmarks/_ctr_torch.py ROWS.npz HIDDEN BATCH`.

Needs nothing but torch and numpy. Prints, of the second pass, {"rate": samples a second, "cpu":
microseconds a sample, "loss"} as JSON.
"""

import itertools
import json
import sys
import time

import numpy as np
import torch
from torch import nn

WIDTH, PASSES = 16, 2


class DeepFm(nn.Module):
    """The network of launcher/programs/ctr/trainer_config.py in PyTorch."""

    def __init__(self, known: int, slots: int, counts: int, hidden: list[int]) -> None:
        super().__init__()
        self.table = nn.Embedding(known, WIDTH, sparse=True)
        nn.init.uniform_(self.table.weight, -0.01, 0.01)
        self.wide = nn.Linear(counts, 1)
        sizes = [slots * WIDTH + counts, *hidden]
        layers = [
            part
            for before, after in itertools.pairwise(sizes)
            for part in (nn.Linear(before, after), nn.ReLU())
        ]
        self.deep = nn.Sequential(*layers, nn.Linear(sizes[-1], 1))

    def forward(self, ids: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Return the logit of a click for each row, shape [batch, 1].

        Args:
            ids: row numbers of the embedding table, shape [batch, slots].
            counts: the numbers of each row, shape [batch, counts].
        """
        rows = self.table(ids)
        total = rows.sum(1)
        pairs = 0.5 * (total.square() - rows.square().sum(1))[:, 1:].sum(1, keepdim=True)
        deep = self.deep(torch.cat([rows.flatten(1), counts], 1))
        return total[:, :1] + self.wide(counts) + pairs + deep


def main(file: str, hidden: str, batch: int) -> None:
    """Train two passes and print the measurements of the second."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    data = np.load(file)
    ids, counts, label = (torch.from_numpy(data[name]) for name in ("ids", "counts", "label"))
    model = DeepFm(int(data["known"]), ids.shape[1], counts.shape[1], [int(n) for n in hidden.split(",")])
    table = torch.optim.SparseAdam([model.table.weight], 0.0005)
    rest = torch.optim.Adam([p for p in model.parameters() if p is not model.table.weight], 0.002)
    loss_of = nn.BCEWithLogitsLoss()
    for _ in range(PASSES):
        began, used, total = time.monotonic(), time.process_time(), 0.0
        for part in torch.randperm(len(ids)).split(batch):
            loss = loss_of(model(ids[part], counts[part]), label[part])
            for optimizer in (table, rest):
                optimizer.zero_grad()
            loss.backward()
            for optimizer in (table, rest):
                optimizer.step()
            total += loss.item() * len(part)
        rate, cpu = len(ids) / (time.monotonic() - began), 1e6 * (time.process_time() - used) / len(ids)
    print(json.dumps({"rate": rate, "cpu": cpu, "loss": total / len(ids)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
