"""A vocoder meets a new length in every call, and nothing is captured or tuned anew for it."""

import warnings

import torch

import transfuse
from transfuse.bench.models.hifigan import Generator

warnings.simplefilter("ignore", FutureWarning)  # HiFi-GAN has torch's older weight_norm
model = Generator(channels=32).eval()
fused = transfuse.fuse(model)

with torch.no_grad():
    for frames in (17, 40, 23):
        mel = torch.randn(1, 80, frames)
        wave = fused(mel)
        difference = (wave - model(mel)).abs().max()
        print(f"{frames} frames, {wave.shape[-1]} samples, largest difference {difference:.1e}")
