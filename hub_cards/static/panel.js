// One model's part of the page: the translation of the whole text, sentence by sentence, and the map of one sentence.

import { element } from "./elements.js";
import { AttentionMap } from "./map.js";
import { known, pieceAt, piecesOf } from "./sentences.js";

const NAMES = new Intl.DisplayNames(["en"], { type: "language" });

/** A language by its name, such as “German” for "de"; as a recipe calls it where the browser does not know it. */
export function nameOf(language) {
  return known(language) ? NAMES.of(known(language)) : language;
}

/**
 * The sentences of the text are translated one at a time, the one under the cursor first. A translation is kept as long as its sentence
 * is in the text; attention weights are kept of the sentence under the cursor alone, since those of a long text fill the memory.
 */
export class Panel {
  /**
   * @param model what page.json says of it: folder, name, about, quality, color, source, target, unit, doubt; the last is null or
   *   {threshold, share}: below which mean log-probability a translation is doubtful, and which share of such translations is bad.
   * @param look is called with the range of a sentence whose translation is clicked: start, end.
   */
  constructor(model, look) {
    const part = document.getElementById("model").content.cloneNode(true).firstElementChild;
    this.model = model;
    this.look = look;
    this.find = (selector) => part.querySelector(selector);
    this.text = "";
    this.pieces = []; // of the text
    this.spans = []; // of the translation, one for each piece
    this.results = new Map(); // text of a piece → {text, cut, logProbability} or {error}
    this.current = -1; // the piece under the cursor
    this.weighed = null; // {text, result}, where result has attention weights
    this.asked = { id: 0 }; // the message to the worker; text is undefined if nothing is computed
    this.state = "loading"; // or "ready", or "failed"
    part.style.setProperty("--color", model.color);
    this.find(".name").textContent = model.name;
    this.find(".about").textContent = model.about;
    const languages = model.source && model.target ? [`${nameOf(model.source)} → ${nameOf(model.target)}`] : [];
    this.find(".quality").textContent = `${[...languages, model.quality].join(", ")}.`;
    if (known(model.target)) this.find(".translation").lang = known(model.target);
    this.map = new AttentionMap(this.find(".attention"), model.folder);
    const folder = `models/${encodeURIComponent(model.folder)}`;
    this.worker = new Worker("worker.js", { type: "module", name: folder });
    this.worker.onmessage = ({ data }) => this.receive(data);
    this.worker.onerror = (event) => this.fail(`The model cannot run: ${event.message ?? "its script did not load"}`);
    this.say("The model loads …", false);
    document.getElementById("models").append(part);
  }

  /** A translation that is known before the model has loaded. */
  know(text, translation) {
    this.results.set(text, { text: translation, cut: false });
  }

  /** Translates a text in which the cursor is at a position. */
  update(text, position) {
    this.text = text;
    this.pieces = piecesOf(text, this.model.source, this.model.unit);
    const texts = new Set(this.pieces.map((piece) => piece.text));
    for (const old of this.results.keys()) if (!texts.has(old)) this.results.delete(old);
    this.layOut();
    this.move(position);
  }

  /** The cursor is at another position of the same text. */
  move(position) {
    this.current = pieceAt(this.pieces, position);
    const several = this.total() > 1;
    this.spans.forEach((span, index) => span.classList.toggle("current", several && index === this.current));
    this.work();
  }

  total() {
    return this.pieces.filter((piece) => piece.text).length;
  }

  /** One element for each piece, with the white space of the text between them. */
  layOut() {
    const shown = this.spans.map((span) => span.textContent);
    this.spans = this.pieces.map(({ start, end, before, after }) => {
      // not while a reader marks a part of the translation to copy it
      const onclick = () => getSelection().isCollapsed && this.look(start + before.length, end - after.length);
      return element("span", { onclick });
    });
    const parts = this.spans.flatMap((span, index) => [this.pieces[index].before, span, this.spaceAfter(index)]);
    this.find(".translation").replaceChildren(...parts);
    this.spans.forEach((span, index) => {
      // while a sentence is changed, its last translation stands there until the new one is known
      span.textContent = shown.length === this.spans.length ? shown[index] : "…";
      this.write(index);
    });
  }

  /** What stands behind a piece in the text; a space between two sentences that nothing divides, as in Chinese. */
  spaceAfter(index) {
    const [piece, next] = [this.pieces[index], this.pieces[index + 1]];
    return piece.after || (piece.text && next?.text && !next.before ? " " : "");
  }

  write(index) {
    const { text } = this.pieces[index];
    const span = this.spans[index];
    const result = text ? this.results.get(text) : { text: "" };
    span.classList.toggle("pending", !result);
    span.classList.toggle("wrong", Boolean(result?.error || result?.cut));
    span.classList.toggle("doubtful", this.isDoubtful(index));
    if (result) span.textContent = result.error ? "[not translated]" : result.text;
  }

  /** Asks the worker for what is wanted next, if it does not compute that already, and says how far it is. */
  work() {
    if (this.state === "failed") return;
    const wanted = this.wanted();
    if (wanted.text !== this.asked.text || (wanted.weights && !this.asked.weights)) {
      this.asked = { id: this.asked.id + 1, ...wanted };
      this.worker.postMessage(this.asked);
    }
    this.tell();
    const isCurrent = this.current >= 0 && this.weighed?.text === this.pieces[this.current].text;
    // the last map stays while that of the next sentence is computed
    if (isCurrent || this.current < 0 || this.error(this.current)) this.showMap(isCurrent);
  }

  /** First the sentence under the cursor with its weights, then what is not translated yet; {} where nothing is wanted. */
  wanted() {
    const current = this.pieces[this.current]?.text;
    if (current && current !== this.weighed?.text && !this.error(this.current)) return { text: current, weights: true };
    const next = this.pieces.find(({ text }) => text && !this.results.has(text));
    return next ? { text: next.text, weights: false } : {};
  }

  /** What is known of a piece; undefined while it is not translated. */
  resultOf(index) {
    return this.results.get(this.pieces[index]?.text);
  }

  isDoubtful(index) {
    const { doubt } = this.model;
    return Boolean(doubt) && this.resultOf(index)?.logProbability < doubt.threshold;
  }

  error(index) {
    return this.resultOf(index)?.error;
  }

  receive({ id, ready, failure, error, result }) {
    if (failure) return this.fail(`The model did not load: ${failure}`);
    if (ready) {
      this.state = "ready";
      return this.work();
    }
    if (id !== this.asked.id) return; // of a text that is no longer there
    const { text, weights } = this.asked;
    this.asked = { id };
    this.results.set(text, error ? { error } : { text: result.text, cut: result.cut, logProbability: result.logProbability });
    if (weights && result) this.weighed = { text, result };
    this.pieces.forEach((piece, index) => {
      if (piece.text === text) this.write(index);
    });
    this.work();
  }

  showMap(isCurrent) {
    if (!isCurrent) return this.map.show(null);
    const { text } = this.pieces[this.current];
    const quoted = element("q", known(this.model.source) ? { lang: known(this.model.source) } : {}, text);
    const title = this.total() > 1 ? [`${this.place(this.current)}: `, quoted] : [];
    return this.map.show(this.weighed.result, ...title);
  }

  /** “Sentence 3 of 27”, in the words of what the model reads. */
  place(index) {
    const total = this.total();
    if (this.model.unit === "document") return "The text";
    if (total === 1) return "The sentence";
    return `Sentence ${this.pieces.slice(0, index + 1).filter((piece) => piece.text).length} of ${total}`;
  }

  /** How sure the model is of the sentence under the cursor, and how many others are doubtful. */
  tellDoubt() {
    const sure = this.resultOf(this.current)?.logProbability;
    const of = this.total() > 1 ? ` of ${this.place(this.current).toLowerCase()}` : "";
    const parts = sure === undefined ? [] : [`Mean log-probability of a token${of}: ${inText(sure)}.`];
    const doubtful = [...this.pieces.keys()].filter((index) => this.isDoubtful(index));
    if (doubtful.length) {
      const { threshold, share } = this.model.doubt;
      const which = this.total() > 1 ? `${doubtful.length} of ${this.total()} translations are doubtful (dotted)` : "It is doubtful";
      parts.push(`${which}: below ${inText(threshold)}, ${Math.round(100 * share)} % of such translations were bad.`);
    }
    this.find(".doubt").textContent = parts.join(" ");
  }

  /** How far the translation is and, once it is done, what went wrong. */
  tell() {
    this.tellDoubt();
    const total = this.total();
    const done = this.pieces.filter(({ text }) => text && this.results.has(text)).length;
    const computes = this.state === "ready" && done < total;
    this.find(".progress").hidden = !computes;
    this.find(".translation").setAttribute("aria-busy", computes);
    Object.assign(this.find("progress"), { max: total || 1, value: done });
    this.find(".progress span").textContent = `Translating: ${done} of ${total}`;
    if (this.state === "ready") this.say(computes ? "" : this.problems().join(" "), !computes);
  }

  /** One sentence for what was not translated, and one for what was cut. */
  problems() {
    const numbers = [...this.pieces.keys()];
    const failed = numbers.filter((index) => this.error(index));
    const cut = numbers.filter((index) => this.resultOf(index)?.cut);
    const others = (list) => (list.length > 1 ? ` So it is with ${list.length - 1} more.` : "");
    const found = [];
    if (failed.length) found.push(`${this.place(failed[0])} was not translated: ${this.error(failed[0])}${others(failed)}`);
    if (cut.length) found.push(`${this.place(cut[0])} was cut: its translation reached the most tokens that it may have.${others(cut)}`);
    return found;
  }

  fail(text) {
    this.state = "failed";
    this.find(".progress").hidden = true;
    this.say(text, true);
  }

  say(text, wrong) {
    const status = this.find(".status");
    status.textContent = text;
    status.classList.toggle("wrong", wrong && text !== "");
  }
}

/** A log-probability as it is printed. */
function inText(number) {
  return number.toFixed(2).replace("-", "−");
}
