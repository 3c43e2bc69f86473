// The page: a text field, and for each model its translation and the attention map of one head.

import { summary } from "./translation.js";

const PAUSE = 250; // milliseconds without a key before a text is translated
const SHOWN = 60; // tokens of each side that a map holds, from the first
const KINDS = {
  cross: { queries: "target", keys: "source" },
  encoder: { queries: "source", keys: "source" },
  decoder: { queries: "target", keys: "read" },
};
const MEANINGS = [
  ["zeros", "exact zeros", "share of the weights that are exactly 0", (value) => `${(100 * value).toFixed(1)} %`],
  ["dead", "dead rows", "share of the rows whose weights are all 0", (value) => `${(100 * value).toFixed(1)} %`],
  ["entropy", "entropy", "mean over rows, in nats", (value) => value.toFixed(2)],
  ["sum", "row sum", "mean over rows", (value) => value.toFixed(2)],
];

const problem = document.getElementById("problem");
const field = document.getElementById("text");

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "onclick") made.addEventListener("click", value);
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/** A token as a reader knows it: without the mark of a word's beginning; a later piece of a word begins with a hyphen. */
function readable(token, index) {
  if (/^<.*>$/.test(token)) return token;
  if (token.startsWith("▁") || token.startsWith("Ġ")) return token.slice(1) || "␣";
  return index === 0 || /^\p{P}/u.test(token) ? token : `-${token}`;
}

/** One model's part of the page. */
class Panel {
  constructor(description) {
    const part = document.getElementById("model").content.cloneNode(true).firstElementChild;
    this.part = part;
    this.find = (selector) => part.querySelector(selector);
    this.place = null; // {kind, layer, head}, once there is a map
    this.result = null;
    part.style.setProperty("--color", description.color);
    this.find(".name").textContent = description.name;
    this.find(".about").textContent = description.about;
    this.find(".translation").textContent = description.first;
    this.say("The model loads …");
    for (const radio of part.querySelectorAll("[type=radio]")) {
      radio.name = `kind of ${description.folder}`;
      radio.addEventListener("change", () => this.choose({ kind: radio.value, layer: 0, head: 0 }));
    }
    this.find(".map").addEventListener("keydown", (event) => this.step(event));
    this.find(".map").addEventListener("pointerover", (event) => this.read(event.target.closest("td")));
    this.worker = new Worker("worker.js", { type: "module", name: `models/${description.folder}` });
    this.worker.onmessage = ({ data }) => this.receive(data);
    this.worker.onerror = (event) => this.say(`The model cannot run: ${event.message ?? "its script did not load"}`, true);
    document.getElementById("models").append(part);
  }

  say(text, wrong = false) {
    const status = this.find(".status");
    status.textContent = text;
    status.classList.toggle("wrong", wrong);
  }

  translate(id, text) {
    this.asked = id;
    if (text) this.worker.postMessage({ id, text });
    else this.show(null, "");
  }

  receive({ id, ready, failure, error, result }) {
    if (ready) this.say("");
    else if (failure) this.say(`The model did not load: ${failure}`, true);
    else if (id !== this.asked) return;
    else if (error) this.show(null, error, true);
    else this.show(result, result.cut ? "The translation reached the most tokens that it may have, and was cut." : "");
  }

  show(result, note, wrong = false) {
    this.result = result && { ...result, read: [result.start, ...result.target.slice(0, -1)] };
    this.find(".translation").textContent = result ? result.text : "";
    this.say(note, wrong);
    this.find(".attention").hidden = !result;
    if (!result) return;
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
    this.place = place;
    this.draw();
  }

  /** Arrow keys on the map walk over heads and layers. */
  step(event) {
    const [layers, heads] = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key] ?? [];
    if (layers === undefined) return;
    event.preventDefault();
    const all = this.result.attentions[this.place.kind];
    const layer = (this.place.layer + layers + all.length) % all.length;
    this.choose({ ...this.place, layer, head: (this.place.head + heads + all[layer].length) % all[layer].length });
  }

  draw() {
    const { kind, layer, head } = this.place;
    const rows = this.result.attentions[kind][layer][head];
    const { queries, keys } = KINDS[kind];
    this.names = { queries: this.result[queries].map(readable), keys: this.result[keys].map(readable) };
    this.find(`[value=${kind}]`).checked = true;
    this.find(".map").replaceChildren(this.map(rows));
    this.find(".numbers").replaceChildren(...this.numbers(rows));
    this.find(".heads tbody").replaceChildren(...this.heads(kind));
    const parts = Math.max(...Object.values(this.names).map((names) => names.length)) > SHOWN ? ` The first ${SHOWN} tokens.` : "";
    this.find(".reading").textContent =
      `Layer ${layer + 1}, head ${head + 1}. Each row is a token of the ${queries === "source" ? "text" : "translation"}; ` +
      `the stronger the colour of a cell, the larger the weight of its column. A cell without colour is exactly 0.${parts}`;
  }

  map(rows) {
    const most = rows.reduce((largest, row) => row.reduce((a, b) => Math.max(a, b), largest), 0) || 1;
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
    const amount = weight === "0" ? "exactly 0" : Number(weight).toPrecision(2);
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
        const chosen = layer === this.place.layer && head === this.place.head;
        const label = `layer ${layer + 1}, head ${head + 1}: ${(100 * share).toFixed(0)} % exact zeros`;
        const attributes = { "aria-label": label, "aria-pressed": chosen, style: `--share: ${share}` };
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
  const shade = weight > 0 ? 0.08 + 0.92 * (weight / most) : 0;
  const attributes = { "data-query": query, "data-key": key, "data-weight": weight, style: `--shade: ${shade.toFixed(3)}` };
  return element("td", weight === 0 ? { ...attributes, class: "zero" } : attributes);
}

/** The line that the cursor is in: a model translates one sentence at a time. */
function line() {
  const { value, selectionStart } = field;
  const start = value.lastIndexOf("\n", selectionStart - 1) + 1;
  const end = value.indexOf("\n", selectionStart);
  return value.slice(start, end < 0 ? undefined : end).trim();
}

function begin({ examples, models }) {
  const panels = models.map((model) => new Panel(model));
  let asked = 0;
  const translate = () => {
    asked += 1;
    panels.forEach((panel) => panel.translate(asked, line()));
  };
  let pause;
  field.addEventListener("input", () => {
    clearTimeout(pause);
    pause = setTimeout(translate, PAUSE);
  });
  const use = (text) => {
    field.value = text;
    translate();
  };
  const buttons = examples.map((text) => element("button", { onclick: () => use(text) }, text));
  document.getElementById("examples").append(...buttons);
  if (examples.length) use(examples[0]);
}

if (typeof WebAssembly === "undefined") {
  problem.textContent = "This browser has no WebAssembly, or it is switched off. The model needs it: allow it, or use another browser.";
} else {
  try {
    begin(await (await fetch("page.json")).json());
    problem.hidden = true;
  } catch (error) {
    problem.textContent = `The page did not start: ${error.message}. Serve its whole folder, as “reluformer space” does.`;
  }
}
