// The attention map of one sentence: a head's weights as a table, its numbers, and the heads to choose from.

import { element } from "./elements.js";
import { summary } from "./translation.js";

const SHOWN = 60; // tokens of each side that a map holds, from the first
const KINDS = {
  cross: { queries: "target", keys: "source" },
  encoder: { queries: "source", keys: "source" },
  decoder: { queries: "target", keys: "read" },
};
const MEANINGS = [
  ["zeros", "exact zeros", "share of the weights that are exactly 0", (value) => `${(100 * value).toFixed(1)} %`],
  ["dead", "dead rows", "share of the rows whose weights are all 0", (value) => `${(100 * value).toFixed(1)} %`],
  ["entropy", "entropy", "mean over rows, in nats", (value) => (value === null ? "–" : value.toFixed(2))],
  ["sum", "row sum", "mean over rows", (value) => value.toFixed(2)],
];

/** A token as a reader knows it: without the mark of a word's beginning; a later piece of a word begins with a hyphen. */
function readable(token, index) {
  if (/^<.*>$/.test(token)) return token;
  if (token.startsWith("▁") || token.startsWith("Ġ")) return token.slice(1) || "␣";
  return index === 0 || /^\p{P}/u.test(token) ? token : `-${token}`;
}

export class AttentionMap {
  /**
   * @param part the element to draw in.
   * @param name what tells its radio buttons from those of another map.
   */
  constructor(part, name) {
    this.part = part;
    this.find = (selector) => part.querySelector(selector);
    this.place = null; // {kind, layer, head}, once there is a map
    this.shown = null; // the translation that is drawn
    this.result = null; // the same, with what its decoder has read
    for (const radio of part.querySelectorAll("[type=radio]")) {
      radio.name = `kind of ${name}`;
      radio.addEventListener("change", () => this.choose({ kind: radio.value, layer: 0, head: 0 }));
    }
    this.find(".map").addEventListener("keydown", (event) => this.step(event));
    this.find(".map").addEventListener("pointerover", (event) => this.read(event.target.closest("td")));
  }

  /** Draws the map of a translation of `TranslationModel`; null hides it. title: what says which sentence it is, where there are several. */
  show(result, ...title) {
    this.part.hidden = !result;
    if (!result) return;
    this.find(".of").hidden = !title.length;
    this.find(".of").replaceChildren(...title);
    if (result === this.shown) return; // what a reader has focused, and the weight that is read, stay
    this.shown = result;
    this.result = { ...result, read: [result.start, ...result.target.slice(0, -1)] };
    this.place ??= this.opening();
    this.draw();
  }

  /** Of the heads of cross-attention with the fewest dead rows, the one with the most zeros. */
  opening() {
    let best = { kind: "cross", layer: 0, head: 0 };
    let found = { dead: Infinity, zeros: -1 };
    this.result.attentions.cross.forEach((heads, layer) =>
      heads.forEach((rows, head) => {
        const { dead, zeros } = summary(rows);
        if (dead < found.dead || (dead === found.dead && zeros > found.zeros)) {
          best = { kind: "cross", layer, head };
          found = { dead, zeros };
        }
      }),
    );
    return best;
  }

  choose(place) {
    const isOtherKind = place.kind !== this.place.kind;
    this.place = place;
    this.draw(isOtherKind);
  }

  /** Arrow keys on the map walk over heads and layers. */
  step(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return; // such as Alt and ←: the page before
    const [layers, heads] = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key] ?? [];
    if (layers === undefined) return;
    event.preventDefault();
    const all = this.result.attentions[this.place.kind];
    const layer = (this.place.layer + layers + all.length) % all.length;
    this.choose({ ...this.place, layer, head: (this.place.head + heads + all[layer].length) % all[layer].length });
  }

  /** otherHeads: whether the buttons of the heads are others than before; a button that is focused stays so otherwise. */
  draw(otherHeads = true) {
    const { kind, layer, head } = this.place;
    const rows = this.result.attentions[kind][layer][head];
    const { queries, keys } = KINDS[kind];
    this.names = { queries: this.result[queries].map(readable), keys: this.result[keys].map(readable) };
    this.find(`[value=${kind}]`).checked = true;
    this.find(".map").replaceChildren(this.map(rows));
    this.find(".numbers").replaceChildren(...this.numbers(rows));
    if (otherHeads) this.find(".heads tbody").replaceChildren(...this.heads(kind));
    [...this.find(".heads tbody").rows].forEach((row, at) =>
      row.querySelectorAll("button").forEach((button, index) => button.setAttribute("aria-pressed", at === layer && index === head)),
    );
    const negative = rows.some((row) => row.some((weight) => weight < 0)) ? ", one with stripes negative" : "";
    const parts = Math.max(...Object.values(this.names).map((names) => names.length)) > SHOWN ? ` The first ${SHOWN} tokens.` : "";
    this.find(".reading").textContent =
      `Layer ${layer + 1}, head ${head + 1}. Each row is a token of the ${queries === "source" ? "text" : "translation"}; ` +
      `the stronger the colour of a cell, the larger the weight of its column. A cell without colour is exactly 0${negative}.${parts}`;
  }

  map(rows) {
    const most = rows.reduce((largest, row) => row.reduce((a, b) => Math.max(a, Math.abs(b)), largest), 0) || 1;
    const keys = this.names.keys.slice(0, SHOWN);
    const corner = element("tr", {}, element("td"), ...keys.map((key) => element("th", { scope: "col" }, element("span", {}, key))));
    const table = element("table", {}, element("thead", {}, corner));
    const body = element("tbody");
    rows.slice(0, SHOWN).forEach((row, query) => {
      const cells = keys.map((_, key) => cell(row[key], most, query, key));
      body.append(element("tr", {}, element("th", { scope: "row" }, this.names.queries[query]), ...cells));
    });
    table.append(body);
    return table;
  }

  read(cell) {
    if (!cell || !("query" in cell.dataset)) return;
    const { query, key, weight } = cell.dataset;
    const says = weight === "0" ? "ignores" : "reads";
    const amount = written(Number(weight));
    this.find(".reading").textContent = `“${this.names.queries[query]}” ${says} “${this.names.keys[key]}”: ${amount}`;
  }

  numbers(rows) {
    const found = summary(rows);
    return MEANINGS.map(([key, name, meaning, write]) =>
      element("div", { title: meaning }, element("dt", {}, name), element("dd", {}, write(found[key]))),
    );
  }

  heads(kind) {
    return this.result.attentions[kind].map((heads, layer) => {
      const buttons = heads.map((rows, head) => {
        const share = summary(rows).zeros;
        const label = `layer ${layer + 1}, head ${head + 1}: ${(100 * share).toFixed(0)} % exact zeros`;
        const attributes = { "aria-label": label, style: `--share: ${share}` };
        const onclick = () => this.choose({ kind, layer, head });
        return element("td", {}, element("button", { ...attributes, onclick }, (100 * share).toFixed(0)));
      });
      return element("tr", {}, element("th", { scope: "row" }, `layer ${layer + 1}`), ...buttons);
    });
  }
}

/** A weight that is undefined is that of a key which the query does not see. */
function cell(weight, most, query, key) {
  if (weight === undefined) return element("td", { class: "unseen" });
  const shade = weight === 0 ? 0 : 0.08 + 0.92 * (Math.abs(weight) / most);
  const attributes = { "data-query": query, "data-key": key, "data-weight": weight, "aria-label": written(weight) };
  if (weight < 0) attributes.class = "negative";
  return element("td", { ...attributes, style: `--shade: ${shade.toFixed(3)}` });
}

function written(weight) {
  return weight === 0 ? "exactly 0" : weight.toPrecision(2);
}
