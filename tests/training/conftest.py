"""A recipe that trains in a second or two, its run folder with checkpoints in it, and a call in the middle of its
training."""

import pytest

from reluformer.configuration.recipe_parser import load_recipe, parse_recipe
from reluformer.training.run.checkpoints import PARTIAL_FOLDER, publish_checkpoint
from reluformer.training.run.run_folder import CARD_FILE, RECORD_FILE, settings_of, write_recipe
from reluformer.training.trainer import ReLUFormerTrainer

RECIPE = """
name: tiny
data: {{source_language: de, target_language: en, max_length: 64, demo: {{train: 120, validation: 6, test: 5}}}}
tokenizer: {{vocab_size: 330}}
model: {{d_model: 16, encoder_layers: 1, decoder_layers: 1, encoder_ffn_dim: 16, decoder_ffn_dim: 16,
        encoder_attention_heads: 2, decoder_attention_heads: 2, max_position_embeddings: 160}}
batching: {{tokens_per_batch: 400}}
evaluation: {{num_beams: 2, at_most: 3, samples: 2, headline: exact_match}}
averaging: {{last_checkpoints: 2}}
training:
  output_dir: {folder}
  max_steps: 6
  logging_steps: 2
  eval_strategy: steps
  eval_steps: 3
  save_strategy: steps
  save_steps: 2
  use_cpu: true
  disable_tqdm: true
  learning_rate: 0.01
"""


@pytest.fixture
def recipe_file(tmp_path):
    """Path of a recipe that trains in a second or two, on the generated corpus."""
    path = tmp_path / "tiny.yaml"
    path.write_text(RECIPE.format(folder=tmp_path / "runs" / "tiny"), encoding="utf-8")
    return path


@pytest.fixture
def folder_of(recipe_file):
    """The recipe, and its run folder with given checkpoints in it."""

    def prepare(*checkpoints, finished=False, arguments=()):
        began_with = load_recipe(recipe_file)
        write_recipe(began_with)
        for step in checkpoints:
            partial = began_with.run_folder / PARTIAL_FOLDER
            partial.mkdir()
            (partial / "trainer_state.json").write_text("{}", encoding="utf-8")
            (partial / "optimizer.pt").write_text("moments", encoding="utf-8")
            checkpoint = began_with.run_folder / f"checkpoint-{step}"
            publish_checkpoint(partial, checkpoint, {"settings": settings_of(began_with)})
        if finished:
            for name in (RECORD_FILE, CARD_FILE):
                (began_with.run_folder / name).write_text("{}", encoding="utf-8")
        return parse_recipe(["--config", str(recipe_file), *arguments]), began_with.run_folder

    return prepare


@pytest.fixture
def at_log(monkeypatch):
    """Calls a function when a training logs a given update, which is before it saves that update."""

    def install(update, action):
        original = ReLUFormerTrainer.log

        def log(self, logs, start_time=None):
            original(self, logs, start_time)
            if self.state.global_step == update and "loss" in logs:
                action()

        monkeypatch.setattr(ReLUFormerTrainer, "log", log)
        return lambda: monkeypatch.setattr(ReLUFormerTrainer, "log", original)

    return install
