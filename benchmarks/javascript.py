"""An exported model by transformers.js, in Node and in headless Chromium: translations, and the seconds that they take.

python -m benchmarks.javascript      # installs transformers.js into the cache: once, 500 MB from the npm registry
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reluformer.export.running import load_translator
from reluformer.hub_cards.space import library_folder

VERSION = "4.3.1"
INSTALLED = library_folder().with_name(f"transformers.js-{VERSION}")
# Greedy and one by one: 8-bit activations are rounded for a whole batch at once.
LIMIT = 128
_PROGRAM = f"""
async function translateAll(pipeline, folder, texts) {{
  const translate = await pipeline("translation", folder, {{ dtype: "fp32", subfolder: "" }});
  const translations = [];
  let seconds = 0;
  for (const text of texts) {{
    const start = performance.now();
    const [translation] = await translate(text, {{ num_beams: 1, max_new_tokens: {LIMIT} }});
    seconds += (performance.now() - start) / 1000;
    translations.push(translation.translation_text);
    await new Promise((resolve) => setTimeout(resolve)); // a page that computes on and on answers nobody
  }}
  return {{ translations, seconds }};
}}
"""
_IN_NODE = """
import { readFileSync } from "node:fs";
import { env, pipeline } from "@huggingface/transformers";
env.allowRemoteModels = false;
const result = await translateAll(pipeline, process.argv[2], JSON.parse(readFileSync(0)));
console.log(JSON.stringify(result));
"""
_IN_BROWSER = """<!doctype html><meta charset="utf-8"><script type="module">
import { env, pipeline } from "./node_modules/@huggingface/transformers/dist/transformers.min.js";
Object.assign(env, { allowRemoteModels: false, allowLocalModels: true, localModelPath: "./" });
env.backends.onnx.wasm.wasmPaths = new URL("./node_modules/onnxruntime-web/dist/", location.href).href;
const texts = await (await fetch("./texts.json")).json();
translateAll(pipeline, "model", texts).then(
  (result) => { window.result = result; },
  (error) => { window.result = { error: String(error.stack ?? error) }; },
);
"""


def in_node(folder: Path, texts: Sequence[str]) -> dict[str, Any]:
    """`translations` of a folder of `reluformer export`, and the `seconds` of translating alone."""
    program = INSTALLED / "translate.mjs"
    program.write_text(_PROGRAM + _IN_NODE, encoding="utf-8")
    command = ["node", program, folder.resolve()]
    return json.loads(subprocess.run(command, input=json.dumps(texts), check=True, text=True, stdout=-1).stdout)


def in_chromium(folder: Path, texts: Sequence[str]) -> dict[str, Any]:
    """As `in_node`, by WebAssembly on one thread, as any static page."""
    from docs import screenshot  # it needs selenium

    with tempfile.TemporaryDirectory() as folder_name:
        page = Path(folder_name)
        (page / "model").symlink_to(folder.resolve())
        (page / "node_modules").symlink_to(INSTALLED / "node_modules")
        (page / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
        (page / "index.html").write_text(f"{_IN_BROWSER}{_PROGRAM}</script>", encoding="utf-8")
        with screenshot.served(page) as address, screenshot.headless_chromium() as browser:
            browser.get(address)
            screenshot.wait_until(browser, "return window.result", patience=1800)
            result = browser.execute_script("return window.result")
    if "error" in result:
        raise RuntimeError(result["error"])
    return result


def in_python(folder: Path, texts: Sequence[str]) -> list[str]:
    """The same by onnxruntime in Python."""
    return load_translator(folder, num_beams=1, max_new_tokens=LIMIT, batch_tokens=1, split="none")(texts)


def main() -> int:
    INSTALLED.mkdir(parents=True, exist_ok=True)
    package = f"@huggingface/transformers@{VERSION}"
    command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", INSTALLED, package]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
