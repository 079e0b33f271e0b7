"""AQGB's models for CIFAR-10 (§2.2, §5.2.3, Figures 2 and 11, Table 2), and a small one of their kind.

Stated of ResNet50: four workers with mini-batches of 128 (Figure 2; read: of each worker), eight in Figure
11, SGD at 0.1 "decayed 10 every 30 epochs" (read: divided by 10); of ResNeXt101: Adam at 1e-4. Not stated:
momentum (0.9 here), weight decay (1e-4) and 90 epochs as in He et al. 2016 (§3.4), which of the ResNeXt101s
(32 groups of 4 channels), its length and batch (those of ResNet50), the size of the images (32 pixels, which
CIFAR-10's have).

Table 1's 25.6M parameters are those with ImageNet's 1000 labels; with ten, ResNet50 has 23.5M.
"""

from __future__ import annotations

from dataclasses import replace

from gradwire.harness.models.settings import ModelConfig, RecipeConfig


def resnet50() -> ModelConfig:
    """ResNet50 on CIFAR-10 (Figures 2a and 11, Table 2)."""
    return _residual("resnet50", depths=[3, 4, 6, 3], hidden_size=512)


def resnet_small() -> ModelConfig:
    """A ResNet of 0.18M parameters, for CPUs: three stages of two basic layers. No paper has it."""
    return replace(_residual("resnet_small", depths=[2, 2, 2], hidden_size=64), bottleneck=False)


def resnext101() -> ModelConfig:
    """ResNeXt101 (Figure 2b), with 32 groups of 4 channels."""
    found = _residual("resnext101", depths=[3, 4, 23, 3], hidden_size=512)
    adam = replace(
        found.recipe, optimizer="adam", lr=1e-4, schedule="linear", decay_epochs=None, end_factor=1.0
    )
    return replace(found, family="resnext", groups=32, recipe=adam)


def _residual(name: str, *, depths: list[int], hidden_size: int) -> ModelConfig:
    return ModelConfig(
        name=name,
        family="resnet",
        objective="image_classification",
        depths=depths,
        hidden_size=hidden_size,
        dropout=0.0,
        paper_dataset="cifar10",
        recipe=RecipeConfig(
            micro_batch=128,
            optimizer="sgd",
            lr=0.1,
            weight_decay=1e-4,
            schedule="steps",
            decay_epochs=30,
            epochs=90,
            schedule_epochs=None,
        ),
    )
