"""A plain DistributedDataParallel script whose gradients travel at 4 bits per coordinate.

torchrun --nproc-per-node 4 examples/ddp.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire


def main() -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    target = nn.Linear(64, 1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)))

    synchronizer = gradwire.attach(model, codec="dynamiq", topology="butterfly", bits=4)

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    torch.manual_seed(1 + rank)  # every rank draws its own data
    for step in range(100):
        x = torch.randn(32, 64)
        loss = nn.functional.mse_loss(model(x), target(x).detach())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss.item():.4f}")

    if rank == 0:
        in_fp32 = 100 * 4 * 2 * (size - 1) * sum(p.numel() for p in model.parameters()) // size
        sent = synchronizer.bytes_sent
        print(f"loss {loss.item():.4f}; rank 0 sent {sent} bytes, in fp32 it would be {in_fp32}")
    synchronizer.detach()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
