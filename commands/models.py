"""`reluformer models`: the models that come with the package."""

import json

from reluformer.commands.parsing import Parser
from reluformer.translating import shipped


def run(arguments: list[str]) -> int:
    """The verb, with the arguments after its name; returns the exit status."""
    parser = Parser(
        prog="reluformer models",
        description="Lists the models that come with the package: name, languages, BLEU with five beams, size of the "
        "weights, folder.",
    )
    parser.parse_args(arguments)
    for name in shipped.shipped_models():
        folder = shipped.MODELS / name
        tokenizer = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        scores = json.loads((folder / shipped.FIGURES_FILE).read_text(encoding="utf-8"))["scores"]
        first = scores[0]["system"]  # this model by five beams; the others stand on its card
        bleu = ", ".join(f"{each['bleu']:.1f} on {each['test']}" for each in scores if each["system"] == first)
        megabytes = (folder / "model.safetensors").stat().st_size / 1e6
        languages = f"{tokenizer['source_language']} to {tokenizer['target_language']}"
        print(f"{name}: {languages}, BLEU {bleu}, {megabytes:.1f} MB\n    {folder}")
    print(
        "`reluformer translate --model` and `Translator.from_pretrained` take the name; Transformers' own classes, "
        "such as AutoTokenizer, take the folder. Its README.md is the model's card."
    )
    return 0
