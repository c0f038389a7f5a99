"""Trains with the Trainer of Hugging Face, as a script of its users. Prints what came out as a line of JSON."""

from __future__ import annotations

import json
import sys

import torch
import transformers
from torch import nn

import paceline.transformers


def main(optimizer: str, steps: int) -> None:
    config = transformers.BertConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model: nn.Module = transformers.BertForSequenceClassification(config)  # type: ignore[no-untyped-call]
    texts = torch.randint(32, (60, 8), generator=torch.Generator().manual_seed(3))
    data = [{"input_ids": text, "labels": int(text.sum() % 2)} for text in texts]
    arguments = transformers.TrainingArguments(
        output_dir="trained",
        num_train_epochs=2,
        max_steps=steps,
        per_device_train_batch_size=8,
        learning_rate=0.01,
        optim=optimizer,
        logging_steps=1,
        eval_strategy="epoch",
        save_strategy="epoch",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=data,
        eval_dataset=data[:16],
        callbacks=[paceline.transformers.Callback()],
    )
    trainer.train()
    history = trainer.state.log_history
    values = torch.cat([value.detach().flatten().double() for value in model.parameters()])
    printed = {
        "losses": [entry["loss"] for entry in history if "loss" in entry],
        "rates": [entry["learning_rate"] for entry in history if "learning_rate" in entry],
        "evaluations": len([entry for entry in history if "eval_loss" in entry]),
        "sum": values.sum().item(),
    }
    print(json.dumps(printed), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.set_seed(1)
    main(sys.argv[1], int(sys.argv[2]))
