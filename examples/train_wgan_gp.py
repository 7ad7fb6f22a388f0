"""A fused generator trains as before, beside a critic whose penalty is of second order: WGAN-GP."""

import torch

import transfuse
from transfuse.bench.models.wgan_gp import Critic, Generator, gradient_penalty

torch.manual_seed(0)
generator, critic = transfuse.fuse(Generator(noise=16, features=8)), Critic(features=8)
of_generator = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.0, 0.9))
of_critic = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.0, 0.9))

for step in range(3):
    real = torch.rand(8, 3, 32, 32) * 2 - 1
    fake = generator(torch.randn(8, 16))
    penalty = gradient_penalty(critic, real, fake.detach().requires_grad_(), torch.rand(8))
    loss = critic(fake.detach()).mean() - critic(real).mean() + 10 * penalty
    of_critic.zero_grad()
    loss.backward()
    of_critic.step()

    of_generator.zero_grad()
    score = -critic(generator(torch.randn(8, 16))).mean()
    score.backward()
    of_generator.step()
    print(f"step {step}: critic {loss:.3f}, generator {score:.3f}")
