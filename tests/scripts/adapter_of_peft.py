"""LoRA by PEFT. The second host comes with another base at first."""

import torch
import transformers
from beside import HOST, meet, say, status, steps
from peft import LoraConfig, get_peft_model

import gossipdp
from gossipdp.errors import MismatchError

RANK, WIDTH = 4, 48


def adapted(seed):
    torch.manual_seed(seed)
    config = transformers.GPT2Config(vocab_size=256, n_positions=16, n_embd=WIDTH, n_layer=2, n_head=2)
    base = transformers.GPT2LMHeadModel(config)
    torch.manual_seed(HOST)  # A of LoRA is drawn by each host, and the joiner gets the founder's
    model = get_peft_model(base, LoraConfig(r=RANK, target_modules=["c_attn"]))
    return model, torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)


def train(model, optimizer, **until):
    text = torch.arange(64).view(4, 16)
    for _ in steps(**until):
        model(input_ids=text, labels=text).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


model, optimizer = adapted(seed=0)
if HOST:
    meet("founded")
    other = adapted(seed=1)
    try:
        gossipdp.attach(*other)
    except MismatchError as error:
        say(code=error.code, seen=error.seen, do=error.do)
    gossipdp.attach(model, optimizer)
else:
    gossipdp.attach(model, optimizer)
    meet("founded")
train(model, optimizer, exchanges=4)
told = status()
say(
    trained=sum(each.numel() for each in model.parameters() if each.requires_grad),
    all=sum(each.numel() for each in model.parameters()),
    parameters=told["parameters"],
    exchanged=told["exchanged_parameters"] / told["exchanges"]["done"],
    bytes=told["exchanged_bytes"] / told["exchanges"]["done"],
)
