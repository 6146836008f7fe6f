"""Batches for the loss of a saved model, read from a file, and the loss that fits them.

A `.safetensors` file is one batch of tensors, the arguments of the model. A `.jsonl` file has a row
per line: `{"text"}`, `{"prompt", "completion"}`, `{"messages"}`, or pairs `{"prompt", "chosen",
"rejected"}`. The loss of texts is the cross-entropy of the next token, of the completion alone
where there is one. The loss of pairs is that of a reward model (Bradley and Terry 1952), or, with a
reference model, that of DPO (Rafailov et al. 2023, equation 7).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentinel.insight.trajectory.saved_weights import CheckpointError

if TYPE_CHECKING:
    import torch
    from torch import nn

Batch = dict[str, Any]
Loss = Callable[[Any, Batch], Any]

_MAX_LINE_BYTES = 4 << 20
_IGNORED = -100
"""The label of a token that is no part of the loss."""
_KINDS = ("text", "prompt and completion", "messages", "chosen and rejected")


@dataclass(frozen=True)
class BatchOptions:
    """How many rows of a file are used, and how they are put together."""

    rows: int = 32
    batch_size: int = 8
    max_tokens: int = 512


def read_batches(path: Path, tokenizer: Any, options: BatchOptions) -> list[Batch]:
    """The batches of a file. `tokenizer` is a function that returns it, for text.

    Raises CheckpointError if the file cannot be read or has other content.
    """
    if path.suffix == ".safetensors":
        return [_read_tensors(path)]
    rows = [*_read_rows(path, options.rows)]
    if not rows:
        raise CheckpointError(f"{path} has no rows.")
    tokens = tokenizer()
    groups = [rows[at : at + options.batch_size] for at in range(0, len(rows), options.batch_size)]
    return [_batch_of(group, tokens, options.max_tokens, path) for group in groups]


def model_loss(model: nn.Module, batch: Batch) -> Any:
    """The loss that the model itself returns for the batch, as those of Transformers do."""
    outputs = model(**batch)
    loss = outputs.get("loss") if hasattr(outputs, "get") else getattr(outputs, "loss", None)
    if loss is None:
        raise CheckpointError(
            "The model returns no loss for this batch: add `labels` to it, or give "
            "--loss MODULE:FUNCTION, a function of model and batch that returns the loss."
        )
    return loss


def pair_loss(reference: nn.Module | None, beta: float) -> Loss:
    """The loss of pairs: of a reward model, or of DPO against `reference`.

    The log-probabilities of the reference are computed once for each batch.
    """
    import torch  # noqa: PLC0415 - slow to import
    from torch.nn.functional import logsigmoid  # noqa: PLC0415

    known: dict[int, torch.Tensor] = {}

    def loss(model: nn.Module, batch: Batch) -> Any:
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        if reference is None:
            scores = model(**inputs).logits.squeeze(-1)
            if scores.dim() != 1:
                raise CheckpointError(
                    "Pairs need a reward model with one label, or --reference FOLDER, the "
                    "reference model of DPO."
                )
            chosen, rejected = scores.chunk(2)
            return -logsigmoid(chosen - rejected).mean()
        key = id(batch["input_ids"])
        if key not in known:
            with torch.no_grad():
                known[key] = _log_probabilities(reference, batch)
        ratios = _log_probabilities(model, batch) - known[key]
        chosen, rejected = ratios.chunk(2)
        return -logsigmoid(beta * (chosen - rejected)).mean()

    return loss


def is_paired(batches: Sequence[Batch]) -> bool:
    """Whether the batches have chosen texts, followed by as many rejected ones."""
    return "completion_mask" in batches[0]


def _log_probabilities(model: nn.Module, batch: Batch) -> Any:
    """Log-probability of the completion of each row."""
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    logs = logits[:, :-1].float().log_softmax(-1)
    chosen = logs.gather(-1, batch["input_ids"][:, 1:, None]).squeeze(-1)
    return (chosen * batch["completion_mask"][:, 1:]).sum(1)


def _read_tensors(path: Path) -> Batch:
    try:
        from safetensors import SafetensorError  # noqa: PLC0415 - optional
        from safetensors.torch import load_file  # noqa: PLC0415
    except ImportError:
        raise CheckpointError(
            f"Reading {path} needs safetensors: pip install safetensors."
        ) from None
    try:
        tensors = load_file(str(path))
    except (AttributeError, MemoryError, OSError, SafetensorError, TypeError, ValueError) as error:
        # AttributeError: this torch lacks the type of a tensor. TypeError: its shape overflows.
        raise CheckpointError(f"Cannot read {path}: {error}.") from None
    if not tensors:
        raise CheckpointError(f"{path} has no tensors.")
    return tensors


def _read_rows(path: Path, limit: int) -> Iterator[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            number = 0
            while number < limit and (line := file.readline(_MAX_LINE_BYTES)):
                if not line.strip():
                    continue
                number += 1
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise CheckpointError(f"{path} is no JSON lines file of objects.")
                yield row
    except OSError as error:
        raise CheckpointError(f"Cannot read {path}: {error.strerror or error}.") from None
    except ValueError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} is no JSON lines file: {error}.") from None


def _batch_of(rows: list[dict[str, Any]], tokens: Any, max_tokens: int, path: Path) -> Batch:
    if "chosen" in rows[0]:
        texts = [_parts(row, key, tokens, path) for key in ("chosen", "rejected") for row in rows]
    else:
        texts = [_parts(row, "completion", tokens, path) for row in rows]
    encoded = [_encode(prompt, rest, tokens, max_tokens) for prompt, rest in texts]
    return _padded(encoded, tokens, is_paired="chosen" in rows[0])


def _parts(row: dict[str, Any], key: str, tokens: Any, path: Path) -> tuple[str, str]:
    """The text before what the loss is computed on, and the text of the loss."""
    prompt = row.get("prompt", "")
    if isinstance(row.get("text"), str):
        return "", row["text"]
    if isinstance(row.get("messages"), list):
        return "", _chat(row["messages"], tokens, path)
    rest = row.get(key)
    if isinstance(rest, list):
        before = prompt if isinstance(prompt, list) else []
        return _chat(before, tokens, path) if before else "", _chat(rest, tokens, path)
    if isinstance(rest, str) and isinstance(prompt, str):
        return prompt, rest
    raise CheckpointError(
        f"{path}: a row has {', '.join(map(str, row)) or 'nothing'}; expected {', '.join(_KINDS)}."
    )


def _chat(messages: list[Any], tokens: Any, path: Path) -> str:
    if not getattr(tokens, "chat_template", None):
        raise CheckpointError(f"{path} has conversations, and the tokenizer has no chat template.")
    return str(tokens.apply_chat_template(messages, tokenize=False))


def _encode(prompt: str, rest: str, tokens: Any, limit: int) -> tuple[list[int], int]:
    """Token ids of both parts, and how many are of the first; cut at the front of the first."""
    before = tokens(prompt)["input_ids"] if prompt else []
    after = tokens(rest, add_special_tokens=not prompt)["input_ids"]
    end = getattr(tokens, "eos_token_id", None)
    after = [*after, end] if end is not None and after[-1:] != [end] else after
    after = after[:limit]
    before = before[len(before) - min(len(before), limit - len(after)) :]
    return [*before, *after], len(before)


def _padded(encoded: list[tuple[list[int], int]], tokens: Any, *, is_paired: bool) -> Batch:
    import torch  # noqa: PLC0415 - slow to import

    length = max(len(ids) for ids, _ in encoded)
    pad = tokens.pad_token_id if tokens.pad_token_id is not None else tokens.eos_token_id or 0
    shape = (len(encoded), length)
    ids = torch.full(shape, pad)
    mask, completion = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    for row, (values, prompt) in enumerate(encoded):
        ids[row, : len(values)] = torch.tensor(values)
        mask[row, : len(values)] = 1
        completion[row, prompt : len(values)] = 1
    if is_paired:
        return {"input_ids": ids, "attention_mask": mask, "completion_mask": completion}
    labels = ids.masked_fill(completion == 0, _IGNORED)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}
