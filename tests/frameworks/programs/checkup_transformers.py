"""The Trainer of transformers, which saves every ten steps and resumes from the last checkpoint."""

import os
import time

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint


class Sentences(torch.utils.data.Dataset):
    """Random words, two kinds."""

    def __len__(self) -> int:
        return 360

    def __getitem__(self, index: int):
        time.sleep(0.002)
        generator = torch.Generator().manual_seed(index)
        return {
            "input_ids": torch.randint(0, 100, (16,), generator=generator),
            "attention_mask": torch.ones(16, dtype=torch.long),
            "labels": torch.tensor(index % 2),
        }


def main() -> None:
    """Train for 120 steps."""
    set_seed(0)
    config = BertConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    arguments = TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=6,
        max_steps=120,
        save_steps=10,
        save_total_limit=3,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=BertForSequenceClassification(config), args=arguments, train_dataset=Sentences()
    )
    last = get_last_checkpoint("out") if os.path.isdir("out") else None
    trainer.train(resume_from_checkpoint=last)


if __name__ == "__main__":
    main()
