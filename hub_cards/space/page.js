// A click on a head in the tables chooses it; the focus stays on it when the page is drawn anew.
let chosen = null;

element.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-head]");
  if (button) {
    chosen = { ...button.dataset, table: button.closest("table").className };
    trigger("click", { module: chosen.module, layer: chosen.layer, head: chosen.head });
  }
});

watch("value", () => {
  if (chosen) {
    const place = `[data-module="${chosen.module}"][data-layer="${chosen.layer}"][data-head="${chosen.head}"]`;
    element.querySelector(`table.${chosen.table} button${place}`)?.focus();
    chosen = null;
  }
});
