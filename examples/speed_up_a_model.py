"""One line makes a decoder faster: DCGAN's generator, before and after."""

import torch
from torch.utils.benchmark import Timer

import transfuse
from transfuse.bench.models.dcgan import Generator

model = Generator(features=16).eval()
noise = torch.randn(4, 100, 1, 1)

fused = transfuse.fuse(model)

with torch.no_grad():
    difference = (fused(noise) - model(noise)).abs().max()
    before, after = (
        Timer("f(x)", globals={"f": each, "x": noise}).timeit(20).mean for each in (model, fused)
    )

print(fused.explain())
print(f"largest difference {difference:.1e}")
print(f"{1e3 * before:.2f} ms before, {1e3 * after:.2f} ms after")
