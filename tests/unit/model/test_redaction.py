"""Secrets are masked, everything else stays."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.model.redaction import (
    MAX_COMMAND_CHARACTERS,
    MAX_LINE_CHARACTERS,
    redact_arguments,
    redact_line,
)

SECRETS = {
    "url": ("open https://me:hunter2@host/x failed", "open https://***@host/x failed"),
    "query": ("GET https://h/x?sig=hunter2.", "GET https://h/x?***."),
    "webhook": ("https://hooks.slack.com/services/T0/B0/hunter2", "https://hooks.slack.com/services/***"),
    "password": ("password=hunter2, user=me", "password=***, user=me"),
    "json": ("{'api_key': 'hunter2 x', 'n': 3}", "{'api_key': ***, 'n': 3}"),
    "arrow": ("{:api_key => 'hunter2'}", "{:api_key => ***}"),
    "variable": ("WANDB_API_KEY=hunter2", "WANDB_API_KEY=***"),
    "header": ("Authorization: Bearer hunter2", "Authorization: Bearer ***"),
    "hugging face": ("token hf_abcdefghijklmnop is invalid", "token *** is invalid"),
    "aws": ("key AKIAIOSFODNN7EXAMPLE", "key ***"),
    "e-mail": ("no access for ana.b+x@mail.example.org: ask", "no access for ***: ask"),
    "hex": ("id 0123456789abcdef0123456789abcdef0", "id ***"),
    "base64": ("got dGhpcyBpcyBhIHNlY3JldCBrZXkgMTIz", "got ***"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), SECRETS.values(), ids=SECRETS)
def test_secrets_are_masked(text, expected):
    assert redact_line(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.15 GiB",
        "mat1 and mat2 shapes cannot be multiplied (16x8 and 4x1)",
        "max_tokens=512 exceeds pad_token_id=0 and num_tokens: 4096",
        "[Errno 2] No such file or directory: '/data/shards-2024-05-01/train_00017_of_01024.bin'",
        "Expected all tensors on the same device, but found at least two: cuda:0 and cpu",
        "meta-llama/Llama-3@main, @decorator, gpu@3, a @ b has shape (3, 4)",
        "KeyError: 'model.layers.0.self_attn.q_proj.weight'",
    ],
)
def test_usual_messages_stay(text):
    assert redact_line(text) == text


@pytest.mark.parametrize(
    "word", ["a", "token", "token_ids", "x.token-", "Aa1", "a://", "a.", "a@", "a@a."]
)
def test_a_long_word_takes_linear_time(word):
    """It runs in a process that fails; the time was cubic in the length."""
    started_at = time.process_time()
    redact_line(word * 4000)

    assert time.process_time() - started_at < 2.0


def test_only_the_first_line_is_kept_without_control_characters():
    assert redact_line("\n  first \x1b[31m\u202eline\nsecond") == "first  [31m line"


@given(st.text())
def test_the_length_is_limited(text):
    line = redact_line(text)

    assert len(line) <= MAX_LINE_CHARACTERS
    assert line.isprintable()


COMMANDS = {
    "option": (["train", "--hf-token", "hunter2"], "train --hf-token ***"),
    "option with a value": (["train", "--api_key=hunter2"], "train --api_key=***"),
    "override": (["train", "logger.wandb_api_key=hunter2"], "train logger.wandb_api_key=***"),
    "url": (["train", "s3://me:hunter2@b/x"], "train s3://***@b/x"),
    "code": (["python", "-u", "-c", "key = 'hunter2'"], "python -u -c ***"),
    "password": (["train", "--db-password", "hunter2 a"], "train --db-password ***"),
}


@pytest.mark.parametrize(("arguments", "expected"), COMMANDS.values(), ids=COMMANDS)
def test_a_command_line_has_no_secret(arguments, expected):
    assert redact_arguments(arguments) == expected


@pytest.mark.parametrize(
    "text",
    [
        "python -m train -c config.yaml --lr 1e-4 --tokenizer gpt2 --pad_token_id 0",
        "torchrun --nproc 8 train.py --max_tokens 4096 optimizer.lr=0.1 --token",
        "python -u train.py --secret -x",
    ],
)
def test_a_command_line_without_secrets_stays(text):
    assert redact_arguments(text.split()) == text


def test_a_command_line_is_cut_and_quoted():
    assert (
        redact_arguments(["train", "--text", "a b", "", "\x1b[2J"]) == "train --text 'a b' ' [2J'"
    )
    assert len(redact_arguments(["x" * 10**6] * 5)) == MAX_COMMAND_CHARACTERS
