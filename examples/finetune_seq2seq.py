"""Fine-tunes a ReLUFormer as any other sequence-to-sequence model, with Transformers, Datasets and Evaluate.

    python examples/finetune_seq2seq.py --model runs/demo --source train.de --target train.en --output_dir finetuned

The two files hold one sentence a line; line n of one translates line n of the other. The last lines are held out.
"""

import argparse

from datasets import Dataset
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

import reluformer  # noqa: F401  (registers the model with the Auto classes)
from reluformer.training.scoring.translation_metric import TranslationMetric


def read_lines(path: str) -> list[str]:
    with open(path, encoding="utf-8") as lines:
        return [line.rstrip("\n") for line in lines]


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder or Hub id")
    parser.add_argument("--source", required=True, help="text file, one sentence a line")
    parser.add_argument("--target", required=True, help="its translation")
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--held_out", type=int, default=100, help="sentences to evaluate on")
    parser.add_argument("--max_length", type=int, default=128, help="tokens; longer sentences are cut")
    parser.add_argument("--max_steps", type=int, default=500)
    parser.add_argument("--learning_rate", type=float, default=3e-4)
    options = parser.parse_args(arguments)

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForSeq2SeqLM.from_pretrained(options.model)
    # One limit of what is generated: a model may come with the other one, and the trainer pads by this one.
    model.generation_config.update(max_new_tokens=None, max_length=options.max_length)

    sources, targets = read_lines(options.source), read_lines(options.target)
    if len(sources) != len(targets) or len(sources) <= options.held_out:
        parser.error(f"{len(sources)} source and {len(targets)} target lines: not equal, or not more than --held_out")
    pairs = Dataset.from_dict({"source": sources, "target": targets}).train_test_split(options.held_out, shuffle=False)

    def encode(rows: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        return tokenizer(rows["source"], text_target=rows["target"], truncation=True, max_length=options.max_length)

    encoded = pairs.map(encode, batched=True, remove_columns=["source", "target"])

    metric = TranslationMetric()

    def scores(prediction) -> dict[str, float]:
        texts = []
        for ids in prediction:
            ids[ids == -100] = tokenizer.pad_token_id
            texts.append(tokenizer.batch_decode(ids, skip_special_tokens=True))
        found = metric.compute(predictions=texts[0], references=texts[1])
        return {name: found[name] for name in ("bleu", "chrf", "exact_match")}

    trainer = Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(
            output_dir=options.output_dir,
            max_steps=options.max_steps,
            learning_rate=options.learning_rate,
            per_device_train_batch_size=32,
            predict_with_generate=True,
            eval_strategy="steps",
            eval_steps=0.5,
            logging_steps=0.1,
            save_strategy="no",
            report_to="none",
        ),
        train_dataset=encoded["train"],
        eval_dataset=encoded["test"],
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
        compute_metrics=scores,
    )
    trainer.train()
    trainer.save_model()
    return trainer.evaluate()


if __name__ == "__main__":
    print(main())
