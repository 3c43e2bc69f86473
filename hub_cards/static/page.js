// The page: a text field, and for each model a panel with the translation of the text and the attention map of one sentence.

import { element } from "./elements.js";
import { known } from "./sentences.js";
import { nameOf, Panel } from "./panel.js";

const PAUSE = 250; // milliseconds without a key before a text is translated

const problem = document.getElementById("problem");
const field = document.getElementById("text");

/** The field is called after its language, of which two models may have two. */
function label(models) {
  const languages = [...new Set(models.map((model) => model.source).filter(Boolean))];
  const named = languages.length ? `, in ${languages.map(nameOf).join(" or ")}` : "";
  document.querySelector("label[for=text]").textContent = `Text to translate${named}`;
  if (languages.length === 1 && known(languages[0])) field.lang = known(languages[0]);
}

function begin({ examples, models }) {
  label(models);
  /** Puts the cursor, and with it the map, to a sentence. */
  const look = (start, end) => {
    field.setSelectionRange(start, end);
    panels.forEach((panel) => panel.move(start));
  };
  const panels = models.map((model) => new Panel(model, look));
  const translate = () => panels.forEach((panel) => panel.update(field.value, field.selectionStart));
  let pause;
  field.addEventListener("input", () => {
    clearTimeout(pause);
    pause = setTimeout(translate, PAUSE);
  });
  document.addEventListener("selectionchange", () => {
    // a text that has just been changed is laid out after a pause
    const current = panels.filter((panel) => panel.text === field.value);
    current.forEach((panel) => panel.move(field.selectionStart));
  });
  const use = (text) => {
    clearTimeout(pause);
    field.value = text;
    field.setSelectionRange(0, 0);
    translate();
  };
  const buttons = examples.map((text) => element("button", { type: "button", dir: "auto", onclick: () => use(text) }, text));
  document.getElementById("examples").append(...buttons);
  if (examples.length) models.forEach((model, index) => panels[index].know(examples[0], model.first));
  if (field.value) translate(); // what was typed while the page loaded, or before it was loaded again
  else if (examples.length) use(examples[0]);
}

function fail(text) {
  problem.textContent = text;
  problem.classList.add("found");
}

if (typeof WebAssembly === "undefined") {
  fail("This browser has no WebAssembly, or it is switched off. The model needs it: allow it, or use another browser.");
} else if (typeof Intl.Segmenter === "undefined") {
  fail("This browser cannot cut a text into sentences (Intl.Segmenter): use a newer one.");
} else {
  try {
    const answer = await fetch("page.json");
    if (!answer.ok) throw new Error(`page.json: ${answer.status} ${answer.statusText}`);
    begin(await answer.json());
    problem.hidden = true;
  } catch (error) {
    fail(`The page did not start: ${error.message}. Serve its whole folder, as “reluformer space” does.`);
  }
}
