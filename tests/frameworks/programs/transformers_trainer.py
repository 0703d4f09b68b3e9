"""The Trainer of transformers on a tiny model that nobody has to download."""

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)


class Sentences(torch.utils.data.Dataset):
    """Random words, two kinds."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int):
        generator = torch.Generator().manual_seed(index)
        return {
            "input_ids": torch.randint(0, 100, (16,), generator=generator),
            "attention_mask": torch.ones(16, dtype=torch.long),
            "labels": torch.tensor(index % 2),
        }


def main() -> None:
    """Train for six steps, with two checkpoints."""
    set_seed(0)
    config = BertConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    arguments = TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=8,
        max_steps=6,
        save_steps=3,
        report_to=[],
        use_cpu=True,
        dataloader_num_workers=1,
    )
    model = BertForSequenceClassification(config)
    result = Trainer(model=model, args=arguments, train_dataset=Sentences()).train()
    rank, world_size = arguments.process_index, arguments.world_size
    print(f"rank {rank} of {world_size}: step {result.global_step}", flush=True)


if __name__ == "__main__":
    main()
