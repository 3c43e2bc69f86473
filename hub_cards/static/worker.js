// Loads one model and translates the sentence that the page asks for; a newer message ends the work on an older one.

import { TooLong, TranslationModel } from "./translation.js";
import * as ort from "./libraries/ort.wasm.min.mjs";
import { Tokenizer } from "./libraries/tokenizers.min.mjs";

ort.env.wasm.wasmPaths = new URL("./libraries/", import.meta.url).href;
ort.env.wasm.numThreads = 1; // enough for models of this size; more need headers that not every server sends
const PATIENCE = 20; // milliseconds of work, after which newer messages are let in: each time costs a few

let newest = 0;
let lastLook = 0;
let queue = Promise.resolve();

async function load(folder) {
  const read = async (name) => {
    const answer = await fetch(`${folder}/${name}`);
    if (!answer.ok) throw new Error(`${folder}/${name}: ${answer.status} ${answer.statusText}`);
    return answer;
  };
  const json = async (name) => (await read(name)).json();
  const session = async (name) => ort.InferenceSession.create(await (await read(name)).arrayBuffer());
  const [settings, tokenizer, options] = await Promise.all(
    ["page.json", "tokenizer.json", "tokenizer_config.json"].map(json),
  );
  const [encoder, decoder] = [await session(settings.encoder), await session(settings.decoder)];
  return new TranslationModel(ort, new Tokenizer(tokenizer, options), encoder, decoder, settings);
}

/** Lets newer messages in, and says whether there is one. */
async function isNewest(id) {
  if (performance.now() - lastLook > PATIENCE) {
    await new Promise((resolve) => setTimeout(resolve));
    lastLook = performance.now();
  }
  return id === newest;
}

const model = load(new URL(self.name, import.meta.url).href);
model.then(
  () => self.postMessage({ ready: true }),
  (error) => self.postMessage({ failure: String(error.message ?? error) }),
);

/** What is asked for: a number, a text, and whether its attention weights are wanted; a number alone ends the work before it. */
self.onmessage = ({ data: { id, text, weights } }) => {
  newest = id;
  if (text === undefined) return;
  queue = queue.then(async () => {
    if (id !== newest) return;
    try {
      const result = await (await model).translate(text, () => isNewest(id));
      if (!result) return;
      if (!weights) delete result.attentions;
      self.postMessage({ id, result });
    } catch (error) {
      const known = error instanceof TooLong;
      self.postMessage({ id, error: known ? error.message : `it cannot be translated: ${error.message ?? error}` });
    }
  });
};
