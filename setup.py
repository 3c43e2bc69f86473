"""Maps the repository's folders to the one import package `reluformer`.

The folders carry the names users look for (`modeling_reluformer`, `configuration`, `training`, …); what is installed is
`reluformer`, `reluformer.configuration`, `reluformer.training`, … and no generic top-level name. Metadata: pyproject.toml.
"""

from setuptools import setup

PACKAGE_FOLDERS = {
    "reluformer": "modeling_reluformer",
    "reluformer.compiled": "modeling_reluformer/compiled",
    "reluformer.other_models": "modeling_reluformer/other_models",
    "reluformer.configuration": "configuration",
    "reluformer.training": "training",
    "reluformer.training.data": "training/data",
    "reluformer.training.run": "training/run",
    "reluformer.training.scoring": "training/scoring",
    "reluformer.analysis": "analysis",
    "reluformer.hub_cards": "hub_cards",
    "reluformer.hub_cards.space": "hub_cards/space",
    "reluformer.commands": "commands",
}

setup(
    packages=list(PACKAGE_FOLDERS),
    package_dir=PACKAGE_FOLDERS,
    package_data={
        "reluformer.compiled": ["*.cpp", "*.h"],
        "reluformer.configuration": ["recipes/*.yaml", "accelerate/*.yaml"],
        "reluformer.hub_cards": ["*.md"],
        "reluformer.hub_cards.space": ["*.md", "*.txt", "*.css", "*.js", "templates/*.html"],
    },
)
