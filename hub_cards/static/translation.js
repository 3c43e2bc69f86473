// Greedy translation by the two graphs of `reluformer export --attentions`, with the attention weights of every head.
//
// Nothing here knows the page or the worker: a test runs it in Node with the same files.

/** Shape (1, heads, rows, columns) of ONNX Runtime as an array of heads, each an array of rows. */
function headsOf(tensor) {
  const [, heads, rows, columns] = tensor.dims;
  const row = (head, query) => tensor.data.slice((head * rows + query) * columns, (head * rows + query + 1) * columns);
  return Array.from({ length: heads }, (_, head) => Array.from({ length: rows }, (_, query) => row(head, query)));
}

function numbered(kind, results) {
  const found = [];
  for (let layer = 0; `${kind}.${layer}` in results; layer += 1) found.push(headsOf(results[`${kind}.${layer}`]));
  return found;
}

export class TooLong extends Error {}

export class TranslationModel {
  /**
   * @param ort ONNX Runtime: its module for the web or for Node.
   * @param tokenizer of @huggingface/tokenizers.
   * @param encoder, decoder sessions of ONNX Runtime.
   * @param settings start, end: ids of tokens; heads, headSize: of the decoder; positions: the most tokens of a side;
   *   limit: {step, offset}, from which the most tokens of a translation follow, as in `Translator.limit`.
   */
  constructor(ort, tokenizer, encoder, decoder, settings) {
    Object.assign(this, { ort, tokenizer, encoder, decoder, settings });
  }

  /**
   * @param text one sentence, or what else the model was trained on.
   * @param current is asked before every step whether the translation is still wanted.
   * @returns null if it is not; else {text, source, target, cut, logProbability, attentions}: tokens as they are written, whether
   *   the limit of tokens cut the translation, the mean log-probability of its tokens, and weights {encoder, decoder, cross}, each
   *   [layer][head][query][key].
   * @throws TooLong where the text has more tokens than the model has positions.
   */
  async translate(text, current = async () => true) {
    const ids = this.tokenizer.encode(text).ids;
    const { positions, end } = this.settings;
    if (ids.length > positions) {
      throw new TooLong(`it has ${ids.length} tokens; the model reads ${positions} at most. Shorten it.`);
    }
    const mask = this.integers(ids.map(() => 1));
    const encoded = await this.encoder.run({ input_ids: this.integers(ids), attention_mask: mask });
    const weights = { encoder: numbered("encoder_attentions", encoded), decoder: [], cross: [] };
    const target = [];
    let logProbability = 0;
    const limit = this.limit(ids.length);
    let state = this.emptyCache();
    while (target.at(-1) !== end && target.length < limit) {
      if (!(await current())) return null;
      const results = await this.decoder.run({
        input_ids: this.integers([target.at(-1) ?? this.settings.start]),
        encoder_attention_mask: mask,
        encoder_hidden_states: encoded.last_hidden_state,
        ...state,
      });
      const token = largest(results.logits.data);
      target.push(token);
      logProbability += logProbabilityOf(token, results.logits.data);
      state = this.nextCache(results);
      append(weights.decoder, numbered("decoder_attentions", results));
      append(weights.cross, numbered("cross_attentions", results));
    }
    return {
      text: this.tokenizer.decode(target, { skip_special_tokens: true }),
      source: this.pieces(ids),
      target: this.pieces(target),
      start: this.pieces([this.settings.start])[0],
      cut: target.at(-1) !== end,
      logProbability: logProbability / target.length,
      attentions: weights,
    };
  }

  limit(sourceTokens) {
    const { limit, positions } = this.settings;
    return Math.min(2 * Math.ceil(sourceTokens / limit.step) * limit.step + limit.offset, positions);
  }

  pieces(ids) {
    return ids.map((id) => this.tokenizer.id_to_token(id) ?? `[${id}]`);
  }

  integers(values) {
    return new this.ort.Tensor("int64", BigInt64Array.from(values, BigInt), [1, values.length]);
  }

  emptyCache() {
    const { heads, headSize } = this.settings;
    const names = this.decoder.inputNames.filter((name) => name.startsWith("past_key_values"));
    const empty = () => new this.ort.Tensor("float32", new Float32Array(0), [1, heads, 0, headSize]);
    return Object.fromEntries(names.map((name) => [name, empty()]));
  }

  nextCache(results) {
    const present = Object.entries(results).filter(([name]) => name.startsWith("present"));
    return Object.fromEntries(present.map(([name, tensor]) => [name.replace("present", "past_key_values"), tensor]));
  }
}

function largest(logits) {
  let best = 0;
  for (let id = 1; id < logits.length; id += 1) if (logits[id] > logits[best]) best = id;
  return best;
}

/** Of the token with the largest logit, so that no power of e overflows. */
function logProbabilityOf(token, logits) {
  const sum = logits.reduce((total, logit) => total + Math.exp(logit - logits[token]), 0);
  return -Math.log(sum);
}

/** Adds the rows of one step to those of the steps before it. */
function append(layers, step) {
  step.forEach((heads, layer) => {
    layers[layer] ??= heads.map(() => []);
    heads.forEach((rows, head) => layers[layer][head].push(...rows));
  });
}

/**
 * Numbers of one head's map. Rows may differ in length: a decoder's row has the tokens before it alone. Weights of which some are
 * negative are no distribution: their entropy is null.
 */
export function summary(rows) {
  const weights = rows.reduce((count, row) => count + row.length, 0);
  let zeros = 0;
  let dead = 0;
  let sums = 0;
  let entropy = 0;
  for (const row of rows) {
    const sum = row.reduce((total, weight) => total + weight, 0);
    sums += sum;
    dead += sum === 0;
    for (const weight of row) {
      zeros += weight === 0;
      if (weight > 0) entropy -= (weight / sum) * Math.log(weight / sum);
    }
  }
  const isDistribution = rows.every((row) => row.every((weight) => weight >= 0));
  const means = { zeros: zeros / weights, dead: dead / rows.length, sum: sums / rows.length };
  return { ...means, entropy: isDistribution ? entropy / rows.length : null };
}
