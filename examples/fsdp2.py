"""An FSDP2 script that sends weights and gradients as SDP4Bit does, at 4 and 8 bits per coordinate.

torchrun --nproc-per-node 4 examples/fsdp2.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import gradwire

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
target = nn.Linear(64, 1)
model = fully_shard(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)))

synchronizer = gradwire.shard_hooks(model, codec="all_to_all", weights="qwd")

optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
torch.manual_seed(1 + dist.get_rank())  # every rank draws its own data
for step in range(100):
    x = torch.randn(32, 64)
    loss = nn.functional.mse_loss(model(x), target(x).detach())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0 and step % 20 == 0:
        print(f"step {step}: loss {loss.item():.4f}")

if dist.get_rank() == 0:
    print(f"loss {loss.item():.4f}; rank 0 sent {synchronizer.bytes_sent} bytes")
synchronizer.detach()
dist.destroy_process_group()
