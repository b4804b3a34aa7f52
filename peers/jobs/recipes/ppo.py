"""PPO on CartPole, with rollouts and epochs of minibatches: `python ppo.py`."""

import gymnasium
import torch
from gymnasium.vector import AutoresetMode
from torch import nn
from torch.distributions import Categorical

from peers.jobs.byte_gpt import data_generator
from peers.jobs.recipes.text import options, save

ENVS, LENGTH, EPOCHS, MINIBATCHES = 4, 128, 4, 4
GAMMA, LAMBDA, CLIP, RATE = 0.99, 0.95, 0.2, 2.5e-3
steps, out = options()
updates = steps // (EPOCHS * MINIBATCHES)


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
        self.actor = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
        for layer in [each for each in self.modules() if isinstance(each, nn.Linear)]:
            nn.init.orthogonal_(layer.weight, {1: 1.0, 2: 0.01}.get(layer.out_features, 2**0.5))
            nn.init.zeros_(layer.bias)


seed = data_generator(None, 0).initial_seed() % 2**31  # differs between hosts
torch.manual_seed(seed)
envs = gymnasium.make_vec("CartPole-v1", ENVS, "sync", vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP})
agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=RATE, eps=1e-5)
state = torch.from_numpy(envs.reset(seed=seed)[0])

for update in range(updates):
    optimizer.param_groups[0]["lr"] = RATE * (1 - update / updates)

    states, values = torch.zeros(LENGTH, ENVS, 4), torch.zeros(LENGTH + 1, ENVS)
    actions, chances, rewards, goes_on = (torch.zeros(LENGTH, ENVS) for _ in range(4))
    with torch.no_grad():
        for at in range(LENGTH):
            policy = Categorical(logits=agent.actor(state))
            states[at], values[at], actions[at] = state, agent.critic(state)[:, 0], policy.sample()
            chances[at] = policy.log_prob(actions[at])
            *seen, _ = envs.step(actions[at].int().numpy())
            state, rewards[at], ended, cut = map(torch.from_numpy, seen)
            goes_on[at] = ~(ended | cut)
        values[LENGTH] = agent.critic(state)[:, 0]
        advantages, running = torch.zeros(LENGTH, ENVS), torch.zeros(ENVS)
        for at in reversed(range(LENGTH)):
            delta = rewards[at] + GAMMA * values[at + 1] * goes_on[at] - values[at]
            running = delta + GAMMA * LAMBDA * goes_on[at] * running
            advantages[at] = running
    returns = advantages + values[:-1]

    for _ in range(EPOCHS):
        for chosen in torch.randperm(LENGTH * ENVS).chunk(MINIBATCHES):
            policy = Categorical(logits=agent.actor(states.flatten(0, 1)[chosen]))
            ratio = (policy.log_prob(actions.flatten()[chosen]) - chances.flatten()[chosen]).exp()
            gain = advantages.flatten()[chosen]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            surrogate = torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
            value = agent.critic(states.flatten(0, 1)[chosen])[:, 0]
            error = (value - returns.flatten()[chosen]).square().mean()
            loss = 0.25 * error - surrogate - 0.01 * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
    print(f"update {update}: {LENGTH * ENVS / (1 - goes_on).sum().clamp(1):.0f} steps an episode", flush=True)

save(agent, out)
